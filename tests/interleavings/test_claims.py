"""An item's claim: every order of claims, starts, ends, lost and late reports, recoveries, deaths and operators.

Two workers share one item. A worker may freeze, so that recovery treats its claim as stale although it continues; it
may die; and whatever it reports may arrive late, or never.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from paceline.dispatch import changes, decisions
from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.model import Change, Claim, SilentClaim
from paceline.dispatch.ports import STARTED, Execution, ExecutionState
from paceline.dispatch.status import FINISHED, IN_FLIGHT, Status, may
from paceline.errors import Conflict
from tests.interleavings.search import Search, Violation, search

CONFIG = DispatchConfig(item_type="MAIL", max_dispatch_retries=2)
CLAIMS = 3
"""An item that is given back can be claimed for ever; so often suffices for a claim to be overtaken twice."""
LOST = ExecutionState(Execution.NOT_FOUND)


class World(NamedTuple):
    """The stored item, the workers that run it, and the writes in flight to the store."""

    status: Status = Status.READY
    epoch: int = 0
    retries: int = 0
    workers: tuple[tuple[str, Claim | None], ...] = (("idle", None), ("idle", None))
    reports: frozenset[Change] = frozenset()
    ended_well: frozenset[int] = frozenset()
    """Epochs whose executions succeeded."""
    left_final: bool = False
    deaths_left: int = 1
    requeues_left: int = 1


def _claim(world: World) -> Claim:
    return Claim("MAIL", "i", world.epoch, world.retries)


def _with_worker(world: World, index: int, phase: str, claim: Claim | None) -> World:
    workers = list(world.workers)
    workers[index] = (phase, claim)
    return world._replace(workers=tuple(sorted(workers, key=str)))


def _reporting(world: World, change: Change) -> World:
    return world._replace(reports=world.reports | {change})


def _written(world: World, change: Change, *, fenced: bool) -> World:
    """As the stores write it: if the claim still holds and the status allows it."""
    world = world._replace(reports=world.reports - {change})
    if (fenced and change.claim.epoch != world.epoch) or world.status not in change.origins:
        return world
    return world._replace(
        status=change.status, retries=change.retries, left_final=world.left_final or world.status in FINISHED
    )


def steps(world: World, *, fenced: bool = True) -> Iterator[tuple[str, World]]:
    for index, (phase, claim) in enumerate(world.workers):
        if phase == "idle" and world.status is Status.READY and world.epoch < CLAIMS:
            claimed = world._replace(status=Status.CLAIMED, epoch=world.epoch + 1)
            yield "claim", _with_worker(claimed, index, "claimed", _claim(claimed))
        elif phase == "claimed" and claim is not None:
            started = _reporting(world, decisions.after_start(claim, STARTED, CONFIG, "b"))
            yield "start", _with_worker(started, index, "running", claim)
            yield (
                "give back",
                _with_worker(_reporting(world, decisions.released(claim, "full", "b")), index, "idle", None),
            )
        elif phase == "running" and claim is not None:
            well = _reporting(world, decisions.after_success(claim))
            well = well._replace(ended_well=world.ended_well | {claim.epoch})
            yield "end well", _with_worker(well, index, "idle", None)
            yield (
                "fail",
                _with_worker(_reporting(world, decisions.after_failure(claim, CONFIG, "no")), index, "idle", None),
            )
        if phase != "idle" and world.deaths_left:
            yield "die", _with_worker(world, index, "idle", None)._replace(deaths_left=world.deaths_left - 1)
    for change in world.reports:
        yield f"{change.action} is written", _written(world, change, fenced=fenced)
        yield f"{change.action} is lost", world._replace(reports=world.reports - {change})
    if world.status in IN_FLIGHT:
        # Silent for too long: dead, or frozen and taken for dead.
        recovery = decisions.after_silence(SilentClaim(_claim(world), world.status, True), LOST, CONFIG)
        if recovery is not None:
            yield "recover", _reporting(world, recovery)
    yield from _operator(world)


def _operator(world: World) -> Iterator[tuple[str, World]]:
    for to in (Status.READY, Status.CANCELLED):
        if not world.requeues_left:
            return
        try:
            changes.checked_redirection(world.status, to, "i")
        except Conflict:
            continue
        retries = 0 if to is Status.READY else world.retries
        yield f"operator: {to}", world._replace(status=to, retries=retries, requeues_left=world.requeues_left - 1)


def problem(world: World) -> str | None:
    owners = [claim for _, claim in world.workers if claim is not None and claim.epoch == world.epoch]
    if world.status in IN_FLIGHT and len(owners) > 1:
        return "two workers hold the claim that counts"
    if world.left_final:
        return "an item that was finished went on"
    if world.status is Status.COMPLETED and world.epoch not in world.ended_well:
        return "completed, and the execution that counts did not end well"
    if world.retries > CONFIG.max_dispatch_retries:
        return "more retries than there are"
    if world.status is Status.FAILED or not (world.status in FINISHED or any(may(world.status, to) for to in Status)):
        return "it rests where nothing leads on"
    return None


def test_no_interleaving_lets_two_owners_count_or_a_finished_item_go_on() -> None:
    seen = search(World(), steps, problem, most=500_000)
    assert seen == Search(states=53392, depth=25), "every one of them was looked at"


def test_a_store_that_did_not_fence_would_be_caught() -> None:
    with pytest.raises(Violation, match="did not end well"):
        search(World(), lambda world: steps(world, fenced=False), problem, most=500_000)
