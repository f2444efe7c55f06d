"""The reference arithmetic: exact waits, nothing granted by clocks or plan changes, numbers that fit a double."""

from __future__ import annotations

import math
from datetime import timedelta
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.limits.algorithms import (
    State,
    _calendar_end,
    _calendar_window,
    at,
    at_opened,
    give,
    hold,
    life_us,
    release,
    renew,
    room,
    stranded,
    take,
)
from paceline.limits.model import (
    MOST,
    CalendarWindow,
    Concurrency,
    FixedWindow,
    SlidingLog,
    SlidingWindow,
    Spec,
    TokenBucket,
)
from tests.effort import examples

T0 = 1_800_000_000_000_000

rates = st.fractions(min_value=Fraction(1, 5000), max_value=5000, max_denominator=5000)
limits = st.integers(1, 50)
windows = st.integers(1, 10**8).map(lambda us: timedelta(microseconds=us))
buckets = st.builds(TokenBucket, limits, rates)


def coarse_log(limit: int, window: timedelta, entries: int) -> SlidingLog:
    """A log that remembers so many entries at most."""
    return SlidingLog(limit, window, max(window // entries, timedelta(microseconds=1)))


specs: st.SearchStrategy[Spec] = st.one_of(
    buckets,
    st.builds(FixedWindow, limits, windows),
    st.builds(SlidingWindow, limits, windows),
    st.builds(SlidingLog, limits, windows),
    st.builds(coarse_log, limits, windows, st.integers(1, 20)),
)
steps = st.one_of(st.integers(0, 1000), st.integers(0, 2 * 10**8))


def spend(spec: Spec, state: State | None, now: int, cost: int) -> tuple[State | None, bool, int]:
    """A lone caller's try: the state after, whether it passed, how long to wait."""
    view = at(spec, state, now)
    offer = room(spec, view, now, cost)
    if offer.retry_after_us:
        return state, False, offer.retry_after_us
    return take(spec, view, now, cost), True, 0


def cost_for(spec: Spec, number: int) -> int:
    return 1 + number % spec.size


@st.composite
def histories(draw: st.DrawFn, *, back: bool = False) -> tuple[Spec, State | None, int]:
    """A spec, the state some calls left, and the time of the last."""
    spec = draw(specs)
    state: State | None = None
    now = T0
    for step, number in draw(st.lists(st.tuples(steps, st.integers(0, 10)), max_size=12)):
        now += step
        state, _, _ = spend(spec, state, now, cost_for(spec, number))
    if back:
        now -= draw(steps)
    return spec, state, now


@given(histories(back=True), st.integers(0, 60))
@settings(max_examples=examples(500))
def test_a_caller_that_waits_retry_after_is_admitted_and_not_a_microsecond_earlier(
    history: tuple[Spec, State | None, int], number: int
) -> None:
    spec, state, now = history
    cost = cost_for(spec, number)
    view = at(spec, state, now)
    retry = room(spec, view, now, cost).retry_after_us
    if retry:
        assert room(spec, at(spec, view, now + retry), now + retry, cost).retry_after_us == 0
        early = now + retry - 1
        assert room(spec, at(spec, view, early), early, cost).retry_after_us == 1


@given(histories(back=True))
@settings(max_examples=examples(500))
def test_after_its_reset_a_state_is_as_new_and_not_before(history: tuple[Spec, State | None, int]) -> None:
    spec, state, now = history
    view = at(spec, state, now)
    reset = room(spec, view, now, 1).reset_after_us
    later = now + reset
    assert at(spec, view, later) == at(spec, None, later)
    if reset:
        assert at(spec, view, later - 1) != at(spec, None, later - 1)
        assert life_us(spec, view, now) == reset
        assert reset <= 2 * spec.life_us


@given(histories(), st.integers(0, 4 * 10**8), st.integers(0, 10))
@settings(max_examples=examples(500))
def test_a_clock_set_back_grants_nothing(history: tuple[Spec, State | None, int], back: int, number: int) -> None:
    spec, state, now = history
    before = room(spec, at(spec, state, now), now, 1).remaining
    after = room(spec, at(spec, state, now - back), now - back, 1)
    if room(spec, at(spec, state, now), now, 1).reset_after_us:
        assert after.remaining <= before


@given(histories())
@settings(max_examples=examples(300))
def test_remaining_is_what_can_be_taken_at_once(history: tuple[Spec, State | None, int]) -> None:
    spec, state, now = history
    view = at(spec, state, now)
    remaining = room(spec, view, now, 1).remaining
    assert 0 <= remaining <= spec.size
    assert {type(number) for cost in (1, spec.size) for number in (*view, *room(spec, view, now, cost))} == {int}
    if remaining:
        assert room(spec, view, now, remaining).retry_after_us == 0
    if remaining < spec.size:
        assert room(spec, view, now, remaining + 1).retry_after_us > 0


@given(histories(), st.integers(0, 60))
@settings(max_examples=examples(300))
def test_giving_back_undoes_taking(history: tuple[Spec, State | None, int], number: int) -> None:
    spec, state, now = history
    view = at(spec, state, now)
    remaining = room(spec, view, now, 1).remaining
    cost = 1 + number % max(remaining, 1)
    if cost <= remaining:
        taken = take(spec, view, now, cost)
        assert room(spec, at(spec, give(spec, taken, cost), now), now, 1).remaining == remaining
        held, place = hold(spec, taken, cost)
        back = release(spec, at(spec, held, now), cost, 0, place)
        assert room(spec, at(spec, back, now), now, 1) == room(spec, view, now, 1)


@given(histories(), st.integers(1, 100))
@settings(max_examples=examples(300))
def test_giving_back_too_much_gives_no_more_than_a_new_key_has(
    history: tuple[Spec, State | None, int], extra: int
) -> None:
    spec, state, now = history
    view = give(spec, at(spec, state, now), 2 * spec.size + extra)
    assert room(spec, at(spec, view, now), now, 1).remaining == spec.size


@given(specs, specs, st.lists(st.tuples(steps, st.integers(0, 10)), min_size=1, max_size=8), steps)
@settings(max_examples=examples(500))
def test_a_changed_plan_is_never_over_its_own_limit_and_its_wait_is_exact(
    old: Spec, new: Spec, calls: list[tuple[int, int]], later: int
) -> None:
    now, state = T0, None
    for step, number in calls:
        now += step
        state, _, _ = spend(old, state, now, cost_for(old, number))
    now += later + getattr(old, "grain_us", 1) - 1  # a call of a coarse log is written down as of the end of its grain
    offer = room(new, at(new, state, now), now, 1)
    assert 0 <= offer.remaining <= new.size
    if offer.retry_after_us:
        _, passed, _ = spend(new, state, now + offer.retry_after_us, 1)
        assert passed


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (TokenBucket(10, 1), TokenBucket(20, 1)),
        (FixedWindow(10, "PT10S"), FixedWindow(20, "PT10S")),
        (SlidingWindow(10, "PT10S"), SlidingWindow(20, "PT10S")),
        (SlidingLog(10, "PT10S"), SlidingLog(20, "PT10S")),
    ],
)
def test_raising_adds_room_at_once_and_lowering_clips(low: Spec, high: Spec) -> None:
    state, passed, _ = spend(low, None, T0, 10)
    assert passed
    assert room(high, at(high, state, T0), T0, 1).remaining == 10
    state, passed, _ = spend(high, state, T0, 8)
    assert passed
    assert room(low, at(low, state, T0), T0, 1).remaining == 0
    assert room(low, at(low, state, T0), T0, 1).retry_after_us <= 20_000_000


