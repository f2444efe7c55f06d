"""Re-plan: which windows booked slots move to when a limit was raised, or lowered. Pure, given a view of the windows.

Slots keep the order of their times within the config that is re-planned. A slot under several configs moves to the
first instant that all of them admit; where it keeps a window, it needs no room there. `replan_places` gives the slots
their times inside these windows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import NamedTuple

from paceline.durations import LATEST_MS
from paceline.errors import Conflict
from paceline.slots.model import AssignedSlot, PolicyVersion, WindowPolicy
from paceline.slots.occupancy import Occupancy
from paceline.slots.windows import align, usable


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

    def may_move(self, candidate: Candidate) -> bool:
        return candidate.may_move and candidate.slot.scheduled_ms >= self.earliest_ms


class PlannedConfig:
    """A config whose windows a re-plan changes."""

    def __init__(self, active: PolicyVersion, occupancy: Occupancy) -> None:
        self.active = active
        self.policy = active.policy
        self.occupancy = occupancy
        self.before: dict[int, int] = {}
        """What each changed window held before the plan."""

    def own(self, slot: AssignedSlot) -> int:
        """The window that a slot is charged in, whatever the windows' size was when it was booked."""
        return align(slot.scheduled_ms, self.policy.size_ms)

    def shift(self, from_ms: int, to_ms: int, slots: int = 1) -> int:
        """Moves slots to another window and returns the first one's ordinal there.

        Raises:
            Conflict: the window is empty: they were moved or cancelled since they were read.
        """
        occupancy, before = self.occupancy, self.before
        if to_ms not in before:
            before[to_ms] = occupancy.taken(to_ms)
        if from_ms not in before:
            before[from_ms] = occupancy.taken(from_ms)
            if not before[from_ms]:
                raise Conflict
        occupancy.release(from_ms, slots)
        return occupancy.take(to_ms, slots)


Others = Mapping[str, PlannedConfig]
"""The further configs of slots that may move, by name."""
NO_OTHERS: Others = {}


class Assignment(NamedTuple):
    """The window that a candidate is to lie in."""

    candidate: Candidate
    window_ms: int
    starts_ms: tuple[int, ...] = ()
    """Of a slot under several configs that may move: the window of each, in the order in which they were named."""


def capacity(policy: WindowPolicy, start_ms: int, effective_ms: int) -> int:
    """What a window offers to a slot, as booking has it."""
    limit = policy.limit_at(start_ms)
    if start_ms >= effective_ms:
        return limit
    end_ms = start_ms + policy.size_ms
    return usable(limit, policy.size_ms, start_ms, effective_ms, end_ms - 1, policy.first_window).capacity


class Counts:
    """How full the windows of a config are, with the changes of a plan on top. Slots are moved in the order of their
    times."""

    def __init__(self, config: PlannedConfig) -> None:
        self.config = config
        self.policy = config.policy
        self._occupancy = config.occupancy
        self._taken: dict[int, int] = {}
        self._left: list[int] = []
        """The windows that slots have left, in order."""

    def taken(self, start_ms: int) -> int:
        taken = self._taken.get(start_ms)
        if taken is None:
            taken = self._taken[start_ms] = self._occupancy.taken(start_ms)
        return taken

    def leave(self, start_ms: int) -> None:
        """A slot leaves its window."""
        self._taken[start_ms] = self.taken(start_ms) - 1
        if not self._left or self._left[-1] < start_ms:
            self._left.append(start_ms)

    def enter(self, start_ms: int) -> None:
        self._taken[start_ms] = self.taken(start_ms) + 1

    def shift(self, from_ms: int, to_ms: int) -> None:
        """A slot leaves its window and enters another, which was looked at before."""
        taken = self._taken
        taken[to_ms] += 1
        if from_ms in taken and self._left and self._left[-1] == from_ms:
            taken[from_ms] -= 1
        else:
            self.leave(from_ms)

    def is_full(self, start_ms: int) -> bool:
        return self.taken(start_ms) >= self.policy.limit_at(start_ms)

    def admitting(self, own_ms: int | None, effective_ms: int, at_ms: int) -> int:
        """The first open window that ends after `at_ms` and has room for a slot, or is the slot's own; `LATEST_MS` if
        there is none."""
        policy = self.policy
        start = align(at_ms, policy.size_ms)
        following = policy.next_open(start)
        if following == start:
            if start == own_ms or self.taken(start) < capacity(policy, start, effective_ms):
                return start
            following = policy.next_open(start + policy.size_ms)
        free = self._first_free(following)
        if own_ms is not None and following <= own_ms < free and policy.next_open(own_ms) == own_ms:
            return own_ms
        return free

    def _first_free(self, start_ms: int) -> int:
        """The first open window at or after `start_ms` (itself open) that is not full by the plan."""
        policy, at = self.policy, start_ms
        while at < LATEST_MS:
            stored = self._occupancy.first_free(at)
            # What is full in the store may have room by the plan, and the other way round.
            for index in range(bisect_left(self._left, at), len(self._left)):
                left = self._left[index]
                if left >= stored:
                    break
                if not self.is_full(left) and policy.next_open(left) == left:
                    return left
            if stored >= LATEST_MS or not self.is_full(stored):
                return stored
            at = policy.next_open(stored + policy.size_ms)
        return LATEST_MS


