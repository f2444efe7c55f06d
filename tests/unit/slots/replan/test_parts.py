"""Pulling slots forward, page by page."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from paceline.slots.model import AssignedSlot, PolicyVersion, WindowPolicy
from paceline.slots.occupancy import CountedWindows, Occupancy, WindowCount
from paceline.slots.replan.assignment import Candidate, Limits, PlannedConfig
from paceline.slots.replan.parts import Part, Puller, Reading

SIZE_MS = 1000
AFTER = PolicyVersion("mail", 2, WindowPolicy(5, "PT1S"), datetime(2026, 1, 1, tzinfo=UTC))
Booked = list[tuple[int, int, bool]]
"""Of each slot: its time, by how much earlier it was requested, and whether it may move."""


def _pulled(booked: Booked, pages: int) -> tuple[list[Part], dict[int, int]]:
    """The decided slots of each page, and what the windows hold then."""
    candidates = [
        Candidate(AssignedSlot(f"mail-{number:03}", "mail", 1, at - early, 0, at), may_move)
        for number, (at, early, may_move) in enumerate(sorted(booked))
    ]
    starts = [candidate.slot.scheduled_ms // SIZE_MS * SIZE_MS for candidate in candidates]
    windows = [WindowCount(start, starts.count(start), starts.count(start)) for start in sorted(set(starts))]
    occupancy = Occupancy(AFTER.policy, CountedWindows(windows))
    occupancy.learn_windows(0, windows, len(windows) + 1)
    puller = Puller(Limits(AFTER.policy, 0), PlannedConfig(AFTER, occupancy), Reading(0))
    size = -(-len(candidates) // pages)
    parts = [
        puller.pull(candidates[first : first + size], is_last=first + size >= len(candidates))
        for first in range(0, len(candidates), size)
    ]
    return parts, {start: occupancy.taken(start) for start in range(0, 20_000, SIZE_MS)}


@given(
    st.lists(st.tuples(st.integers(0, 19_999), st.integers(0, 9000), st.booleans()), min_size=1, max_size=60),
    st.integers(1, 4),
)
def test_each_slot_is_decided_once_and_moves_earlier_in_order(booked: Booked, pages: int) -> None:
    parts, taken = _pulled(booked, pages)
    examined = [slot for part in parts for slot in part.examined]
    assert [slot.event_id for slot in examined] == [f"mail-{number:03}" for number in range(len(booked))]
    moved = {move.slot.event_id: move for part in parts for move in part.moves}
    times = [moved[slot.event_id].scheduled_ms if slot.event_id in moved else slot.scheduled_ms for slot in examined]
    assert times == sorted(times)
    for slot, at, (_, early, may_move) in zip(examined, times, sorted(booked), strict=True):
        assert slot.scheduled_ms - (early if may_move else 0) <= at <= slot.scheduled_ms
    before = [slot.scheduled_ms // SIZE_MS * SIZE_MS for slot in examined]
    assert taken == {start: [at // SIZE_MS * SIZE_MS for at in times].count(start) for start in taken}
    assert all(count <= max(5, before.count(start)) for start, count in taken.items())


def test_a_page_ends_with_a_window_that_no_more_slots_can_come_into() -> None:
    booked = [(1000 * (number // 2), 60_000, True) for number in range(40)]
    parts, taken = _pulled([(at, at, may_move) for at, _, may_move in booked], 5)
    assert [len(part.examined) for part in parts] == [5, 10, 5, 10, 10]
    assert [count for count in taken.values() if count] == [5] * 8