def test_a_new_rate_keeps_whole_tokens_and_counts_a_begun_one_as_spent() -> None:
    slow, fast = TokenBucket(10, 1), TokenBucket(10, 1000)
    state, _, _ = spend(slow, None, T0, 4)
    view = at(fast, state, T0)
    assert room(fast, view, T0, 1).remaining == 6
    begun = at(slow, state, T0 + 500_000)
    assert room(slow, begun, T0 + 500_000, 1).remaining == 6
    assert room(fast, at(fast, begun, T0 + 500_000), T0 + 500_000, 1).remaining == 6


def test_another_algorithms_state_is_as_new() -> None:
    for spec in (TokenBucket(1, 1), FixedWindow(1, "PT1S"), SlidingWindow(1, "PT1S"), SlidingLog(1, "PT1S")):
        for foreign in ((1, 1, 99, T0), (2, T0, 9), (3, T0, 9, 9), (4, T0, 9), (77, 1)):
            if foreign[0] != spec.tag:
                assert at(spec, foreign, T0) == at(spec, None, T0)


def test_peer_bug_05_lost_fractions() -> None:
    spec = TokenBucket(1, Fraction(40, 60))
    state: State | None = None
    for call in range(1000):
        state, passed, _ = spend(spec, state, T0 + call * 1_600_000, 1)
        assert passed


