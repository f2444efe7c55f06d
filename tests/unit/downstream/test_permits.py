"""The permits of the downstream: pure arithmetic over random histories."""

from __future__ import annotations

from bisect import bisect_right
from heapq import heappop, heappush
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.downstream import permits
from paceline.downstream.permits import LOOK_AHEAD_US, SECOND_US, PermitPolicy, Permits
from paceline.downstream.rate_gate import LATE, permit_policy

NOON = 1_800_000_000_000_000
CALL_US = 10 * SECOND_US
HOLD_US = CALL_US + SECOND_US + round(LATE * SECOND_US)
"""Of a permit, until its process reports when it is free."""


def most_in_a_second(times_us: list[int]) -> int:
    """Half open: two calls exactly a second apart don't share one."""
    times = sorted(times_us)
    return max((bisect_right(times, at + SECOND_US - 1) - index for index, at in enumerate(times)), default=0)


class Step(NamedTuple):
    """A caller that comes so long after the last, and how long its call takes to arrive and to be answered."""

    after_us: int
    trip_us: int
    answer_us: int


steps = st.lists(
    st.builds(Step, st.integers(0, 60_000), st.integers(0, 400_000), st.integers(0, 2_000_000)), max_size=120
)


@given(steps, st.integers(1, 12), st.integers(1, 5))
def test_counted_at_the_answer_no_second_sees_too_many_arrivals_whatever_the_network_does(
    history: list[Step], tps: int, burst: int
) -> None:
    policy, state, now = permit_policy(tps, burst), Permits({}), NOON
    arrivals: list[int] = []
    answers: list[tuple[int, str]] = []
    for number, step in enumerate(history):
        now += step.after_us
        while True:
            for answered_at, holder in [answer for answer in answers if answer[0] <= now]:
                state = permits.free(state, holder, answered_at + SECOND_US)
                answers.remove((answered_at, holder))
            state, grant = permits.take(state, policy, str(number), CALL_US + SECOND_US, now)
            if not grant.wait_us:
                break
            now += grant.wait_us
        left_at = now + grant.delay_us
        arrivals.append(left_at + step.trip_us)
        answers.append((left_at + step.trip_us + step.answer_us, str(number)))
    assert most_in_a_second(arrivals) <= tps


class Departure(NamedTuple):
    """A caller that comes so long after the last, how late its call leaves, and when the store learns of it; never, if
    that is None."""

    after_us: int
    late_us: int
    notice_us: int | None


departures_of_callers = st.lists(
    st.builds(
        Departure,
        st.integers(0, 60_000),
        st.integers(0, CALL_US + round(LATE * SECOND_US)),
        st.none() | st.integers(0, 2 * SECOND_US),
    ),
    max_size=200,
)


@given(departures_of_callers, st.integers(1, 12), st.integers(1, 5))
def test_counted_at_the_departure_no_second_sees_too_many_departures(
    history: list[Departure], tps: int, burst: int
) -> None:
    """A process may freeze right before the first byte, for as long as the longest call."""
    policy, state, now = permit_policy(tps, burst), Permits({}), NOON
    departures: list[int] = []
    notices: list[tuple[int, int, str]] = []
    for number, caller in enumerate(history):
        now += caller.after_us
        while True:
            for noticed_at, left_at, holder in [notice for notice in notices if notice[0] <= now]:
                state = permits.free(state, holder, left_at + SECOND_US)
                notices.remove((noticed_at, left_at, holder))
            state, grant = permits.take(state, policy, str(number), HOLD_US, now)
            if not grant.wait_us:
                break
            now += grant.wait_us
        left_at = now + grant.delay_us + caller.late_us
        departures.append(left_at)
        if caller.notice_us is not None:
            notices.append((left_at + caller.notice_us, left_at, str(number)))
    assert most_in_a_second(departures) <= tps


