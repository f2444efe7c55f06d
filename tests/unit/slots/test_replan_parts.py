"""Pulling slots forward: a page is placed part by part, with the same result as at once."""

from __future__ import annotations

from datetime import UTC, datetime
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from paceline.slots import replan_parts
from paceline.slots.model import AssignedSlot, PolicyVersion, WindowPolicy
from paceline.slots.occupancy import CountedWindows, Occupancy, WindowCount
from paceline.slots.replan import Candidate, Limits, PlannedConfig
from paceline.slots.replan_parts import Part, Puller, Reading

SIZE_MS = 1000
AFTER = PolicyVersion("mail", 2, WindowPolicy(5, "PT1S"), datetime(2026, 1, 1, tzinfo=UTC))
Booked = list[tuple[int, int, bool]]
"""Of each slot: its time, by how much earlier it was requested, and whether it may move."""


def _pulled(booked: Booked, pages: int, part: int) -> tuple[list[Part], Reading, dict[int, int]]:
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
    with patch.object(replan_parts, "PART", part):
        parts = [
            some
            for first in range(0, len(candidates), size)
            for some in puller.parts(candidates[first : first + size], is_last=first + size >= len(candidates))
        ]
    return parts, puller.reading, {start: occupancy.taken(start) for start in range(0, 20_000, SIZE_MS)}


def _joined(parts: list[Part]) -> Part:
    return Part([slot for part in parts for slot in part.examined], [move for part in parts for move in part.moves])


@given(
    st.lists(st.tuples(st.integers(0, 19_999), st.integers(0, 9000), st.booleans()), min_size=1, max_size=60),
    st.integers(1, 3),
)
def test_parts_of_some_windows_are_the_same_as_all_at_once(booked: Booked, pages: int) -> None:
    in_parts, reading, taken = _pulled(booked, pages, 1)
    at_once, whole_reading, whole_taken = _pulled(booked, pages, 1000)
    assert _joined(in_parts) == _joined(at_once)
    assert (reading, taken) == (whole_reading, whole_taken)


def test_a_part_ends_with_a_window() -> None:
    booked = [(1000 * (number // 2), 60_000, True) for number in range(40)]
    parts, _, taken = _pulled([(at, at, may_move) for at, _, may_move in booked], 1, 8)
    assert [len(part.examined) for part in parts] == [10, 10, 10, 10]
    assert [count for count in taken.values() if count] == [5] * 8
