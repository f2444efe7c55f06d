"""Buckets, percentiles and lines."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.server.rollups.history import RANGES, History, step_of
from paceline.server.rollups.model import (
    BOUNDS,
    COARSE,
    ITEMS_BACKLOG,
    ITEMS_COMPLETED,
    ITEMS_SECONDS,
    MINUTE,
    Counts,
    Key,
    Period,
    bucket_of,
    merge,
    percentile,
)


@given(st.lists(st.floats(0.0005, 4000), min_size=1, max_size=200), st.sampled_from([0.5, 0.95, 0.99]))
def test_a_percentile_is_right_to_within_its_bucket(durations: list[float], share: float) -> None:
    buckets: dict[int, int] = {}
    for seconds in durations:
        buckets[bucket_of(seconds)] = buckets.get(bucket_of(seconds), 0) + 1
    exact = sorted(durations)[max(0, -(-int(share * 100) * len(durations) // 100) - 1)]
    estimated = percentile(buckets, share)
    assert estimated is not None
    bucket = bucket_of(exact)
    lower = BOUNDS[bucket - 1] if bucket else 0.0
    assert lower <= estimated <= BOUNDS[min(bucket, len(BOUNDS) - 1)] * 1.000001


def test_the_percentile_of_nothing_is_none_and_of_an_endless_one_the_last_bound() -> None:
    assert percentile({}, 0.5) is None
    assert percentile({bucket_of(1e6): 3}, 0.5) == BOUNDS[-1]


@given(st.lists(st.tuples(st.sampled_from([ITEMS_COMPLETED, ITEMS_BACKLOG]), st.integers(0, 99)), max_size=20))
def test_merging_does_not_depend_on_the_order(parts: list[tuple[str, int]]) -> None:
    counts: list[Counts] = [{Key(series, "PAYMENT"): value} for series, value in parts]
    shuffled = random.Random(1).sample(counts, len(counts))
    first: Counts = {}
    second: Counts = {}
    for each, other in zip(counts, shuffled, strict=True):
        merge(first, each)
        merge(second, other)
    assert first == second


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