@given(st.integers(1, 200), st.integers(1, 20))
def test_calls_leave_no_closer_than_their_spacing_but_for_the_burst(tps: int, burst: int) -> None:
    policy, state, now = permit_policy(tps, burst), Permits({}), NOON
    departures: list[int] = []
    for number in range(3 * tps // 2 + burst):
        now, state, delay_us = _departure(policy, state, str(number), now)
        departures.append(now + delay_us)
    assert departures[: policy.burst] == [NOON] * policy.burst
    for first, later in zip(departures, departures[policy.burst :], strict=False):
        assert later - first >= policy.spacing_us


@pytest.mark.parametrize("seed", range(5))
def test_a_minute_of_departures_has_the_full_rate_though_calls_are_held_up(seed: int) -> None:
    """Asking takes 3 ms, and every wait is 2 ms longer than planned. From its permit on, 20 ms ahead, each call is held
    up for 1 to 30 ms, and one in a hundred for 150 ms. A departure reaches the store after 100 ms, as if it were slow:
    the time of the departure counts."""
    random, tps, now, end = Random(seed), 50, NOON, NOON + 60 * SECOND_US
    policy, state = permit_policy(tps, 1), Permits({})
    departures: list[int] = []
    notices: list[tuple[int, str]] = []
    """When calls left, and their processes."""
    number = 0
    while now < end:
        while notices and notices[0][0] + 100_000 <= now:
            left_at, holder = heappop(notices)
            state = permits.free(state, holder, left_at + SECOND_US)
        state, grant = permits.take(state, policy, str(number), HOLD_US, now)
        now += 3000
        if grant.wait_us:
            now += grant.wait_us + 2000
            continue
        leave_at = now - 3000 + grant.delay_us
        ready_at = max(now, leave_at - 20_000) + (150_000 if random.random() < 0.01 else random.randint(1000, 30_000))
        left_at = max(leave_at, ready_at) + 1000
        departures.append(left_at)
        heappush(notices, (left_at, str(number)))
        number += 1
    assert len(departures) / 60 >= 0.98 * tps
    assert most_in_a_second(departures) <= tps


def test_counted_at_the_answer_the_rate_is_the_limit_by_one_and_the_latency() -> None:
    tps, latency_us, now, end = 50, 200_000, NOON, NOON + 60 * SECOND_US
    policy, state = permit_policy(tps, 1), Permits({})
    answers: list[tuple[int, str]] = []
    departures = 0
    while now < end:
        while answers and answers[0][0] <= now:
            answered_at, holder = answers.pop(0)
            state = permits.free(state, holder, answered_at + SECOND_US)
        state, grant = permits.take(state, policy, str(departures), CALL_US + SECOND_US, now)
        if grant.wait_us:
            now += min(grant.wait_us, max(1, answers[0][0] - now) if answers else grant.wait_us)
            continue
        answers.append((now + grant.delay_us + latency_us, str(departures)))
        departures += 1
    assert 0.82 * tps <= departures / 60 <= 0.84 * tps


@given(st.integers(0, 20 * SECOND_US), st.integers(1, 5))
def test_after_a_loss_of_memory_nothing_is_granted_until_the_longest_call_is_over(passed_us: int, tps: int) -> None:
    hold_us = CALL_US + SECOND_US
    state = permits.reopened(Permits({"forgotten": NOON + 5}, life="before"), "after", hold_us, NOON)
    assert permits.reopened(state, "after", hold_us, NOON + 1) == state, "once"
    _, grant = permits.take(state, PermitPolicy(tps, SECOND_US // tps), "a", hold_us, NOON + passed_us)
    assert (grant.wait_us == 0) == (passed_us >= hold_us)
    assert grant.wait_us <= SECOND_US


def test_a_lowered_limit_counts_at_once() -> None:
    state = Permits({str(number): NOON + SECOND_US for number in range(10)})
    _, grant = permits.take(state, PermitPolicy(3, 1), "new", SECOND_US, NOON)
    assert grant.wait_us == SECOND_US - LOOK_AHEAD_US


def test_a_permit_is_exchanged_and_freed_only_sooner() -> None:
    policy = PermitPolicy(1, 1)
    state, _ = permits.take(Permits({}), policy, "a", 5 * SECOND_US, NOON)
    assert permits.free(state, "a", NOON + 9 * SECOND_US) == state
    assert permits.free(state, "nobody", 0) == state
    exchanged, grant = permits.take(state, policy, "a", 7 * SECOND_US, NOON + 1)
    assert (grant.wait_us, exchanged.held) == (0, {"a": NOON + 1 + 7 * SECOND_US})


def _departure(policy: PermitPolicy, state: Permits, holder: str, now: int) -> tuple[int, Permits, int]:
    """The time at which a permit is granted, the state, and the delay until the call leaves."""
    while True:
        state, grant = permits.take(state, policy, holder, HOLD_US, now)
        if not grant.wait_us:
            return now, state, grant.delay_us
        now += grant.wait_us


def test_permits_that_are_free_at_this_instant_are_gone() -> None:
    state = Permits({"a": NOON, "b": NOON + 1}, paced_us=3, open_us=4, life="x")
    after, grant = permits.take(state, PermitPolicy(2, 5), "c", 100, NOON)
    assert after == Permits({"b": NOON + 1, "c": NOON + 100}, NOON + 5, 4, "x")
    assert grant == (0, 0, NOON)


def test_nothing_is_granted_before_the_store_opens() -> None:
    policy = PermitPolicy(2, 5)
    closed = Permits({"a": NOON + 9}, open_us=NOON + 7)
    assert permits.take(closed, policy, "b", 100, NOON) == (closed, (7, 0, NOON))
    assert permits.take(closed, policy, "a", 100, NOON) == (closed, (7, 0, NOON)), "nor exchanged"
    far = Permits({}, open_us=NOON + 2 * SECOND_US)
    assert permits.take(far, policy, "b", 100, NOON)[1] == (SECOND_US, 0, NOON)
    after, grant = permits.take(closed, policy, "b", 100, NOON + 7)
    assert grant.wait_us == 0
    assert after.held == {"a": NOON + 9, "b": NOON + 107}


def test_a_grant_lies_at_most_so_far_ahead() -> None:
    policy = PermitPolicy(5, 1000)
    near = Permits({}, paced_us=NOON + LOOK_AHEAD_US)
    after, grant = permits.take(near, policy, "a", 100, NOON)
    assert grant == (0, LOOK_AHEAD_US, NOON)
    assert after == Permits({"a": NOON + LOOK_AHEAD_US + 100}, NOON + LOOK_AHEAD_US + 1000)
    later = Permits({}, paced_us=NOON + LOOK_AHEAD_US + 1)
    assert permits.take(later, policy, "a", 100, NOON) == (later, (1, 0, NOON))
    much = Permits({}, paced_us=NOON + LOOK_AHEAD_US + 500)
    assert permits.take(much, policy, "a", 100, NOON)[1] == (500, 0, NOON)
    hours = Permits({}, paced_us=NOON + 3600 * SECOND_US)
    assert permits.take(hours, policy, "a", 100, NOON)[1] == (SECOND_US - LOOK_AHEAD_US, 0, NOON)


def test_the_call_leaves_when_a_permit_is_free() -> None:
    """Of two permits, three are held: when the limit was lowered, the second that becomes free is the first to have."""
    held = {"a": NOON + 30, "b": NOON + 10, "c": NOON + 20}
    after, grant = permits.take(Permits(held), PermitPolicy(2, 5), "d", 100, NOON)
    assert grant == (0, 20, NOON)
    assert after == Permits({**held, "d": NOON + 120}, NOON + 25)
    _, grant = permits.take(Permits(held), PermitPolicy(3, 5), "d", 100, NOON)
    assert grant.delay_us == 10
    _, grant = permits.take(Permits(held), PermitPolicy(4, 5), "d", 100, NOON)
    assert grant.delay_us == 0


def test_a_burst_is_spaced_by_what_was_saved() -> None:
    state = Permits({}, paced_us=NOON + 30)
    _, grant = permits.take(state, PermitPolicy(9, 10, burst=3), "a", 100, NOON)
    assert grant.delay_us == 10
    after, grant = permits.take(state, PermitPolicy(9, 10, burst=5), "a", 100, NOON)
    assert (grant.delay_us, after.paced_us) == (0, NOON + 40)


def test_an_exchange_pays_no_spacing_and_needs_no_permit_but_its_own() -> None:
    state = Permits({"a": NOON + 50, "b": NOON + 60}, paced_us=NOON + 40)
    after, grant = permits.take(state, PermitPolicy(2, 10), "a", 100, NOON)
    assert grant == (0, 0, NOON)
    assert after == Permits({"a": NOON + 100, "b": NOON + 60}, NOON + 40)


def test_a_permit_is_free_sooner_or_as_it_was() -> None:
    state = Permits({"a": NOON + 50, "b": NOON + 60}, paced_us=1, open_us=2, life="x")
    assert permits.free(state, "a", NOON + 49) == state._replace(held={"a": NOON + 49, "b": NOON + 60})
    assert permits.free(state, "a", NOON + 50) is state
    assert permits.free(state, "c", 0) is state


def test_a_new_life_of_the_store_begins_with_what_is_known_and_waits_for_what_may_be_lost() -> None:
    state = Permits({"over": NOON, "b": NOON + 50, "by another clock": NOON + 900}, 5, 6, "before")
    assert permits.reopened(state, "before", 100, NOON) is state
    held = {"b": NOON + 50, "by another clock": NOON + 100}
    assert permits.reopened(state, "after", 100, NOON) == Permits(held, 0, NOON + 100, "after")


def test_a_restart_does_not_stop_a_rate_per_day_for_a_day() -> None:
    day_us = 86_400 * SECOND_US
    state = Permits({str(number): NOON + day_us for number in range(8)}, life="before")
    reopened = permits.reopened(state, "after", day_us, NOON)
    assert reopened.open_us == NOON + permits.LOST_US
    for number in range(2):
        reopened, grant = permits.take(reopened, PermitPolicy(10, 1, 10), f"new {number}", day_us, reopened.open_us)
        assert grant.wait_us == 0
    _, grant = permits.take(reopened, PermitPolicy(10, 1, 10), "eleventh", day_us, reopened.open_us)
    assert grant.wait_us > 0
