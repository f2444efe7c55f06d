"""Alignment, proportional capacity, spread."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.durations import LATEST_MS
from paceline.slots.model import FirstWindow, Spread
from paceline.slots.windows import Usable, align, even_position, position, positions, usable
from tests.effort import examples


@given(st.integers(0, 10**13), st.integers(10, 10**9))
def test_windows_tile_time(at: int, size: int) -> None:
    start = align(at, size)
    assert start % size == 0
    assert start <= at < start + size


@given(st.integers(1, 10**6), st.integers(10, 10**9), st.integers(0, LATEST_MS - 10**9))
def test_the_first_window_never_offers_more_than_its_share(limit: int, size: int, at: int) -> None:
    rest = align(at, size) + size - at
    capacity = usable(limit, size, align(at, size), at, LATEST_MS).capacity
    assert capacity * size <= limit * rest < (capacity + 1) * size


@given(st.integers(2, 2000))
def test_even_gaps_stay_nearly_equal_at_every_fill_level(count: int) -> None:
    """The three-distance theorem: the largest gap is less than φ² times the smallest, up to rounding."""
    span = 10**9
    points = sorted(even_position(ordinal, span) for ordinal in range(count))
    gaps = [after - before for before, after in zip(points, [*points[1:], points[0] + span], strict=True)]
    assert max(gaps) <= 2.62 * min(gaps) + 2


@given(st.sampled_from(Spread), st.integers(0, 10**6), st.integers(0, 10**12), st.integers(1, 10**8))
def test_a_slot_lies_inside_its_span(spread: Spread, ordinal: int, low: int, span: int) -> None:
    for uniform in (0.0, 0.5, 1 - 2**-53):
        assert low <= position(spread, ordinal, low, low + span, partial(float, uniform)) < low + span


@given(st.integers(0, 9), st.integers(1, 12), st.integers(0, 30), st.integers(0, 45), st.sampled_from(FirstWindow))
@settings(max_examples=examples(1000))
def test_a_window_offers_its_limit_in_proportion_to_the_instants_that_may_be_used(
    limit: int, size: int, effective: int, delay: int, first: FirstWindow
) -> None:
    start = align(effective, size)
    horizon = effective + delay
    for window in range(start, horizon + 1, size):
        instants = [at for at in range(window, window + size) if effective <= at <= horizon]
        counted = [at for at in range(window, window + size) if at <= horizon]
        if first is FirstWindow.PROPORTIONAL:
            counted = instants
        capacity = limit * len(counted) // size
        if window == start and capacity == 0:
            # Without a horizon it would hold one: else such a policy would never book anything.
            whole = size if first is FirstWindow.WHOLE else window + size - effective
            capacity = min(1, limit * whole // size)
        part = usable(limit, size, window, effective, horizon, first)
        assert part == Usable(capacity, instants[0], instants[-1] + 1)


@pytest.mark.parametrize(
    ("effective", "horizon", "first", "expected"),
    [
        (1000, 1010, FirstWindow.PROPORTIONAL, (1, 1000, 1011)),
        (1500, 1510, FirstWindow.PROPORTIONAL, (1, 1500, 1511)),
        (1900, 1910, FirstWindow.PROPORTIONAL, (0, 1900, 1911)),
        (1900, 1910, FirstWindow.WHOLE, (1, 1900, 1911)),
        (500, 1010, FirstWindow.PROPORTIONAL, (0, 1000, 1011)),
        (500, 1999, FirstWindow.PROPORTIONAL, (2, 1000, 2000)),
        (500, 2000, FirstWindow.PROPORTIONAL, (2, 1000, 2000)),
        (500, 1998, FirstWindow.PROPORTIONAL, (1, 1000, 1999)),
    ],
)
def test_the_horizon_cuts_a_window(
    effective: int, horizon: int, first: FirstWindow, expected: tuple[int, int, int]
) -> None:
    assert usable(2, 1000, 1000, effective, horizon, first) == expected


def test_jitter_is_drawn_and_an_even_place_is_not() -> None:
    drawn = iter([0.25, 0.5, 0.999])
    assert [position(Spread.JITTER, 7, 1000, 2000, drawn.__next__) for _ in range(3)] == [1250, 1500, 1999]
    assert [position(Spread.EVEN, ordinal, 1000, 2000, drawn.__next__) for ordinal in range(3)] == [1000, 1618, 1236]


@given(st.sampled_from(Spread), st.integers(0, 1000), st.integers(0, 8), st.integers(0, 10**12), st.integers(1, 10**6))
def test_several_positions_are_those_of_one_after_another(
    spread: Spread, ordinal: int, count: int, low: int, span: int
) -> None:
    one, many = Random(7).random, Random(7).random
    expected = [position(spread, ordinal + number, low, low + span, one) for number in range(count)]
    assert positions(spread, ordinal, count, low, low + span, many) == expected
