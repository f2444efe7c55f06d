"""Re-plan: which booked slots move where when a limit was raised, or lowered. Pure, given a view of the windows.

Slots keep the order of their times. To make room inside a window, the places of those that come are added to the
places of those that are there, and all of them are given out again in order: of a larger set, the n-th place lies no
later than before, so nobody moves the wrong way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import NamedTuple

from headgate.durations import LATEST_MS
from headgate.slots.carriers import SlotMove
from headgate.slots.model import AssignedSlot, WindowPolicy
from headgate.slots.occupancy import FullRun, Occupancy, RunChanges, split_run
from headgate.slots.windows import align, position, usable

Uniform = Callable[[], float]


class Direction(StrEnum):
    """Which way slots may move."""

    EARLIER = "earlier"
    """Into free places before their own: after a raise, or when others were cancelled."""
    SPREAD = "spread"
    """What is over the limit of its window goes to later ones: after the limit was lowered."""


class Candidate(NamedTuple):
    """A slot in the order of scheduled times; one that may not move stands in its place."""

    slot: AssignedSlot
    may_move: bool = True
    created_ms: int = 0
    """When it was booked: its horizon counts from then, if that was after the requested time."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Where slots may move to."""

    policy: WindowPolicy
    earliest_ms: int
    """No slot that lies before it moves, and none moves before it."""

    def effective(self, slot: AssignedSlot) -> int:
        return max(slot.requested_ms, self.earliest_ms)

    def capacity(self, start_ms: int, effective_ms: int) -> int:
        """What a window offers to a slot, as booking has it."""
        policy = self.policy
        if start_ms >= effective_ms:
            return policy.max_per_window
        size = policy.size_ms
        return usable(
            policy.max_per_window, size, start_ms, effective_ms, start_ms + size - 1, policy.first_window
        ).capacity


class Assignment(NamedTuple):
    """The window that a candidate is to lie in."""

    candidate: Candidate
    window_ms: int


class Counts:
    """How full the windows are, with the changes of a plan on top."""

    def __init__(self, occupancy: Occupancy) -> None:
        self.occupancy = occupancy
        self._taken: dict[int, int] = {}

    def taken(self, start_ms: int) -> int:
        taken = self._taken.get(start_ms)
        if taken is None:
            taken = self._taken[start_ms] = self.occupancy.taken(start_ms)
        return taken

    def move(self, from_ms: int, to_ms: int) -> None:
        self._taken[from_ms] = self.taken(from_ms) - 1
        self._taken[to_ms] = self.taken(to_ms) + 1


def assign_earlier(limits: Limits, candidates: Iterable[Candidate], counts: Counts) -> list[Assignment]:
    """The window of each candidate, in order: the earliest one with room that keeps the order, or its own."""
    policy, earliest = limits.policy, limits.earliest_ms
    size = policy.size_ms
    assignments: list[Assignment] = []
    reached = 0
    for candidate in candidates:
        slot = candidate.slot
        own = start = slot.scheduled_ms - slot.scheduled_ms % size
        if candidate.may_move and slot.scheduled_ms >= earliest and own > reached:
            effective = slot.requested_ms if slot.requested_ms > earliest else earliest
            start = policy.next_open(max(effective - effective % size, reached))
            while start < own and counts.taken(start) >= limits.capacity(start, effective):
                start = policy.next_open(start + size)
            if start < own:
                counts.move(own, start)
            else:
                start = own
        assignments.append(Assignment(candidate, start))
        reached = start
    return assignments


def assign_spread(limits: Limits, candidates: Sequence[Candidate], counts: Counts) -> list[Assignment]:
    """The window of each candidate, in order: its own while that is within the limit, or the next one that is.

    A slot stays if no window before its horizon has room.
    """
    policy = limits.policy
    size, limit = policy.size_ms, policy.max_per_window
    moving = [candidate.may_move and candidate.slot.scheduled_ms >= limits.earliest_ms for candidate in candidates]
    held: dict[int, int] = {}  # by window: slots that do not move, then those that are assigned to it
    for candidate, may_move in zip(candidates, moving, strict=True):
        own = align(candidate.slot.scheduled_ms, size)
        if own not in held:
            held[own] = counts.taken(own)
        held[own] -= may_move
    assignments: list[Assignment] = []
    reached = 0
    for candidate, may_move in zip(candidates, moving, strict=True):
        own = align(candidate.slot.scheduled_ms, size)
        start = own
        if may_move:
            start = max(own, reached)
            # A window that the calendar has closed since keeps what it has; nothing new comes into it.
            while _held(held, counts, start) >= limit or (start != own and policy.next_open(start) != start):
                start = policy.next_open(start + size)
                if start >= LATEST_MS:
                    break
            if start + size - 1 > _horizon(policy, candidate) and start != own:
                start = own
            else:
                reached = start
            held[start] = _held(held, counts, start) + 1
        assignments.append(Assignment(candidate, start))
    return assignments


