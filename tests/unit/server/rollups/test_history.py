"""Buckets, percentiles and lines."""

from __future__ import annotations

import pytest

from paceline.server.rollups.history import RANGES, History, step_of
from paceline.server.rollups.model import (
    COARSE,
    ITEMS_BACKLOG,
    ITEMS_COMPLETED,
    ITEMS_SECONDS,
    MINUTE,
    OTHER,
    SLOTS_BOOKED,
    SLOTS_REFUSED,
    Counts,
    Key,
    Period,
    bucket_of,
)


@pytest.mark.parametrize("seconds", RANGES.values())
def test_a_range_ends_with_the_period_that_goes_on(seconds: int) -> None:
    now, step = 1_803_902_433.5, step_of(seconds)
    history = History.of({}, step, seconds, now)
    assert len(history.times) == seconds // step <= 1008
    assert history.times[-1] <= now < history.times[-1] + step


def test_lines_have_zeros_where_nothing_was_counted_and_gaps_where_nobody_measured() -> None:
    now = 1_803_902_400
    at: dict[Period, Counts] = {
        Period(MINUTE, now - 60): {Key(ITEMS_COMPLETED, "B"): 2, Key(ITEMS_BACKLOG, "A"): 0},
        Period(MINUTE, now): {Key(ITEMS_SECONDS, "A", bucket_of(0.1)): 9},
    }
    history = History.of(at, MINUTE, 180, now)
    assert history.labels(ITEMS_COMPLETED, ITEMS_BACKLOG) == ["A", "B"]
    assert history.values(ITEMS_COMPLETED, "B") == history.sums(ITEMS_COMPLETED) == [0, 2, 0]
    assert history.measurements(ITEMS_BACKLOG, "A") == [None, 0, None]
    [p50] = history.percentiles(ITEMS_SECONDS, "A", 0.5)
    assert p50[:2] == [None, None]
    assert p50[2] == pytest.approx(0.1, rel=0.42)
    assert step_of(86_400) == COARSE


def test_of_many_labels_the_busiest_stand_alone_and_the_others_together() -> None:
    now = 1_803_902_400
    at: dict[Period, Counts] = {
        Period(MINUTE, now - 60): {Key(SLOTS_BOOKED, f"c{n}"): n for n in range(1000)},
        Period(MINUTE, now): {
            Key(SLOTS_BOOKED, "c999"): 1,
            Key(SLOTS_REFUSED, "c0"): 5000,
            Key(ITEMS_COMPLETED, "T"): 1,
        },
    }
    folded = History.of(at, MINUTE, 120, now).folded(2, SLOTS_BOOKED, SLOTS_REFUSED)
    assert folded.labels(SLOTS_BOOKED, SLOTS_REFUSED) == [OTHER, "c0", "c999"]
    assert folded.values(SLOTS_BOOKED, "c999") == [999, 1]
    assert folded.values(SLOTS_REFUSED, "c0") == [0, 5000]
    assert folded.values(SLOTS_BOOKED, OTHER) == [sum(range(999)), 0]
    assert folded.labels(ITEMS_COMPLETED) == []
