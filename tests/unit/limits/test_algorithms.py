"""The reference arithmetic: exact waits, nothing granted by clocks or plan changes, numbers that fit a double."""

from __future__ import annotations

import math
from datetime import timedelta
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.limits.algorithms import State, at, give, hold, life_us, release, room, take
from paceline.limits.model import MOST, FixedWindow, SlidingLog, SlidingWindow, Spec, TokenBucket
from tests.effort import examples

T0 = 1_800_000_000_000_000

rates = st.fractions(min_value=Fraction(1, 5000), max_value=5000, max_denominator=5000)
limits = st.integers(1, 50)
windows = st.integers(1, 10**8).map(lambda us: timedelta(microseconds=us))
buckets = st.builds(TokenBucket, limits, rates)
specs: st.SearchStrategy[Spec] = st.one_of(
    buckets,
    st.builds(FixedWindow, limits, windows),
    st.builds(SlidingWindow, limits, windows),
    st.builds(SlidingLog, limits, windows),
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
    now += later
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