def _held(held: dict[int, int], counts: Counts, start_ms: int) -> int:
    known = held.get(start_ms)
    return counts.taken(start_ms) if known is None else known


def _horizon(policy: WindowPolicy, candidate: Candidate) -> int:
    if policy.max_delay_ms is None:
        return LATEST_MS - 1
    return max(candidate.slot.requested_ms, candidate.created_ms) + policy.max_delay_ms


class Placement(NamedTuple):
    """Moves in order, and what each changed window held before them."""

    moves: list[SlotMove]
    before: dict[int, int]


def place(
    limits: Limits,
    assignments: Sequence[Assignment],
    occupancy: Occupancy,
    uniform: Uniform,
    floor_ms: int = 0,
) -> Placement:
    """The moves that bring slots into their windows. `occupancy` gets the changed counts. Slots before `floor_ms` are
    not among the assignments, and nobody overtakes them."""
    moves: list[SlotMove] = []
    before: dict[int, int] = {}
    size, spread = limits.policy.size_ms, limits.policy.spread
    ordered = sorted(assignments, key=lambda assignment: assignment.window_ms)
    for window, group in groupby(ordered, key=lambda assignment: assignment.window_ms):
        members = [assignment.candidate for assignment in group]
        owns = [align(member.slot.scheduled_ms, size) for member in members]
        if all(own == window for own in owns):
            continue
        barrier = max(floor_ms, _barrier(members, owns, window))
        places = [member.slot.scheduled_ms for member, own in zip(members, owns, strict=True) if own == window]
        before.setdefault(window, occupancy.taken(window))
        for member, own in zip(members, owns, strict=True):
            if own != window:
                before.setdefault(own, occupancy.taken(own))
                occupancy.release(own)
                low = max(window, limits.effective(member.slot), barrier)
                places.append(position(spread, occupancy.take(window), low, window + size, uniform))
        moves += _in_order(limits, window, members, sorted(places))
    return Placement(moves, before)


def _barrier(members: Sequence[Candidate], owns: Sequence[int], window: int) -> int:
    """The latest slot in the window that may not move and stands before all that come from later windows."""
    if owns[-1] <= window:
        return 0
    return max((member.slot.scheduled_ms for member in members if not member.may_move), default=0)


def _in_order(limits: Limits, window: int, members: Sequence[Candidate], places: Sequence[int]) -> list[SlotMove]:
    """Gives places to the members of a window, in order; none before its effective time."""
    moves: list[SlotMove] = []
    last = 0
    for (slot, may_move, _), place in zip(members, places, strict=True):
        if not may_move or slot.scheduled_ms < limits.earliest_ms:
            last = max(last, slot.scheduled_ms)
            continue
        last = max(last, place, limits.effective(slot))
        if last != slot.scheduled_ms:
            moves.append(SlotMove(slot, window, last))
    return moves


def rejoined_runs(
    policy: WindowPolicy, before: dict[int, int], occupancy: Occupancy, stored: Iterable[FullRun]
) -> RunChanges:
    """The runs to remove and write after windows were filled and emptied. `before` has the changed windows with what
    they held, `stored` every run that contains one of them, ends at one, or starts right behind one."""
    limit = policy.max_per_window
    open_windows = [start for start in sorted(before) if policy.next_open(start) == start]
    filled = [start for start in open_windows if before[start] < limit <= occupancy.taken(start)]
    opened = [start for start in open_windows if before[start] >= limit > occupancy.taken(start)]
    if not filled and not opened:
        return RunChanges([], [])
    old = sorted(set(stored))
    runs = list(old)
    for start in opened:
        following = policy.next_open(start + policy.size_ms)
        runs = [
            part
            for run in runs
            for part in (split_run(run, start, following) if run.start_ms <= start < run.resume_ms else [run])
        ]
    runs += [FullRun(start, policy.next_open(start + policy.size_ms)) for start in filled]
    joined: list[FullRun] = []
    for run in sorted(runs):
        if joined and joined[-1].resume_ms == run.start_ms:
            joined[-1] = FullRun(joined[-1].start_ms, run.resume_ms)
        else:
            joined.append(run)
    kept = set(old) & set(joined)
    return RunChanges([run.start_ms for run in old if run not in kept], [run for run in joined if run not in kept])