class JointCounts:
    """The counts of every config that a plan may change."""

    def __init__(self, counts: Counts, others: Others) -> None:
        self._others = others
        self._by_name = {counts.config.active.name: counts}

    def of(self, slot: AssignedSlot) -> list[Counts]:
        """Those of a slot's configs, in the order in which they were named."""
        for name in slot.config_names:
            if name not in self._by_name:
                self._by_name[name] = Counts(self._others[name])
        return [self._by_name[name] for name in slot.config_names]


def assign_earlier(
    limits: Limits,
    candidates: Iterable[Candidate],
    config: PlannedConfig,
    reached_ms: int,
    others: Others = NO_OTHERS,
) -> list[Assignment]:
    """The window of each candidate, in order: the earliest one with room that keeps the order, or its own. Earlier
    candidates have reached `reached_ms`, and no slot moves before that."""
    policy, earliest = limits.policy, limits.earliest_ms
    size = policy.size_ms
    counts = Counts(config)
    joint = JointCounts(counts, others)
    assignments: list[Assignment] = []
    reached = reached_ms
    aligned, opening = -1, -1  # the last window that was looked up, and the open one from there on
    limited, limit = -1, 0  # the last window whose limit was looked up, and its limit
    for candidate in candidates:
        slot = candidate.slot
        scheduled = slot.scheduled_ms
        own = start = scheduled - scheduled % size
        starts: tuple[int, ...] = ()
        low = scheduled  # no slot moves before one that stays
        if candidate.may_move and scheduled >= earliest:
            effective = slot.requested_ms if slot.requested_ms > earliest else earliest
            if slot.other_windows:
                all_counts = joint.of(slot)
                starts = _earlier_windows(slot, all_counts, effective, max(effective, reached))
                start = starts[all_counts.index(counts)]
                if starts != own_windows(slot, all_counts):
                    low = max(effective, *starts)
            elif own > reached:
                first = effective if effective > reached else reached
                first -= first % size
                if first != aligned:
                    aligned, opening = first, policy.next_open(first)
                start = opening
                while start < own:
                    if start != limited:
                        limited, limit = start, policy.limit_at(start)
                    offered = limit if start >= effective else capacity(policy, start, effective)
                    if counts.taken(start) < offered:
                        break
                    start = policy.next_open(start + size)
                if start < own:
                    counts.shift(own, start)
                    low = effective if effective > start else start
                else:
                    start = own
        assignments.append(Assignment(candidate, start, starts))
        if low > reached:
            reached = low
    return assignments


def own_windows(slot: AssignedSlot, all_counts: Sequence[Counts]) -> tuple[int, ...]:
    return tuple(counts.config.own(slot) for counts in all_counts)


def _earlier_windows(
    slot: AssignedSlot, all_counts: Sequence[Counts], effective_ms: int, at_ms: int
) -> tuple[int, ...]:
    """The windows of the first instant from `at_ms` on that all configs of a slot admit, or its own. Moves it there."""
    owns = own_windows(slot, all_counts)
    finders = [partial(counts.admitting, own, effective_ms) for counts, own in zip(all_counts, owns, strict=True)]
    starts = common_windows(finders, at_ms, slot.scheduled_ms) or owns
    for counts, own, start in zip(all_counts, owns, starts, strict=True):
        if start != own:
            counts.leave(own)
            counts.enter(start)
    return starts


def common_windows(finders: Sequence[Callable[[int], int]], at_ms: int, until_ms: int) -> tuple[int, ...] | None:
    """The windows, one of each config, that hold the first instant of [at, until) that all admit. Each finder returns
    the first window of its config that admits the slot and ends after a time."""
    while at_ms < until_ms:
        starts = tuple(find(at_ms) for find in finders)
        latest = max(starts)
        if latest <= at_ms:
            return starts
        at_ms = latest
    return None
