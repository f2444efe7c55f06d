"""Slots: every order of bookings, cancellations, changed limits, and re-plans that read before they write.

A re-plan reads the slots and takes the config's lock later: what was booked, cancelled or changed in between must not
make a window too full, nor break the counters and the table of full runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest

from paceline.durations import EPOCH
from paceline.errors import Conflict
from paceline.slots.booking.packer import Full, Packer, Side
from paceline.slots.carriers import SlotMove
from paceline.slots.model import AssignedSlot, PolicyVersion, WindowPolicy
from paceline.slots.occupancy import FullRun, Occupancy, WindowCount, full_runs
from paceline.slots.replan.assignment import Candidate, Direction, Limits, PlannedConfig, assign_earlier
from paceline.slots.replan.parts import whole_windows
from paceline.slots.replan.places import admitted, place, rejoined_runs
from paceline.slots.replan.spread import assign_spread
from paceline.slots.stores.replanning import runs_near
from paceline.slots.windows import align
from tests.interleavings.search import Search, Violation, search
from tests.models.slot_store import _Config

SIZE = 1000
NOW = SIZE
EVENTS = {"a": SIZE, "b": SIZE, "c": 2 * SIZE}
"""Event → requested time."""
POLICIES = {limit: WindowPolicy(max_per_window=limit, window="PT1S", spread="even") for limit in (1, 2)}


class World(NamedTuple):
    """What is stored, what a re-planner has read or planned, and what may still happen."""

    slots: tuple[tuple[str, int], ...] = ()
    """Event and scheduled time, in order of times."""
    counts: tuple[WindowCount, ...] = ()
    runs: tuple[FullRun, ...] = ()
    limit: int = 1
    plan: tuple[str, tuple[tuple[str, int, int], ...]] | None = None
    """`earlier` and the slots it read, or `spread` and the moves it planned: event, its time, the new one."""
    too_full: str = ""
    cancels_left: int = 1
    changes_left: int = 2
    plans_left: int = 2


def _policy(world: World) -> WindowPolicy:
    return POLICIES[world.limit]


def _config(world: World) -> _Config:
    version = PolicyVersion("bank", 1, _policy(world), EPOCH)
    counts = {count.start_ms: count for count in world.counts}
    return _Config([version], counts, sorted(counts), list(world.runs))


def _stored(world: World, config: _Config, slots: dict[str, int]) -> World:
    ordered = tuple(sorted(slots.items(), key=lambda entry: (entry[1], entry[0])))
    counts = tuple(config.counts[start] for start in config.starts if config.counts[start].placed)
    return world._replace(slots=ordered, counts=counts, runs=tuple(sorted(config.runs)))


def _slot(event: str, at_ms: int) -> AssignedSlot:
    return AssignedSlot(event, "bank", 1, EVENTS[event], align(at_ms, SIZE), at_ms)


def _candidates(slots: Sequence[tuple[str, int]]) -> list[Candidate]:
    return [Candidate(_slot(event, at_ms)) for event, at_ms in slots]


def steps(world: World, *, checks: bool = True) -> Iterator[tuple[str, World]]:
    slots = dict(world.slots)
    for event in EVENTS:
        if event not in slots:
            yield from _book(world, event, slots)
        elif world.cancels_left:
            config = _config(world)
            occupancy = Occupancy(_policy(world), config)
            occupancy.release(align(slots[event], SIZE))
            config.write(occupancy)
            rest = {other: at_ms for other, at_ms in slots.items() if other != event}
            yield f"cancel {event}", _stored(world, config, rest)._replace(cancels_left=world.cancels_left - 1)
    if world.changes_left:
        changed = world._replace(limit=3 - world.limit, changes_left=world.changes_left - 1)
        config = _config(changed)
        config.find_runs(NOW)
        yield f"limit {changed.limit}", _stored(changed, config, slots)
    if world.plan is None and world.plans_left and world.slots:
        less = world._replace(plans_left=world.plans_left - 1)
        yield "read to pull forward", less._replace(plan=("earlier", tuple((e, at, at) for e, at in world.slots)))
        moves = _planned_spread(world)
        if moves:
            planned = tuple((move.slot.event_id, move.slot.scheduled_ms, move.scheduled_ms) for move in moves)
            yield "plan to spread", less._replace(plan=("spread", planned))
    elif world.plan is not None and world.plan[0] == "earlier":
        yield "pull forward", _pulled(world, slots, checks)
    elif world.plan is not None:
        yield "push back", _pushed(world, slots, checks)


def _book(world: World, event: str, slots: dict[str, int]) -> Iterator[tuple[str, World]]:
    config = _config(world)
    occupancy = Occupancy(_policy(world), config)
    side = Side(PolicyVersion("bank", 1, _policy(world), EPOCH), occupancy)
    found = Packer([side], NOW, lambda: 0.5).place(EVENTS[event])
    assert not isinstance(found, Full)
    config.write(occupancy)
    booked = _stored(world, config, slots | {event: found.scheduled_ms})
    yield f"book {event}", _checked(booked, [found.window_start_ms])


def _planned_spread(world: World) -> list[SlotMove]:
    planned, limits = _planned(_config(world)), Limits(_policy(world), NOW)
    assignments = assign_spread(limits, _candidates(world.slots), planned)
    return place(limits, assignments, planned, direction=Direction.SPREAD)


def _planned(config: _Config) -> PlannedConfig:
    return PlannedConfig(config.active, Occupancy(config.active.policy, config))


def _pulled(world: World, slots: dict[str, int], checks: bool) -> World:
    """As the stores do it: the slots as they were read, the counters as they are now. If a slot that moves was changed
    meanwhile, nothing is written."""
    assert world.plan is not None
    read = [(event, at_ms) for event, at_ms, _ in world.plan[1]]
    done = world._replace(plan=None)
    config, limits = _config(world), Limits(_policy(world), NOW)
    planned = _planned(config)
    assignments = assign_earlier(limits, _candidates(read), planned, NOW)
    try:
        moves = place(limits, whole_windows(assignments, is_last=True), planned)
    except Conflict:  # a slot has left its window since it was read
        return done
    if not moves or (checks and any(slots.get(m.slot.event_id) != m.slot.scheduled_ms for m in moves)):
        return done
    if any(move.scheduled_ms > move.slot.scheduled_ms for move in moves):
        return done._replace(too_full="a slot was pulled to a later time")
    return _moved(done, config, planned, moves, slots)


def _pushed(world: World, slots: dict[str, int], checks: bool) -> World:
    assert world.plan is not None
    done = world._replace(plan=None)
    config, possible = _config(world), list[SlotMove]()
    planned = _planned(config)
    for event, at_ms, new_ms in reversed(world.plan[1]):
        move = SlotMove(_slot(event, at_ms), align(new_ms, SIZE), new_ms)
        if (slots.get(event) == at_ms or not checks) and admitted(move, planned):
            possible.append(move)
    return _moved(done, config, planned, possible, slots) if possible else done


def _moved(
    world: World,
    config: _Config,
    planned: PlannedConfig,
    moves: Sequence[SlotMove],
    slots: dict[str, int],
) -> World:
    runs = rejoined_runs(planned, runs_near(planned))
    config.runs = sorted({run for run in config.runs if run.start_ms not in runs.removed} | set(runs.written))
    for count in planned.occupancy.changed_windows():
        config.count(count)
    after = _stored(world, config, slots | {move.slot.event_id: move.scheduled_ms for move in moves})
    entered = [m.window_start_ms for m in moves if align(m.slot.scheduled_ms, SIZE) != m.window_start_ms]
    return _checked(after, entered)


def _checked(world: World, entered: Sequence[int]) -> World:
    """No slot comes into a window beyond its limit."""
    held = Counter(align(at_ms, SIZE) for _, at_ms in world.slots)
    over = [start for start in entered if held[start] > world.limit]
    return world._replace(too_full=f"window {over[0]} holds {held[over[0]]} of {world.limit}") if over else world


def problem(world: World) -> str | None:
    if world.too_full:
        return world.too_full
    held = Counter(align(at_ms, SIZE) for _, at_ms in world.slots)
    if {count.start_ms: count.taken for count in world.counts if count.taken} != dict(held):
        return "the counters say something else than the slots"
    if list(world.runs) != full_runs(world.counts, _policy(world)):
        return "the full runs say something else than the counters"
    if any(at_ms < max(NOW, EVENTS[event]) for event, at_ms in world.slots):
        return "a slot lies before its time"
    return None


def test_no_interleaving_of_bookings_and_replans_overfills_a_window() -> None:
    seen = search(World(), steps, problem, most=400_000)
    assert seen == Search(states=4808, depth=11), "every one of them was looked at"


def test_a_replan_that_did_not_look_again_would_be_caught() -> None:
    with pytest.raises(Violation):
        search(World(), lambda world: steps(world, checks=False), problem, most=400_000)
