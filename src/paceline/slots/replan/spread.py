"""Re-plan after a limit was lowered: which later windows the slots over the limit move to. Pure, given a view of the
windows.

No slot overtakes another. A slot that finds no room before its horizon stays, above the limit, and those before it go
only to windows before its own; the same holds for a slot that may not move. Which slots must stay is found from the
last one back: each is given the last window that it could have, and one that gets none stays. The others then fit, and
each goes to the first window with room.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

from paceline.durations import LATEST_MS
from paceline.slots.booking.packer import SEARCHED_MS
from paceline.slots.model import AssignedSlot, WindowPolicy
from paceline.slots.replan.assignment import (
    NO_OTHERS,
    Assignment,
    Candidate,
    Counts,
    JointCounts,
    Limits,
    Others,
    PlannedConfig,
    common_windows,
    own_windows,
)
from paceline.slots.windows import align

CAREFUL = 2
"""Plans in which single slots are found that must stay. After that, all before them stay too."""


def assign_spread(
    limits: Limits,
    candidates: Sequence[Candidate],
    config: PlannedConfig,
    others: Others = NO_OTHERS,
    until_ms: int = LATEST_MS,
) -> list[Assignment]:
    """The window of each candidate, in order: its own while that is within the limit, or the next one that is. At
    `until_ms` lies the first slot that is not among the candidates: none overtakes it.

    A slot stays if no window before its horizon has room.
    """
    held: set[int] = set()
    plans = 0
    while True:
        spread = _Spread(limits, candidates, config, others, held, until_ms)
        assignments = spread.assign_all()
        if not spread.blocked:
            return assignments
        if plans == 0:
            held = _without_room(limits, candidates, config, others, until_ms, spread.farthest)
        elif plans <= CAREFUL:
            held.update(spread.blocked)
        else:
            held.update(range(spread.blocked[-1] + 1))
        plans += 1


class _Spread:
    """Assigns one candidate after another. All that may move leave their windows first, and enter one when they are
    assigned: a slot that is assigned later makes room for those before it. Those that are held stay."""

    def __init__(
        self,
        limits: Limits,
        candidates: Sequence[Candidate],
        config: PlannedConfig,
        others: Others,
        held: Collection[int],
        until_ms: int,
    ) -> None:
        self._limits = limits
        self._policy = limits.policy
        self._candidates = candidates
        self._counts = Counts(config)
        self._joint = JointCounts(self._counts, others)
        self._held = held
        self._reached = 0
        self._apart: set[tuple[str, ...]] = set()
        """Sets of configs that have no common instant any more."""
        self._entered: set[tuple[str, int]] = set()
        """Windows of further configs that slots from elsewhere were assigned to."""
        self._bounds = _bounds(limits, candidates, held, until_ms)
        self.blocked: list[int] = []
        """Those that found no room."""
        self.farthest = 0
        """The last window that was looked at for one of them."""
        for index, candidate in enumerate(candidates):
            if limits.may_move(candidate):
                slot = candidate.slot
                # One that is held stays in its window, into which no other comes; of further configs that is not known.
                joint = slot.other_windows and index not in held
                for counts in self._joint.of(slot) if joint else (self._counts,):
                    counts.leave(counts.config.own(slot))

    def assign_all(self) -> list[Assignment]:
        return [self._assign(index, candidate) for index, candidate in enumerate(self._candidates)]

    def _assign(self, index: int, candidate: Candidate) -> Assignment:
        slot = candidate.slot
        own = self._counts.config.own(slot)
        if index in self._held or not self._limits.may_move(candidate):
            return Assignment(candidate, own)
        if not slot.other_windows:
            start = self._later_window(index, candidate, own)
            self._counts.enter(start)
            return Assignment(candidate, start)
        all_counts = self._joint.of(slot)
        owns = own_windows(slot, all_counts)
        starts = self._later_windows(index, candidate, owns, all_counts)
        for counts, own, start in zip(all_counts, owns, starts, strict=True):
            counts.enter(start)
            if start != own:
                self._entered.add((counts.config.active.name, start))
        return Assignment(candidate, starts[all_counts.index(self._counts)], starts)

    def _later_window(self, index: int, candidate: Candidate, own_ms: int) -> int:
        start = max(own_ms, align(self._reached, self._policy.size_ms))
        if start != own_ms or self._counts.is_full(own_ms):
            start = self._with_room(start)
            if start >= self._bounds[index] or _is_beyond(self._policy, candidate, start):
                return self._block(index, start, own_ms)
        self._reached = max(self._reached, start)
        return start

    def _block(self, index: int, start_ms: int, own_ms: int) -> int:
        self.blocked.append(index)
        if start_ms < LATEST_MS:
            self.farthest = max(self.farthest, start_ms)
        return own_ms

    def _later_windows(
        self, index: int, candidate: Candidate, owns: tuple[int, ...], all_counts: Sequence[Counts]
    ) -> tuple[int, ...]:
        kept = [self._kept(counts, own) for counts, own in zip(all_counts, owns, strict=True)]
        end = min(own + counts.policy.size_ms for own, counts in zip(owns, all_counts, strict=True))
        starts = owns
        if end <= self._reached or None in kept:
            common = self._common(candidate.slot, kept, all_counts)
            place = all_counts.index(self._counts)
            if (
                common is None
                or common[place] >= self._bounds[index]
                or any(
                    start != own and _is_beyond(counts.policy, candidate, start)
                    for counts, own, start in zip(all_counts, owns, common, strict=True)
                )
            ):
                self._block(index, LATEST_MS if common is None else common[place], owns[place])
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
        starts = common_windows(finders, at, at + SEARCHED_MS)
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


def _bounds(limits: Limits, candidates: Sequence[Candidate], held: Collection[int], until_ms: int) -> list[int]:
    """Per candidate, the first window that it must not go to: the one of the next slot that stays."""
    size = limits.policy.size_ms
    bound = LATEST_MS if until_ms >= LATEST_MS else align(until_ms, size)
    bounds = [bound] * len(candidates)
    for index in range(len(candidates) - 1, -1, -1):
        bounds[index] = bound
        if index in held or not limits.may_move(candidates[index]):
            bound = min(bound, align(candidates[index].slot.scheduled_ms, size))
    return bounds


def _without_room(
    limits: Limits,
    candidates: Sequence[Candidate],
    config: PlannedConfig,
    others: Others,
    until_ms: int,
    farthest_ms: int,
) -> set[int]:
    """The candidates that have no room before their horizons even if all behind them go as far as they can. Of further
    configs only the horizons are looked at."""
    policy, size = limits.policy, limits.policy.size_ms
    counts = Counts(config)
    for candidate in filter(limits.may_move, candidates):
        counts.leave(config.own(candidate.slot))
    # No plan needs more windows than there are slots.
    latest = min(farthest_ms + len(candidates) * size, LATEST_MS)
    if until_ms < LATEST_MS:
        latest = min(latest, align(until_ms, size) - size)
    held: set[int] = set()
    for index in range(len(candidates) - 1, -1, -1):
        candidate = candidates[index]
        own = config.own(candidate.slot)
        start = own
        if limits.may_move(candidate):
            start = max(own, align(min(latest, _last_instant(policy, candidate, others)), size))
            while start > own and (counts.is_full(start) or policy.next_open(start) != start):
                start -= size
            if not counts.is_full(start):
                counts.enter(start)
                latest = min(latest, start)
                continue
            held.add(index)
        latest = min(latest, own - size)
    return held


def _last_instant(policy: WindowPolicy, candidate: Candidate, others: Others) -> int:
    """The last instant whose windows, of all configs, end before the slot's horizon."""
    last = LATEST_MS
    further = [others[name].policy for name in candidate.slot.config_names if name in others]
    for one in (policy, *further):
        if one.max_delay_ms is not None:
            end = _horizon(one, candidate) + 1
            last = min(last, align(end, one.size_ms) - 1)
    return last


def _horizon(policy: WindowPolicy, candidate: Candidate) -> int:
    assert policy.max_delay_ms is not None
    return max(candidate.slot.requested_ms, candidate.created_ms) + policy.max_delay_ms


def _is_beyond(policy: WindowPolicy, candidate: Candidate, start_ms: int) -> bool:
    """Whether a window reaches past a slot's horizon."""
    return policy.max_delay_ms is not None and start_ms + policy.size_ms - 1 > _horizon(policy, candidate)
