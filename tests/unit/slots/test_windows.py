"""Alignment, proportional capacity, spread."""

from __future__ import annotations

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from paceline.durations import LATEST_MS
from paceline.slots.model import Spread
from paceline.slots.windows import align, even_position, position, usable


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
