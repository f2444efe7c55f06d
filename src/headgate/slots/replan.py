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

from headgate.durations import LATEST_MS
from headgate.errors import Conflict
from headgate.slots.joint import SEARCHED_MS
from headgate.slots.model import AssignedSlot, PolicyVersion, WindowPolicy
from headgate.slots.occupancy import Occupancy
from headgate.slots.windows import align, usable


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


class _JointCounts:
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
    joint = _JointCounts(counts, others)
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
                if starts != _own_windows(slot, all_counts):
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


def _own_windows(slot: AssignedSlot, all_counts: Sequence[Counts]) -> tuple[int, ...]:
    return tuple(counts.config.own(slot) for counts in all_counts)


def _earlier_windows(
    slot: AssignedSlot, all_counts: Sequence[Counts], effective_ms: int, at_ms: int
) -> tuple[int, ...]:
    """The windows of the first instant from `at_ms` on that all configs of a slot admit, or its own. Moves it there."""
    owns = _own_windows(slot, all_counts)
    finders = [partial(counts.admitting, own, effective_ms) for counts, own in zip(all_counts, owns, strict=True)]
    starts = _common_windows(finders, at_ms, slot.scheduled_ms) or owns
    for counts, own, start in zip(all_counts, owns, starts, strict=True):
        if start != own:
            counts.leave(own)
            counts.enter(start)
    return starts


def _common_windows(finders: Sequence[Callable[[int], int]], at_ms: int, until_ms: int) -> tuple[int, ...] | None:
    """The windows, one of each config, that hold the first instant of [at, until) that all admit. Each finder returns
    the first window of its config that admits the slot and ends after a time."""
    while at_ms < until_ms:
        starts = tuple(find(at_ms) for find in finders)
        latest = max(starts)
        if latest <= at_ms:
            return starts
        at_ms = latest
    return None


def assign_spread(
    limits: Limits, candidates: Sequence[Candidate], config: PlannedConfig, others: Others = NO_OTHERS
) -> list[Assignment]:
    """The window of each candidate, in order: its own while that is within the limit, or the next one that is.

    A slot stays if no window before its horizon has room.
    """
    spread = _Spread(limits, candidates, config, others)
    return [spread.assign(candidate) for candidate in candidates]


class _Spread:
    """Assigns one candidate after another. All that may move leave their windows first, and enter one when they are
    assigned: a slot that is assigned later makes room for those before it."""

    def __init__(self, limits: Limits, candidates: Sequence[Candidate], config: PlannedConfig, others: Others) -> None:
        self._limits = limits
        self._policy = limits.policy
        self._counts = Counts(config)
        self._joint = _JointCounts(self._counts, others)
        self._reached = 0
        self._apart: set[tuple[str, ...]] = set()
        """Sets of configs that have no common instant any more."""
        self._entered: set[tuple[str, int]] = set()
        """Windows of further configs that slots from elsewhere were assigned to."""
        for candidate in filter(limits.may_move, candidates):
            slot = candidate.slot
            for counts in self._joint.of(slot) if slot.other_windows else (self._counts,):
                counts.leave(counts.config.own(slot))

    def assign(self, candidate: Candidate) -> Assignment:
        slot = candidate.slot
        own = self._counts.config.own(slot)
        if not self._limits.may_move(candidate):
            return Assignment(candidate, own)
        if not slot.other_windows:
            start = self._later_window(candidate, own)
            self._counts.enter(start)
            return Assignment(candidate, start)
        all_counts = self._joint.of(slot)
        owns = _own_windows(slot, all_counts)
        starts = self._later_windows(candidate, owns, all_counts)
        for counts, own, start in zip(all_counts, owns, starts, strict=True):
            counts.enter(start)
            if start != own:
                self._entered.add((counts.config.active.name, start))
        return Assignment(candidate, starts[all_counts.index(self._counts)], starts)

    def _later_window(self, candidate: Candidate, own_ms: int) -> int:
        start = max(own_ms, align(self._reached, self._policy.size_ms))
        if start != own_ms or self._counts.is_full(own_ms):
            start = self._with_room(start)
            if start >= LATEST_MS or _is_beyond(self._policy, candidate, start):
                return own_ms
        self._reached = max(self._reached, start)
        return start

    def _later_windows(
        self, candidate: Candidate, owns: tuple[int, ...], all_counts: Sequence[Counts]
    ) -> tuple[int, ...]:
        kept = [self._kept(counts, own) for counts, own in zip(all_counts, owns, strict=True)]
        end = min(own + counts.policy.size_ms for own, counts in zip(owns, all_counts, strict=True))
        starts = owns
        if end <= self._reached or None in kept:
            common = self._common(candidate.slot, kept, all_counts)
            if common is None or any(
                start != own and _is_beyond(counts.policy, candidate, start)
                for counts, own, start in zip(all_counts, owns, common, strict=True)
            ):
                return owns
            starts = common
        self._reached = max(self._reached, *starts)
        return starts

    def _kept(self, counts: Counts, own_ms: int) -> int | None:
        """A slot's own window, if the slot may stay there. In a further config it may, however full the window is,
        unless others have come."""
        may_be_full = counts is not self._counts and (counts.config.active.name, own_ms) not in self._entered
        return own_ms if may_be_full or not counts.is_full(own_ms) else None

    def _common(
        self, slot: AssignedSlot, kept: Sequence[int | None], all_counts: Sequence[Counts]
    ) -> tuple[int, ...] | None:
        if slot.config_names in self._apart:
            return None
        finders = [
            self._with_room if counts is self._counts else partial(counts.admitting, own, slot.requested_ms)
            for counts, own in zip(all_counts, kept, strict=True)
        ]
        at = max(slot.scheduled_ms, self._reached)
        starts = _common_windows(finders, at, at + SEARCHED_MS)
        if starts is None:
            self._apart.add(slot.config_names)
        return starts

    def _with_room(self, at_ms: int) -> int:
        """The first open window that ends after a time and is below its limit."""
        policy = self._policy
        start = policy.next_open(align(at_ms, policy.size_ms))
        while start < LATEST_MS and self._counts.is_full(start):
            start = policy.next_open(start + policy.size_ms)
        return start


def _is_beyond(policy: WindowPolicy, candidate: Candidate, start_ms: int) -> bool:
    """Whether a window reaches past a slot's horizon."""
    if policy.max_delay_ms is None:
        return False
    horizon = max(candidate.slot.requested_ms, candidate.created_ms) + policy.max_delay_ms
    return start_ms + policy.size_ms - 1 > horizon
