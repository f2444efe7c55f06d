"""Alignment, proportional capacity, spread, occupancy."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.durations import LATEST_MS
from paceline.errors import ConfigurationError, InvalidInput
from paceline.slots.model import SlotRequest, Spread, WindowPolicy, checked_id
from paceline.slots.occupancy import FullRun, RunChanges, joined_runs, split_run
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


def test_runs_join_on_both_sides() -> None:
    stored = [FullRun(0, 10), FullRun(20, 30), FullRun(40, 50)]
    changes = joined_runs(
        [FullRun(10, 20), FullRun(30, 40)],
        ending_at=lambda at: next((run for run in stored if run.resume_ms == at), None),
        starting_at=lambda at: next((run for run in stored if run.start_ms == at), None),
    )
    assert changes == RunChanges([0, 20, 40], [FullRun(0, 50)])


def test_a_run_splits_where_room_appears() -> None:
    assert split_run(FullRun(0, 30), 10, 20) == [FullRun(0, 10), FullRun(20, 30)]
    assert split_run(FullRun(0, 30), 0, 10) == [FullRun(10, 30)]
    assert split_run(FullRun(0, 30), 20, 30) == [FullRun(0, 20)]
    assert split_run(FullRun(0, 10), 0, 10) == []


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"max_per_window": 0}, "max_per_window"),
        ({"max_per_window": -1}, "max_per_window"),
        ({"max_per_window": True}, "max_per_window"),
        ({"max_per_window": 1.5}, "max_per_window"),
        ({"max_per_window": 2**31}, "max_per_window"),
        ({"window": "4 seconds"}, "window"),
        ({"window": "PT0S"}, "window"),
        ({"window": "PT0.009S"}, "window"),
        ({"window": "PT0.0105S"}, "window"),
        ({"window": "P367D"}, "window"),
        ({"window": 4}, "window"),
        ({"spread": "clumped"}, "spread"),
        ({"max_delay": "soon"}, "max_delay"),
        ({"calendar": {"zone": "nowhere"}}, "calendar.zone"),
    ],
)
def test_a_policy_that_can_not_work_is_refused_by_field(arguments: dict[str, object], field: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        WindowPolicy(**{"max_per_window": 100, "window": "PT4S", **arguments})  # type: ignore[arg-type]
    assert refusal.value.field == field


@pytest.mark.parametrize("event_id", ["", "x" * 256, "a\nb", "a\x00", "\ud800", None, 7])
def test_an_id_must_be_a_printable_text_of_at_most_255(event_id: object) -> None:
    with pytest.raises(InvalidInput, match="event_id"):
        checked_id(event_id)


def test_a_request_is_rounded_up_to_the_millisecond() -> None:
    assert SlotRequest.of("e", "2027-03-01T16:00:00.0001Z").requested_ms % 1000 == 1
