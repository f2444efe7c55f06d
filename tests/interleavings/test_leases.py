"""Local leases: every order of refills, spending, expiry, late and lost messages, and windows that end.

Two processes share one fixed window. Time goes in ticks. A request may stay on its way for a tick, also when the
process that sent it has given up; its answer may be lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from paceline.limits.algorithms import State
from paceline.limits.chain import refunded, rule_on
from paceline.limits.local_lease import LeasePolicy, LocalLease
from paceline.limits.model import Charge, FixedWindow, Rule
from tests.interleavings.search import Search, Violation, search

TICK_US = 5_000_000
WINDOW_TICKS = 4
LIMIT = 3
RULE = Rule("plan", FixedWindow(LIMIT, "PT20S"))
POLICY = LeasePolicy(longest=10, share=0.7)


class Lease(NamedTuple):
    """One process's lease, with all times relative to now, and what it waits for."""

    tokens: int = 0
    until_us: int = 0
    return_until_us: int = 0
    size: int = 0
    taken_us: int = 0
    waits_for: str = ""
    amount: int = 0
    asked_us: int = 0


class Request(NamedTuple):
    """A message on its way to the store."""

    sender: int
    """-1 if it has given up."""
    kind: str
    amount: int
    age: int = 0


class World(NamedTuple):
    leases: tuple[Lease, Lease] = (Lease(), Lease())
    state: State | None = None
    requests: tuple[Request, ...] = ()
    admitted: int = 0
    """In the window of `state`."""
    calls_left: int = 6
    """In all, so that the search ends."""
    losses_left: int = 1


def _object(lease: Lease) -> LocalLease:
    local = LocalLease(("user", "plan"), [Charge("user", RULE)], POLICY, None)
    local.tokens, local.until_us, local.return_until_us = lease.tokens, lease.until_us, lease.return_until_us
    local._size, local._taken_us = lease.size, lease.taken_us
    return local


def _tuple(local: LocalLease) -> Lease:
    """Drops expired times, so that equivalent states are equal."""
    spent = local.tokens == 0
    until_us = 0 if spent else max(local.until_us, 0)
    return_us = 0 if spent else max(min(local.return_until_us, WINDOW_TICKS * TICK_US), 0)
    return Lease(local.tokens, until_us, return_us, local._size, max(local._taken_us, -TICK_US))


def _with(world: World, index: int, lease: Lease) -> World:
    leases = list(world.leases)
    leases[index] = lease
    return world._replace(leases=(leases[0], leases[1]))


def _charge(amount: int) -> Charge:
    return Charge("user", RULE, amount)


def steps(world: World, *, returns_late: bool = False) -> Iterator[tuple[str, World]]:
    for index, lease in enumerate(world.leases):
        if lease.waits_for and not world.losses_left:
            continue
        if lease.waits_for:
            orphaned = tuple(
                request._replace(sender=-1) if request.sender == index else request for request in world.requests
            )
            idle = lease._replace(waits_for="", amount=0, asked_us=0)
            left = world._replace(requests=tuple(sorted(orphaned)), losses_left=world.losses_left - 1)
            yield f"{index} gives up", _with(left, index, idle)
            continue
        local = _object(lease)
        if not world.calls_left:
            continue
        if local.spend(1, 0) is not None:
            spent = _with(world, index, _tuple(local))
            yield f"{index} spends", spent._replace(admitted=world.admitted + 1, calls_left=world.calls_left - 1)
        else:
            yield from _refill(world, index, lease, returns_late)
    for request in world.requests:
        yield from _arrive(world, request)
    if all(request.age < 1 for request in world.requests):
        yield "time passes", _later(world)


def _refill(world: World, index: int, lease: Lease, returns_late: bool) -> Iterator[tuple[str, World]]:
    local = _object(lease)
    if returns_late:
        local.return_until_us = max(local.return_until_us, TICK_US)
    returned = local.withdraw(0)
    kind, amount = ("refund", returned) if returned else ("decide", local.requested(1, 0))
    waiting = _tuple(local)._replace(waits_for=kind, amount=amount)
    requests = tuple(sorted((*world.requests, Request(index, kind, amount))))
    after = _with(world, index, waiting)._replace(requests=requests)
    # A refund comes before the call's own request; it is no call yet.
    yield f"{index}: {kind} {amount}", after._replace(calls_left=world.calls_left - (kind == "decide"))


def _arrive(world: World, request: Request) -> Iterator[tuple[str, World]]:
    left = list(world.requests)
    left.remove(request)
    world = world._replace(requests=tuple(left))
    if request.kind == "refund":
        arrived = _store(world, refunded(_charge(request.amount), world.state, 0))
        yield f"refund {request.amount} arrives", _answered(arrived, request)
        return
    decision, writes = rule_on([_charge(request.amount)], [world.state], 0)
    arrived = world if writes[0] is None else _store(world, writes[0])
    if request.sender < 0:
        yield f"decide {request.amount} arrives, and nobody waits", arrived
        return
    lease = world.leases[request.sender]
    local = _object(lease)
    local.credit(request.amount, 1, decision, lease.asked_us)
    after = _with(arrived, request.sender, _tuple(local))
    admitted = after._replace(admitted=after.admitted + decision.allowed)
    yield f"{request.sender} gets {request.amount}: {decision.allowed}", admitted


def _answered(world: World, request: Request) -> World:
    if request.sender < 0:
        return world
    lease = world.leases[request.sender]
    return _with(world, request.sender, lease._replace(waits_for="", amount=0, asked_us=0))


def _store(world: World, state: State) -> World:
    """A new window has admitted no call yet."""
    begins = world.state is None or world.state[1] != state[1]
    return world._replace(state=state, admitted=0 if begins else world.admitted)


def _later(world: World) -> World:
    leases = [
        lease._replace(
            until_us=max(lease.until_us - TICK_US, 0) if lease.tokens else 0,
            return_until_us=max(lease.return_until_us - TICK_US, 0) if lease.tokens else 0,
            taken_us=max(lease.taken_us - TICK_US, -TICK_US),
            asked_us=max(lease.asked_us - TICK_US, -2 * TICK_US) if lease.waits_for else 0,
        )
        for lease in world.leases
    ]
    state, admitted = world.state, world.admitted
    if state is not None:
        state = (state[0], state[1] - TICK_US, state[2])
        if state[1] <= -WINDOW_TICKS * TICK_US:
            state, admitted = None, 0
    requests = tuple(sorted(request._replace(age=request.age + 1) for request in world.requests))
    return world._replace(leases=(leases[0], leases[1]), state=state, requests=requests, admitted=admitted)


def problem(world: World) -> str | None:
    if world.admitted > LIMIT:
        return f"{world.admitted} admitted in a window of {LIMIT}"
    return None


def test_no_interleaving_admits_more_than_a_window_has() -> None:
    seen = search(World(), steps, problem, most=400_000)
    assert seen == Search(states=18482, depth=24), "every one of them was looked at"


def test_tokens_that_went_back_after_their_window_would_be_caught() -> None:
    with pytest.raises(Violation, match=f"{LIMIT + 1} admitted"):
        search(World(losses_left=0), lambda world: steps(world, returns_late=True), problem, most=400_000)
