"""Which later windows the slots over a lowered limit move to: of all ways that keep the order, none leaves fewer above
the limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from itertools import combinations_with_replacement

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.durations import LATEST_MS, from_ms
from paceline.slots.model import AssignedSlot, PolicyVersion, WindowPolicy
from paceline.slots.occupancy import CountedWindows, Occupancy, WindowCount
from paceline.slots.replan.assignment import Candidate, Limits, PlannedConfig
from paceline.slots.replan.spread import assign_spread
from tests.effort import examples

SIZE = 4000
WINDOWS = 6


def planned(policy: WindowPolicy, times: Sequence[int]) -> PlannedConfig:
    counts = Counter(at // SIZE * SIZE for at in times)
    windows = [WindowCount(start, count, count) for start, count in sorted(counts.items())]
    return PlannedConfig(PolicyVersion("c", 2, policy, from_ms(0)), Occupancy(policy, CountedWindows(windows)))


def spread(
    limit: int, delay: int | None, slots: Sequence[tuple[int, bool]], until_ms: int = LATEST_MS
) -> tuple[list[int], list[int]]:
    """Windows before and after, by number. Slots are given by their times and whether they may move; one at `until_ms`
    is not among them."""
    policy = WindowPolicy(limit, "PT4S", max_delay=None if delay is None else timedelta(milliseconds=delay * SIZE))
    ordered = sorted(slots)
    times = [at for at, _ in ordered]
    behind = [until_ms] if until_ms < LATEST_MS else []
    candidates = [
        Candidate(AssignedSlot(f"e{n}", "c", 1, 0, at // SIZE * SIZE, at, True), may_move)
        for n, (at, may_move) in enumerate(ordered)
    ]
    assignments = assign_spread(Limits(policy, 0), candidates, planned(policy, [*times, *behind]), until_ms=until_ms)
    return [at // SIZE for at in times], [assignment.window_ms // SIZE for assignment in assignments]


def over(limit: int, windows: Sequence[int]) -> int:
    return sum(max(0, count - limit) for count in Counter(windows).values())


@settings(max_examples=examples(400))
@given(
    limit=st.integers(1, 3),
    delay=st.one_of(st.none(), st.integers(0, WINDOWS)),
    slots=st.lists(
        st.tuples(st.integers(0, 3 * SIZE), st.sampled_from([True, True, True, False])), min_size=1, max_size=7
    ),
    until=st.one_of(st.just(LATEST_MS), st.integers(3 * SIZE + 1, WINDOWS * SIZE)),
)
def test_no_order_preserving_plan_leaves_fewer_above_the_limit(
    limit: int, delay: int | None, slots: list[tuple[int, bool]], until: int
) -> None:
    before, after = spread(limit, delay, slots, until)
    may_move = [moves for _, moves in sorted(slots)]
    bound = WINDOWS + 6 if until == LATEST_MS else until // SIZE
    outside = [] if until == LATEST_MS else [bound]
    last = bound - 1 if delay is None else min(bound - 1, delay - 1)  # all were requested at 0

    def is_allowed(windows: Sequence[int]) -> bool:
        counts = Counter([*windows, *outside])
        came = {new for old, new in zip(before, windows, strict=True) if new != old}
        stays = {old for old, moves in zip(before, may_move, strict=True) if not moves}
        return all(
            new == old or (moves and old < new <= last and new not in stays)
            for old, new, moves in zip(before, windows, may_move, strict=True)
        ) and all(counts[window] <= limit for window in came)

    assert after == sorted(after), "no slot overtakes another"
    assert is_allowed(after)
    ways = combinations_with_replacement(range(min(before), min(max(last, *before), 9) + 1), len(before))
    best = min(over(limit, [*way, *outside]) for way in ways if is_allowed(way))
    assert over(limit, [*after, *outside]) == best


def test_where_the_horizon_leaves_no_room_the_last_ones_are_spread_and_the_others_stay() -> None:
    before, after = spread(5, 15, [(at * SIZE, True) for at in range(12) for _ in range(10)])
    assert Counter(after) == dict.fromkeys(range(9), 10) | dict.fromkeys(range(9, 15), 5)
    assert before[:90] == after[:90]


@pytest.mark.parametrize("until", [12 * SIZE, 14 * SIZE + 1])
def test_none_goes_past_the_first_slot_behind_the_span(until: int) -> None:
    _, after = spread(5, None, [(at * SIZE, True) for at in range(12) for _ in range(10)], until)
    assert max(after) == until // SIZE - 1


def test_none_overtakes_a_slot_that_may_not_move() -> None:
    before, after = spread(1, None, [(0, True), (1, True), (2, True), (2 * SIZE, False), (3 * SIZE, True)])
    assert (before, after) == ([0, 0, 0, 2, 3], [0, 0, 1, 2, 3])
