"""Settle calls that share a transaction: a start and its outcome are one write, everything else keeps its order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.decisions import after_failure, after_silence, after_start, after_success, gave_up, released
from paceline.dispatch.model import Action, BatchSummary, Change, Claim, SilentClaim
from paceline.dispatch.ports import STARTED, Execution, ExecutionState
from paceline.dispatch.settling import JoinedChanges, Settling, start_and_outcome
from paceline.dispatch.status import Status
from paceline.errors import Conflict, StoreUnavailable
from paceline.testing import eventually

CONFIG = DispatchConfig(item_type="PAY")
SUMMARY = BatchSummary("PAY", "B", "2 DISPATCHED")


def claim(name: str, epoch: int = 1) -> Claim:
    return Claim("PAY", name, epoch, 0)


def start(name: str, epoch: int = 1) -> Change:
    return after_start(claim(name, epoch), STARTED, CONFIG, "B")


def adopted(name: str) -> Change:
    change = after_silence(SilentClaim(claim(name), Status.CLAIMED, True), ExecutionState(Execution.RUNNING), CONFIG)
    assert change is not None
    return change


class Written:
    """Writes everything; each transaction waits for `go`."""

    def __init__(self) -> None:
        self.transactions: list[tuple[list[Change], list[BatchSummary]]] = []
        self.go = asyncio.Event()
        self.go.set()
        self.failure: Exception | None = None

    async def __call__(self, changes: Sequence[Change], summaries: Sequence[BatchSummary]) -> list[bool]:
        self.transactions.append((list(changes), list(summaries)))
        await self.go.wait()
        if self.failure is not None:
            raise self.failure
        return [change.claim.item_id != "lost" for change in changes]


OUTCOMES = [
    after_success(claim("a")),
    after_failure(claim("a"), CONFIG, "no"),
    gave_up(claim("a"), "never"),
    released(claim("a"), "not now"),
]


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: str(outcome.action))
def test_a_start_and_its_outcome_are_one_change_in_whichever_order_they_come(outcome: Change) -> None:
    both = outcome._replace(start=start("a"))
    assert start_and_outcome(start("a"), outcome) == start_and_outcome(outcome, start("a")) == both
    assert both.origins == outcome.origins


def test_nothing_else_becomes_one_change() -> None:
    for one, other in [
        (start("a"), start("a")),
        (after_success(claim("a")), after_success(claim("a"))),
        (adopted("a"), after_success(claim("a"))),
        (start("a"), adopted("a")),
        (start("a"), after_success(claim("a"))._replace(start=start("a"))),
    ]:
        assert start_and_outcome(one, other) is None


def test_changes_of_another_claim_of_the_item_are_changes_of_their_own() -> None:
    joined = JoinedChanges()
    assert joined.add([after_success(claim("a", 1)), start("b")]) == [0, 1]
    assert joined.add([start("a", 2), after_success(claim("b"))]) == [2, 1]
    assert [change.claim.epoch for change in joined.changes] == [1, 1, 2]
    assert joined.add([start("c"), adopted("a")._replace(claim=claim("a", 2))]) is None
    assert len(joined.changes) == 3


async def test_calls_that_come_during_a_transaction_share_the_next_one() -> None:
    write = Written()
    settling = Settling(write)
    write.go.clear()
    first = asyncio.create_task(settling.settle([start("x")], SUMMARY))
    await eventually(lambda: write.transactions)
    starts = asyncio.create_task(settling.settle([start("a"), start("lost"), start("long")], SUMMARY))
    ends = asyncio.create_task(settling.settle([after_success(claim("lost")), after_success(claim("a"))], None))
    await asyncio.sleep(0)
    write.go.set()
    assert await first == [True]
    assert (await starts, await ends) == ([True, False, True], [False, True])
    changes, summaries = write.transactions[1]
    assert [(one.claim.item_id, one.action, one.start is not None) for one in changes] == [
        ("a", Action.COMPLETED, True),
        ("lost", Action.COMPLETED, True),
        ("long", Action.DISPATCHED, False),
    ]
    assert summaries == [SUMMARY]
    await settling.close()


async def test_an_outcome_that_can_not_be_joined_is_written_after_what_came_before() -> None:
    """In one statement, only one of the two would be written: the outcome would be lost, and the item run again."""
    write = Written()
    settling = Settling(write)
    first, second = await asyncio.gather(
        settling.settle([adopted("a")], None), settling.settle([after_success(claim("a")), start("b")], None)
    )
    assert (first, second) == ([True], [True, True])
    assert [[change.action for change in changes] for changes, _ in write.transactions] == [
        [Action.ADOPTED],
        [Action.COMPLETED, Action.DISPATCHED],
    ]


async def test_a_failed_transaction_fails_its_callers_and_nobody_else() -> None:
    write = Written()
    settling = Settling(write)
    write.failure = StoreUnavailable("gone")
    failed = await asyncio.gather(
        settling.settle([start("a")], None), settling.settle([start("b")], None), return_exceptions=True
    )
    assert [type(error) for error in failed] == [StoreUnavailable] * 2
    write.failure = None
    assert await settling.settle([start("a")], None) == [True]


async def test_a_step_that_the_table_does_not_know_is_refused_before_anything_is_written() -> None:
    write = Written()
    settling = Settling(write)
    wrong = start("a")._replace(path=(Status.CLAIMED,))
    refused, good = await asyncio.gather(
        settling.settle([wrong], None), settling.settle([start("b")], None), return_exceptions=True
    )
    assert isinstance(refused, Conflict)
    assert good == [True]
    assert [len(changes) for changes, _ in write.transactions] == [1]
