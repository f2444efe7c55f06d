"""Buckets and percentiles."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from paceline.server.rollups.model import (
    BOUNDS,
    ITEMS_BACKLOG,
    ITEMS_COMPLETED,
    Counts,
    Key,
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
