"""The downstream's permits: every order of grants, departures, arrivals, answers, lost frees and lost memories.

Time goes in halves of a second. A call may be held up before it leaves, on its way, and before its answer; its
answer may never reach the store; and the store may lose all data while calls are on the wire.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from paceline.downstream import permits
from paceline.downstream.permits import SECOND_US, PermitPolicy, Permits
from tests.interleavings.search import Search, Violation, search

TICK_US = SECOND_US // 2
CALL_TICKS = 1
"""The longest call, from its departure to its answer."""
HOLD_US = CALL_TICKS * TICK_US + SECOND_US
TPS = 2
POLICY = PermitPolicy(TPS, SECOND_US // TPS, burst=TPS)


class Caller(NamedTuple):
    """Where one caller is: idle, sleeping until its call may leave, or on the wire, arrived or not."""

    phase: str = "idle"
    at_us: int = 0
    """When it may leave, or when it left."""
    holder: str = ""
    """Each call has a permit under a name of its own."""


class World(NamedTuple):
    """Everything, with all times relative to now."""

    callers: tuple[Caller, ...]
    held: tuple[tuple[str, int], ...] = ()
    paced_us: int = 0
    open_us: int = 0
    arrivals: tuple[int, ...] = ()
    """How long ago calls arrived, of the last second."""
    calls_left: int = 4
    losses_left: int = 1


def _store(world: World) -> Permits:
    return Permits(dict(world.held), world.paced_us, world.open_us)


def _with_store(world: World, store: Permits) -> World:
    """Drops expired times, so that equivalent states are equal."""
    held = tuple(sorted((holder, free_us) for holder, free_us in store.held.items() if free_us > 0))
    return world._replace(held=held, paced_us=max(store.paced_us, -SECOND_US), open_us=max(store.open_us, 0))


def _with_caller(world: World, index: int, caller: Caller) -> World:
    """Callers are alike, so their order does not matter."""
    return world._replace(callers=tuple(sorted((*world.callers[:index], caller, *world.callers[index + 1 :]))))


def steps(world: World, *, opens_at_once: bool = False) -> Iterator[tuple[str, World]]:
    for index, caller in enumerate(world.callers):
        holder = caller.holder
        if caller.phase == "idle" and world.calls_left:
            holder = f"call {world.calls_left}"
            store, grant = permits.take(_store(world), POLICY, holder, HOLD_US, 0)
            after = _with_store(world, store)
            if not grant.wait_us:
                after = _with_caller(after, index, Caller("granted", grant.delay_us, holder))
                yield f"{holder} takes", after._replace(calls_left=world.calls_left - 1)
        elif caller.phase == "granted" and caller.at_us == 0:
            yield f"{holder} leaves", _with_caller(world, index, Caller("on its way", 0, holder))
        elif caller.phase == "granted" and caller.at_us < 0:
            # It was held up: its hold counts from when it could leave, so it needs another permit.
            store, grant = permits.take(_store(world), POLICY, holder, HOLD_US, 0)
            if not grant.wait_us:
                exchanged = Caller("granted", grant.delay_us, holder)
                yield f"{holder} exchanges", _with_caller(_with_store(world, store), index, exchanged)
        elif caller.phase == "on its way":
            arrived = _with_caller(world, index, Caller("arrived", caller.at_us, holder))
            yield f"{holder} arrives", arrived._replace(arrivals=tuple(sorted((*world.arrivals, 0))))
        elif caller.phase == "arrived":
            idle = _with_caller(world, index, Caller())
            freed = permits.free(_store(idle), holder, SECOND_US)
            yield f"{holder} is answered", _with_store(idle, freed)
            yield f"{holder} is answered, the store is not told", idle
    if world.losses_left:
        forgotten = permits.reopened(Permits({}, life="before"), "after", 0 if opens_at_once else HOLD_US, 0)
        yield "the store forgets", _with_store(world, forgotten)._replace(losses_left=world.losses_left - 1)
    if all(caller.phase in ("idle", "granted") or caller.at_us > -CALL_TICKS * TICK_US for caller in world.callers):
        yield "time passes", _later(world)


def _later(world: World) -> World:
    callers = tuple(
        caller._replace(at_us=max(caller.at_us - TICK_US, -CALL_TICKS * TICK_US)) if caller.phase != "idle" else caller
        for caller in world.callers
    )
    arrivals = tuple(sorted(ago_us + TICK_US for ago_us in world.arrivals if ago_us + TICK_US < SECOND_US))
    store = _store(world)
    held = {holder: free_us - TICK_US for holder, free_us in store.held.items()}
    passed = store._replace(held=held, paced_us=store.paced_us - TICK_US, open_us=store.open_us - TICK_US)
    return _with_store(world._replace(callers=callers, arrivals=arrivals), passed)


def too_many_arrivals(world: World) -> str | None:
    """Arrivals are kept for less than a second, so all of them share one."""
    return f"{len(world.arrivals)} calls within a second" if len(world.arrivals) > TPS else None


def test_no_interleaving_brings_too_many_calls_within_a_second() -> None:
    seen = search(World((Caller(), Caller(), Caller())), steps, too_many_arrivals, most=300_000)
    assert seen == Search(states=35690, depth=32), "every one of them was looked at"


def test_a_store_that_opened_at_once_after_a_loss_would_be_caught() -> None:
    """The search can fail: without the pause after a loss there is an order that brings too many."""
    with pytest.raises(Violation, match="3 calls within a second"):
        search(
            World((Caller(), Caller(), Caller())),
            lambda world: steps(world, opens_at_once=True),
            too_many_arrivals,
            most=300_000,
        )
