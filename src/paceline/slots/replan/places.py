"""Re-plan: where inside their windows slots lie. Pure, given a view of the windows.

To make room inside a window, the places of those that come are added to the places of those that are there, and all of
them are given out again in order: of a larger set, the n-th place lies no later than before, so no slot moves the wrong
way. A slot under several configs must stay inside a window of each. Each slot therefore has a span; spans are narrowed
until neither their starts nor their ends go back from one slot to the next, and then the n-th place lies in the n-th
span.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from paceline.slots.carriers import SlotMove
from paceline.slots.model import AssignedSlot, SlotWindow, Spread
from paceline.slots.occupancy import FullRun, RunChanges, split_run
from paceline.slots.replan.assignment import NO_OTHERS, Assignment, Direction, Limits, Others, PlannedConfig, capacity
from paceline.slots.windows import align, position


class Member(NamedTuple):
    """A slot in a window."""

    assignment: Assignment
    low_ms: int
    high_ms: int
    """The span [low, high) that its time must lie in."""
    stays: bool
    """Whether it was in these windows before."""
    may_move: bool


def place(
    limits: Limits,
    assignments: Sequence[Assignment],
    config: PlannedConfig,
    floor_ms: int = 0,
    others: Others = NO_OTHERS,
    direction: Direction = Direction.EARLIER,
) -> list[SlotMove]:
    """The moves, in order, that bring slots into their windows. The occupancies get the changed counts. Slots before
    `floor_ms` are not among the assignments, and no slot overtakes them."""
    moves: list[SlotMove] = []
    configs = {**others, config.active.name: config}
    for window, group in groupby(sorted(assignments, key=_WINDOW), key=_WINDOW):
        grouped = list(group)
        if all(not starts and limits.may_move(candidate) for candidate, _, starts in grouped):
            moves += _place_single(limits, window, grouped, config, floor_ms)
            continue
        members = [_member(limits, assignment, configs) for assignment in grouped]
        if all(member.stays for member in members):
            continue
        if direction is Direction.SPREAD:
            members = [member for member in members if member.may_move]
        members = _narrowed(members, floor_ms)
        places = sorted(_place(member, window, config, configs) for member in members)
        for member, at in zip(members, places, strict=True):
            if member.may_move and at != member.assignment.candidate.slot.scheduled_ms:
                moves.append(_move(member.assignment, at, configs))
    return moves


_WINDOW = itemgetter(1)


def _place_single(
    limits: Limits,
    window: int,
    assignments: Sequence[Assignment],
    config: PlannedConfig,
    floor_ms: int,
) -> list[SlotMove]:
    """`place` in one window, for slots that have one config and may move: the common case."""
    end, spread, low = window + limits.policy.size_ms, limits.policy.spread, max(window, floor_ms, limits.earliest_ms)
    slots = [assignment.candidate.slot for assignment in assignments]
    left = [config.own(slot) for slot in slots if not window <= slot.scheduled_ms < end]
    if not left:
        return []
    ordinals = _shifted(left, window, config)
    places: list[int] = []
    for slot in slots:
        if slot.requested_ms > low:
            low = slot.requested_ms
        at = slot.scheduled_ms
        if not window <= at < end:
            at = position(spread, next(ordinals), low, end, partial(_drawn, slot.event_id))
        places.append(at)
    places.sort()
    return [SlotMove(slot, window, at) for slot, at in zip(slots, places, strict=True) if at != slot.scheduled_ms]


def _shifted(left: Iterable[int], window: int, config: PlannedConfig) -> Iterator[int]:
    """The ordinals in a window of slots that leave these for it, in order."""
    ordinals: list[int] = []
    for own, group in groupby(left):
        slots = len(list(group))
        first = config.shift(own, window, slots)
        ordinals += range(first, first + slots)
    return iter(ordinals)


def _drawn(event_id: str) -> float:
    """In [0, 1), as if drawn at random: a re-plan gives an event the place that its dry run has shown."""
    return int.from_bytes(blake2b(event_id.encode("utf-8", "surrogatepass"), digest_size=6).digest()) / 2**48


def _member(limits: Limits, assignment: Assignment, configs: Others) -> Member:
    candidate, window, starts = assignment
    slot, size = candidate.slot, limits.policy.size_ms
    if not limits.may_move(candidate):
        return Member(assignment, slot.scheduled_ms, slot.scheduled_ms + 1, True, False)
    effective = limits.effective(slot)
    if not starts:
        own = align(slot.scheduled_ms, size)
        return Member(assignment, max(window, effective), window + size, own == window, True)
    ends = [start + configs[name].policy.size_ms for name, start in zip(slot.config_names, starts, strict=True)]
    stays = all(configs[name].own(slot) == start for name, start in zip(slot.config_names, starts, strict=True))
    return Member(assignment, max(effective, *starts), min(ends), stays, True)


def _narrowed(members: Sequence[Member], floor_ms: int) -> list[Member]:
    low, lows = floor_ms, list[int]()
    for member in members:
        low = max(low, member.low_ms)
        lows.append(low)
    high, narrowed = members[-1].high_ms, list[Member]()
    for member, low in zip(reversed(members), reversed(lows), strict=True):
        high = min(high, member.high_ms)
        narrowed.append(member._replace(low_ms=low, high_ms=max(high, low + 1)))
    narrowed.reverse()
    return narrowed


def _place(member: Member, window: int, config: PlannedConfig, configs: Others) -> int:
    """A place for a slot, its own if it stays; charges the windows of one that comes."""
    slot, low, high = member.assignment.candidate.slot, member.low_ms, member.high_ms
    uniform = partial(_drawn, slot.event_id)
    if member.stays:
        at = slot.scheduled_ms
        return at if low <= at < high else position(Spread.JITTER, 0, low, high, uniform)
    if not member.assignment.starts_ms:
        return position(config.policy.spread, config.shift(config.own(slot), window), low, high, uniform)
    ordinals: list[tuple[int, int, Spread]] = []
    for name, start in zip(slot.config_names, member.assignment.starts_ms, strict=True):
        charged = configs[name]
        if (own := charged.own(slot)) != start:
            ordinals.append((charged.policy.size_ms, charged.shift(own, start), charged.policy.spread))
    # As a booking has it: the spread of the narrowest.
    _, ordinal, spread = min(ordinals)
    return position(spread, ordinal, low, high, uniform)


def _move(assignment: Assignment, at_ms: int, configs: Others) -> SlotMove:
    slot, starts = assignment.candidate.slot, assignment.starts_ms
    if not starts:
        return SlotMove(slot, assignment.window_ms, at_ms)
    return SlotMove(slot, starts[0], at_ms, _windows(slot, starts, configs))


def _windows(slot: AssignedSlot, starts: Iterable[int], configs: Others) -> tuple[SlotWindow, ...]:
    """The windows of a slot that moves. One that it keeps has the version that admitted it, another the active one."""
    return tuple(
        window
        if window.window_start_ms == start
        else SlotWindow(window.config_name, configs[window.config_name].active.version, start)
        for window, start in zip(slot.windows, starts, strict=True)
    )


def admitted(
    move: SlotMove, config: PlannedConfig, others: Others = NO_OTHERS, effective_ms: int = 0
) -> SlotMove | None:
    """A planned move as the configs admit it now, which may have changed since; None if they do not. Every window that
    it goes to must have a place for a slot that may lie at `effective_ms` or later; takes them, if so."""
    configs = {**others, config.active.name: config}
    shifts: list[tuple[PlannedConfig, int, int]] = []
    for name in move.slot.config_names:
        changed = configs.get(name)
        if changed is None:
            return None
        policy, own, target = changed.policy, changed.own(move.slot), align(move.scheduled_ms, changed.policy.size_ms)
        planned = next((one.window_start_ms for one in move.windows if one.config_name == name), move.window_start_ms)
        if target != planned:
            return None  # the window's size was changed meanwhile
        if own == target:
            continue
        most = capacity(policy, target, effective_ms)
        if changed.occupancy.taken(target) >= most or policy.next_open(target) != target:
            return None
        shifts.append((changed, own, target))
    for changed, own, target in shifts:
        changed.shift(own, target)
    if not move.windows:
        return move
    return move._replace(windows=_windows(move.slot, [window.window_start_ms for window in move.windows], configs))


def starts_near(config: PlannedConfig) -> list[int]:
    """The times at or before which a run may begin that contains a changed window, ends at one, or starts right behind
    one."""
    policy, occupancy = config.policy, config.occupancy
    limits = [(start, held, policy.limit_at(start)) for start, held in config.before.items()]
    changed = [start for start, held, limit in limits if (held >= limit) != (occupancy.taken(start) >= limit)]
    behind = [policy.next_open(start + policy.size_ms) for start in changed]
    return sorted({*changed, *behind, *(start - 1 for start in changed)})


def rejoined_runs(config: PlannedConfig, stored: Iterable[FullRun]) -> RunChanges:
    """The runs to remove and write after windows were filled and emptied. `stored` has every run that contains one of
    them, ends at one, or starts right behind one."""
    policy, before, occupancy = config.policy, config.before, config.occupancy
    limit_at = policy.limit_at
    open_windows = [start for start in sorted(before) if policy.next_open(start) == start]
    filled = [start for start in open_windows if before[start] < limit_at(start) <= occupancy.taken(start)]
    opened = [start for start in open_windows if before[start] >= limit_at(start) > occupancy.taken(start)]
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