@given(
    st.one_of(
        st.builds(SlidingWindow, st.integers(1, MOST), st.timedeltas(timedelta(microseconds=1), timedelta(days=3660))),
        st.builds(TokenBucket, st.integers(1, 10**6), st.fractions(Fraction(1, 1000), 10**6, max_denominator=1000)),
    ),
    st.integers(0, 10**16),
    st.integers(0, MOST),
)
@settings(max_examples=examples(500))
def test_every_quotient_is_exact_in_a_double(spec: Spec, elapsed: int, number: int) -> None:
    """The quotients of the widest numbers, computed as Lua 5.1 would: floor of a double division."""
    if isinstance(spec, TokenBucket):
        assert spec.full <= MOST
        debt = number % (spec.full + 1)
        assert math.floor(float(debt) / float(spec.unit)) == debt // spec.unit
        assert math.floor(float(debt + spec.gain - 1) / float(spec.gain)) == -(-debt // spec.gain)
    elif isinstance(spec, SlidingWindow):
        before = 1 + number % spec.limit
        in_view = spec.grains - (elapsed % spec.window_us) // spec.grain_us
        product = before * in_view
        assert product <= 2 * MOST
        assert math.floor(float(product + spec.grains - 1) / float(spec.grains)) == -(-product // spec.grains)
        free = (spec.limit - before) * spec.grains
        assert math.floor(float(free) / float(before)) == free // before


BUCKET = TokenBucket(10, 2)
"""A token has 500,000 ticks, of which one is gained per microsecond."""
LATER = 1_000
SPECS: list[Spec] = [
    TokenBucket(2, 1),
    FixedWindow(2, "PT1S"),
    SlidingWindow(2, "PT1S"),
    SlidingLog(2, "PT1S"),
    CalendarWindow(2, "day", "UTC"),
    Concurrency(2, "PT1S"),
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: type(spec).__name__)
def test_a_cost_that_fits_exactly_fits_also_while_the_clock_has_to_catch_up(spec: Spec) -> None:
    """One of two is spent, then the clock goes back: the other one is still free at once, and a third is not."""
    state = take(spec, at(spec, None, T0), T0, 1)
    for back in (0, 1, LATER):
        now = T0 - back
        view = at(spec, state, now)
        one, two = room(spec, view, now, 1), room(spec, view, now, 2)
        assert (one.remaining, one.retry_after_us) == (1, 0)
        assert two.retry_after_us == room(spec, at(spec, state, T0), T0, 2).retry_after_us + back
        assert two.retry_after_us == one.reset_after_us
        full = take(spec, view, now, 1)
        assert room(spec, full, now, 1).remaining == 0
        assert room(spec, full, now, 1).retry_after_us > 0


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: type(spec).__name__)
def test_a_state_further_ahead_than_it_lives_counts_as_spent_as_of_now(spec: Spec) -> None:
    """Exactly as far as it lives, the clock may still catch up."""
    state = take(spec, at(spec, None, T0), T0, 1)
    instant = T0 if spec.tag != CalendarWindow.tag else state[1]
    for now, ahead in ((instant - spec.life_us, False), (instant - spec.life_us - 1, True)):
        assert stranded(spec, state, now) is ahead
        view = at(spec, state, now)
        assert view[0] == spec.tag
        offer = room(spec, view, now, 1)
        assert offer.remaining == (0 if ahead else 1)
        if ahead:
            assert 0 < offer.retry_after_us <= spec.life_us
            assert offer.reset_after_us <= spec.life_us
    unused = at(spec, None, T0)
    assert not stranded(spec, unused, T0 - 10 * spec.life_us)
    assert not stranded(spec, (77, T0, T0, T0), 0)


def test_a_sliding_window_with_nothing_but_the_one_before_has_a_time_too() -> None:
    spec = SlidingWindow(2, "PT1S")
    now = T0 - spec.life_us - 1
    assert [stranded(spec, (3, T0, before, used), now) for before, used in ((1, 0), (0, 1), (0, 0))] == [
        True,
        True,
        False,
    ]


def test_what_a_call_cost_is_not_taken_for_its_time() -> None:
    """Times and costs stand side by side in a log, and the time may be any number."""
    spec = Concurrency(3, "PT1S")
    state = (spec.tag, 1, 2, 9, 1)
    assert renew(spec, state, 20, 1, (2, 0)) is None
    assert release(spec, state, 1, 0, (2, 0)) == state


def test_the_window_around_now_by_the_edges_of_another_clock() -> None:
    """A store whose clock is ahead of the caller's may be past the last edge that it is given."""
    edges = (0, 10, 30)
    assert [_calendar_window(edges, now) for now in (0, 9, 10, 29, 30, 31)] == [0, 0, 10, 10, 30, 30]
    assert [_calendar_end(edges, start) for start in (0, 10, 30)] == [10, 30, 50]


def test_a_bucket_to_the_tick() -> None:
    state = take(BUCKET, at(BUCKET, None, T0), T0, 3)
    assert (BUCKET.unit, BUCKET.gain, BUCKET.full) == (500_000, 1, 5_000_000)
    assert state == (1, 500_000, 1_500_000, T0)
    assert room(BUCKET, state, T0, 8) == (7, 500_000, 1_500_000)
    assert at(BUCKET, state, T0 + 1) == (1, 500_000, 1_499_999, T0 + 1)
    assert room(BUCKET, at(BUCKET, state, T0 + 499_999), T0 + 499_999, 8) == (7, 1, 1_000_001)
    assert room(BUCKET, at(BUCKET, state, T0 + 500_000), T0 + 500_000, 8) == (8, 0, 1_000_000)
    assert take(BUCKET, state, T0, 9) == (1, 500_000, 5_000_000, T0), "cut at the limit"
    assert give(BUCKET, state, 2) == (1, 500_000, 500_000, T0)
    assert give(BUCKET, state, 4) == (1, 500_000, 0, T0)
    assert at(BUCKET, state, T0 + BUCKET.life_us) == at(BUCKET, None, T0 + BUCKET.life_us)
    assert at(BUCKET, (1, 500_000, 1, T0), T0) == (1, 500_000, 1, T0), "one tick is owed"
    assert at(BUCKET, (1, 500_000, 0, T0), T0 - 5) == (1, 500_000, 0, T0 - 5), "and nothing is: as new"


def test_a_bucket_of_another_rate_keeps_whole_tokens_up_to_its_capacity() -> None:
    small = TokenBucket(2, 1)
    state = (1, 500_000, 1_500_001, T0)
    assert at(small, state, T0) == (1, small.unit, small.full, T0)
    assert at(TokenBucket(10, 1), state, T0) == (1, 1_000_000, 4_000_000, T0), "a begun token counts as spent"
    held = (*state, T0, 5, 0)
    assert at(TokenBucket(10, 1), held, T0) == (1, 1_000_000, 4_000_000, T0), "what was held is no longer in line"


def test_held_ticks_stand_in_line_until_the_refill_has_paid_for_them() -> None:
    unit = BUCKET.unit
    first, place = hold(BUCKET, take(BUCKET, at(BUCKET, None, T0), T0, 2), 2)
    assert (first, place) == ((1, unit, 2 * unit, T0, T0, 2 * unit, 0), (T0, 2 * unit))
    second, behind = hold(BUCKET, take(BUCKET, first, T0, 1), 1)
    assert behind == (T0, 3 * unit)
    assert room(BUCKET, second, T0, 8) == (7, 500_000, 1_500_000), "as if nothing were held"
    # The last one leaves the line at once, an earlier one's place stays.
    assert release(BUCKET, second, 1, 0, behind) == (1, unit, 2 * unit, T0, T0, 2 * unit, 0)
    assert release(BUCKET, second, 2, 0, place) == (1, unit, unit, T0, T0, 3 * unit, 2 * unit)
    assert release(BUCKET, second, 1, 1, behind) == (1, unit, 3 * unit, T0, T0, 2 * unit, 0), "all of it was used"
    assert release(BUCKET, second, 1, 5, behind) == (1, unit, 3 * unit, T0, T0, 2 * unit, 0), "or more"
    later = at(BUCKET, second, T0 + unit // 2)
    assert later == (1, unit, 5 * unit // 2, T0 + unit // 2, T0, 3 * unit, unit // 2), "half a token is paid"
    assert release(BUCKET, later, 2, 0, place) == (1, unit, unit, T0 + unit // 2, T0, 3 * unit, 2 * unit)
    assert release(BUCKET, second, 1, 0, (T0 - 1, 3 * unit)) == second, "of another line"
    assert release(BUCKET, at(BUCKET, None, T0), 1, 0, place) == at(BUCKET, None, T0)
    assert give(BUCKET, second, 2) == (1, unit, unit, T0, T0, 3 * unit, 2 * unit)
    assert give(BUCKET, second, 3) == (1, unit, 0, T0)


def test_a_line_that_grew_too_long_begins_anew() -> None:
    unit = BUCKET.unit
    long = (1, unit, unit, T0, T0 - 5, MOST, MOST - 1)
    assert hold(BUCKET, long, 1) == ((1, unit, unit, T0, T0 - 5, MOST + unit, MOST - 1), (T0 - 5, MOST + unit))
    longer = (1, unit, unit, T0, T0 - 5, MOST + 1, MOST)
    assert hold(BUCKET, longer, 1) == ((1, unit, unit, T0, T0, unit, 0), (T0, unit))


def test_a_window_to_the_microsecond() -> None:
    spec = FixedWindow(5, "PT1S")
    state = take(spec, at(spec, None, T0), T0, 3)
    assert state == (2, T0, 3)
    assert room(spec, state, T0 + 1, 2) == (2, 0, 999_999)
    assert room(spec, state, T0 + 1, 3) == (2, 999_999, 999_999)
    assert at(spec, state, T0 + 999_999) == state
    assert at(spec, state, T0 + 1_000_000) == (2, T0 + 1_000_000, 0)
    assert at(spec, (2, T0, 0), T0 + 7) == (2, T0 + 7, 0), "an unused window has not begun"
    assert room(spec, (2, T0, 0), T0, 1) == (5, 0, 0)
    assert at(spec, (2, T0, 9), T0) == (2, T0, 5), "a lowered limit"
    assert take(spec, state, T0, 9) == (2, T0, 5)
    assert (give(spec, state, 2), give(spec, state, 4)) == ((2, T0, 1), (2, T0, 0))
    held, place = hold(spec, state, 3)
    assert (held, place) == (state, (T0, 0))
    assert release(spec, state, 3, 1, place) == (2, T0, 1)
    assert release(spec, state, 3, 4, place) == state
    assert release(spec, (2, T0 + 1, 3), 3, 0, place) == (2, T0 + 1, 3), "of another window"


def test_a_window_that_was_opened_stays_open_to_its_end() -> None:
    spec = FixedWindow(5, "PT1S")
    assert at_opened(spec, (2, T0, 0), T0 + 999_999) == (2, T0, 0)
    assert at_opened(spec, (2, T0, 0), T0) == (2, T0, 0)
    for now in (T0 - 1, T0 + spec.life_us):
        assert at_opened(spec, (2, T0, 0), now) == (2, now, 0)
    assert at_opened(spec, (2, T0, 1), T0 + 1) == (2, T0, 1)
    assert at_opened(spec, None, T0) == (2, T0, 0)
    assert at_opened(spec, (1, T0, 0, 0), T0) == (2, T0, 0)
    log = SlidingLog(5, "PT1S")
    assert at_opened(log, (4, T0, 0), T0) == at(log, (4, T0, 0), T0)


def test_a_sliding_window_weighs_the_one_before() -> None:
    spec = SlidingWindow(10, "PT1S")
    state = (3, T0, 8, 3)
    assert room(spec, state, T0, 1) == (0, room(spec, state, T0, 1).retry_after_us, 2_000_000)
    half = T0 + 500_000
    assert room(spec, state, half, 3).remaining == 3, "three now and half of eight before"
    assert room(spec, state, half, 3).retry_after_us == 0
    assert room(spec, state, half, 4).retry_after_us == 125_000, "when three of eight are in view"
    assert room(spec, state, half, 7).retry_after_us == 500_000, "when none of them is"
    assert room(spec, state, half, 8).retry_after_us == 500_000 + 333_333 + 1, "and one of the three"
    assert room(spec, (3, T0, 8, 0), half, 1).reset_after_us == 500_000
    assert room(spec, (3, T0, 0, 0), half, 1) == (10, 0, 0)
    assert at(spec, state, T0 + 1_000_000) == (3, T0 + 1_000_000, 3, 0)
    assert at(spec, state, T0 + 1_999_999) == (3, T0 + 1_000_000, 3, 0)
    assert at(spec, state, T0 + 2_000_000) == (3, T0 + 2_000_000, 0, 0)
    assert at(spec, (3, T0, 20, 30), T0) == (3, T0, 10, 10)
    assert at(spec, (3, T0, 0, 0), T0 + 5) == (3, T0 + 5, 0, 0), "an unused window has not begun"
    assert at(spec, (3, T0, 1, 1), T0 + 5) == (3, T0, 1, 1)
    long_ago = T0 - spec.life_us - 1
    assert at(spec, state, long_ago) == (3, long_ago, 0, 10)
    short = SlidingWindow(10, timedelta(microseconds=10))
    assert [room(short, (3, T0, 10, 0), T0 + passed, 1).remaining for passed in (0, 1, 9)] == [0, 1, 9]
    assert (take(spec, state, T0, 4), take(spec, state, T0, 9)) == ((3, T0, 8, 7), (3, T0, 8, 10))
    assert (give(spec, state, 2), give(spec, state, 5), give(spec, state, 99)) == (
        (3, T0, 8, 1),
        (3, T0, 6, 0),
        (3, T0, 0, 0),
    )
    _, place = hold(spec, state, 3)
    assert place == (T0, 0)
    assert release(spec, state, 3, 1, place) == (3, T0, 8, 1)
    assert release(spec, state, 3, 9, place) == state
    assert release(spec, state, 9, 0, place) == (3, T0, 8, 0)
    assert release(spec, state, 3, 1, (T0 - 1_000_000, 0)) == (3, T0, 6, 3)
    assert release(spec, state, 9, 0, (T0 - 1_000_000, 0)) == (3, T0, 0, 3)
    assert release(spec, state, 3, 1, (T0 - 2_000_000, 0)) == state


@given(st.integers(1, 50), windows, st.integers(1, 20), st.lists(st.tuples(steps, st.integers(1, 5)), max_size=60))
def test_a_log_of_some_precision_holds_in_every_window_and_stays_short(
    limit: int, window: timedelta, entries: int, calls: list[tuple[int, int]]
) -> None:
    spec, state, now = coarse_log(limit, window, entries), None, T0
    admitted: list[tuple[int, int]] = []
    for step, cost in calls:
        now += step
        state, passed, _ = spend(spec, state, now, cost)
        if passed:
            admitted.append((now, cost))
            assert sum(cost for at_us, cost in admitted if at_us > now - spec.window_us) <= limit
            assert state is not None
            assert len(state) // 2 <= spec.window_us // spec.grain_us + 2


def test_calls_of_one_grain_share_an_entry_at_its_end() -> None:
    spec = SlidingLog(5, "PT1S", "PT0.1S")
    state = take(spec, take(spec, (4,), T0 + 1, 1), T0 + 100_000, 2)
    assert state == (4, T0 + 100_000, 3)
    assert take(spec, state, T0 + 100_001, 1) == (4, T0 + 100_000, 3, T0 + 200_000, 1)
    assert room(spec, state, T0 + 100_000, 3).retry_after_us == 1_000_000
    assert release(spec, state, 2, 0, hold(spec, state, 2)[1]) == (4, T0 + 100_000, 1)


def test_a_log_has_every_call_until_its_window_is_over() -> None:
    spec = SlidingLog(5, "PT1S")
    state = (4, T0, 2, T0 + 10, 1)
    assert room(spec, state, T0 + 10, 2) == (2, 0, 1_000_000)
    assert room(spec, state, T0 + 10, 3) == (2, 999_990, 1_000_000)
    assert room(spec, state, T0 + 10, 4) == (2, 999_990, 1_000_000)
    assert room(spec, state, T0 + 10, 5) == (2, 1_000_000, 1_000_000)
    assert at(spec, state, T0 + 999_999) == state
    assert at(spec, state, T0 + 1_000_000) == (4, T0 + 10, 1)
    assert at(spec, state, T0 + 1_000_010) == (4,)
    assert room(spec, (4,), T0, 1) == (5, 0, 0)
    assert room(spec, (4, T0, 2), T0, 6).retry_after_us == 1_000_000, "it never fits"
    assert room(spec, (4, T0, 7), T0, 1).remaining == 0, "a lowered limit"
    assert take(spec, state, T0 + 10, 1) == (4, T0, 2, T0 + 10, 2), "of one instant"
    assert take(spec, state, T0 + 5, 1) == (4, T0, 2, T0 + 10, 2), "and of one before it: the clock went back"
    assert take(spec, state, T0 + 11, 1) == (4, T0, 2, T0 + 10, 1, T0 + 11, 1)
    assert take(spec, state, T0 + 11, 9) == (4, T0, 2, T0 + 10, 1, T0 + 11, 2)
    assert take(spec, (4, T0, 5), T0 + 11, 1) == (4, T0, 5)
    assert [give(spec, state, cost) for cost in (1, 2, 3, 4)] == [(4, T0, 1, T0 + 10, 1), (4, T0 + 10, 1), (4,), (4,)]
    _, place = hold(spec, state, 1)
    assert place == (T0 + 10, 0)
    assert release(spec, state, 1, 0, place) == (4, T0, 2)
    assert release(spec, state, 2, 1, (T0, 0)) == (4, T0, 1, T0 + 10, 1)
    assert release(spec, state, 2, 5, (T0, 0)) == state
    assert release(spec, state, 9, 0, (T0, 0)) == (4, T0 + 10, 1)
    assert release(spec, state, 1, 0, (T0 + 1, 0)) == state


def test_places_are_renewed_while_they_are_held_or_free() -> None:
    spec = Concurrency(3, "PT1S")
    state = (spec.tag, T0, 2, T0 + 10, 1)
    assert renew(spec, state, T0 + 20, 2, (T0, 0)) == (spec.tag, T0 + 10, 1, T0 + 20, 2)
    assert renew(spec, state, T0 + 20, 1, (T0, 0)) == (spec.tag, T0, 1, T0 + 10, 1, T0 + 20, 1)
    assert renew(spec, state, T0 + 20, 1, (T0 + 5, 0)) is None, "they have expired, and all places are taken"
    assert renew(spec, state, T0 + 20, 3, (T0, 0)) is None, "not so many are held there"
    assert renew(spec, (spec.tag, T0, 2), T0 + 20, 1, (T0 + 5, 0)) == (spec.tag, T0, 2, T0 + 20, 1)
    assert renew(spec, state, T0 + 20, 1, (T0 + 10, 0)) == (spec.tag, T0, 2, T0 + 20, 1)
    assert renew(spec, (spec.tag, T0, 3), T0 + 20, 1, (T0 + 5, 0)) is None
    lowered = Concurrency(1, "PT1S")
    assert renew(lowered, state, T0 + 20, 2, (T0, 0)) == (spec.tag, T0 + 10, 1, T0 + 20, 2), "who holds them keeps them"


def test_days_begin_at_midnight() -> None:
    spec, day = CalendarWindow(5, "day", "UTC"), 86_400_000_000
    midnight = T0 - T0 % day
    assert at(spec, None, midnight) == (5, midnight, 0)
    assert at(spec, None, midnight + day - 1) == (5, midnight, 0)
    state = (5, midnight, 3)
    assert room(spec, state, midnight + 1, 2) == (2, 0, day - 1)
    assert room(spec, state, midnight + 1, 3) == (2, day - 1, day - 1)
    assert room(spec, (5, midnight, 0), midnight, 5) == (5, 0, 0)
    assert at(spec, state, midnight + day - 1) == state
    assert at(spec, state, midnight + day) == (5, midnight + day, 0)
    assert at(spec, (5, midnight, 9), midnight) == (5, midnight, 5)
    assert at(spec, (5, midnight - day, 3), midnight) == (5, midnight, 0)
    for back in (1, day, day + 1):
        ahead = midnight - back
        view = at(spec, state, ahead)
        assert view == state, "it stays until its own end"
        assert room(spec, view, ahead, 3) == (2, day + back, day + back)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: type(spec).__name__)
def test_a_state_lives_until_it_is_as_new_and_at_least_a_microsecond(spec: Spec) -> None:
    unused = at(spec, None, T0)
    assert life_us(spec, unused, T0) == 1
    used = take(spec, unused, T0, 1)
    assert life_us(spec, used, T0) == room(spec, used, T0, 1).reset_after_us > 1
