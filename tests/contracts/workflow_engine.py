"""The contract of every `WorkflowEngine`. Each engine's test module brings a harness and inherits the tests.

The harness runs items of the type `work` whose context says how they behave:
`{"do": "succeed"}`, `{"do": "fail", "error": "…"}`, `{"do": "wait"}` (until `release(item_id)`), and so on: `end`.
"""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

import pytest

from paceline.dispatch.changes import Cancellation
from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.current_task import current_task
from paceline.dispatch.decisions import released
from paceline.dispatch.model import Claim, Completion, EnqueueRequest, GiveUp, Item, Postponed
from paceline.dispatch.outcomes import Retry
from paceline.dispatch.ports import Execution, QueueStore, Start, StartRequest, WorkflowEngine
from paceline.dispatch.status import Status
from paceline.errors import StoreUnavailable
from paceline.testing import eventually

NO_DELAY = timedelta(0)


class Ran(NamedTuple):
    """One execution that began."""

    item_id: str
    context: Any
    at: float
    """`time.monotonic()`"""


class EngineHarness(Protocol):
    """An engine with a queue behind it, in which `work` is configured (two retries, no backoff)."""

    engine: WorkflowEngine
    store: QueueStore
    work: str
    """An item type that no other test uses."""
    ran: list[Ran]

    def release(self, item_id: str) -> None:
        """Releases an item that waits."""
        ...


async def claimed(harness: EngineHarness, contexts: dict[str, Any], delay: timedelta = NO_DELAY) -> list[StartRequest]:
    """Start requests for items freshly enqueued and claimed."""
    config = await harness.store.config(harness.work)
    assert config is not None
    await harness.store.enqueue(
        [EnqueueRequest.of(harness.work, item_id, context) for item_id, context in contexts.items()]
    )
    batch = await harness.store.claim(harness.work, len(contexts), NO_DELAY)
    assert len(batch.items) == len(contexts)
    return [StartRequest(item.claim, config, item.context_json or "", delay) for item in batch.items]


async def item(harness: EngineHarness, item_id: str) -> Item:
    row = await harness.store.find(harness.work, item_id)
    assert row is not None
    return row[0]


async def all_stand(harness: EngineHarness, item_ids: list[str], status: Status) -> bool:
    return all([(await item(harness, item_id)).status is status for item_id in item_ids])


async def end(context: Any) -> Completion | None:
    """Ends an execution as its context says."""
    match context["do"]:
        case "return":
            await current_task().progress(0.5, "half way")
            return Completion(context["result"], f"attempt {current_task().attempt} of {current_task().lane}")
        case "postpone":
            raise Postponed("the bank is closed", timedelta(minutes=context["minutes"]))
        case "retry":
            raise Retry("the bank is busy", after=timedelta(minutes=context["minutes"]))
        case "fail":
            raise RuntimeError(context["error"])
        case "exit":
            raise SystemExit(context["error"])
        case "end cancelled":
            raise asyncio.CancelledError(context["error"])
        case "give up":
            raise GiveUp(context["error"], context["verdict"])
        case "outage":
            raise StoreUnavailable(context["error"])
    return None


class WorkflowEngineContract:
    """Inherit, and override the fixture `harness`."""

    async def test_runs_each_item_with_its_context_and_reports_completion(self, harness: EngineHarness) -> None:
        contexts = {f"ok-{n}": {"do": "succeed", "n": n, "text": "żółć 💧"} for n in range(5)}
        outcomes = await harness.engine.start(await claimed(harness, contexts))
        assert [outcome.start for outcome in outcomes] == [Start.STARTED] * 5
        await eventually(lambda: all_stand(harness, list(contexts), Status.COMPLETED))
        assert {ran.item_id: ran.context for ran in harness.ran} == contexts

    async def test_executions_run_concurrently(self, harness: EngineHarness) -> None:
        names = [f"together-{n}" for n in range(4)]
        await harness.engine.start(await claimed(harness, {name: {"do": "wait"} for name in names}))
        await eventually(lambda: len(harness.ran) == 4)
        for name in names:
            harness.release(name)
        await eventually(lambda: all_stand(harness, names, Status.COMPLETED))

    async def test_a_second_start_is_as_good_as_the_first_and_runs_nothing(self, harness: EngineHarness) -> None:
        requests = await claimed(harness, {"twice": {"do": "wait"}})
        (first,) = await harness.engine.start(requests)
        (second,) = await harness.engine.start(requests)
        assert (first.start, second.start) == (Start.STARTED, Start.ALREADY_STARTED)
        harness.release("twice")
        await eventually(lambda: all_stand(harness, ["twice"], Status.COMPLETED))
        assert [ran.item_id for ran in harness.ran] == ["twice"]

    async def test_an_execution_that_gives_up_is_a_dead_letter_at_once(self, harness: EngineHarness) -> None:
        context = {"do": "give up", "error": "account closed", "verdict": "REFUSED"}
        await harness.engine.start(await claimed(harness, {"final": context}))
        await eventually(lambda: all_stand(harness, ["final"], Status.DEAD_LETTER))
        assert (await item(harness, "final")).last_error == "account closed"
        assert [ran.item_id for ran in harness.ran] == ["final"]

    async def test_an_outage_of_a_store_uses_up_no_attempt(self, harness: EngineHarness) -> None:
        await harness.engine.start(await claimed(harness, {"unlucky": {"do": "outage", "error": "database away"}}))
        await eventually(lambda: all_stand(harness, ["unlucky"], Status.READY))
        back = await item(harness, "unlucky")
        assert (back.retry_count, back.due_at > back.updated_at) == (0, True)

    async def test_an_execution_knows_its_item_and_what_it_returns_is_kept(self, harness: EngineHarness) -> None:
        (request,) = await claimed(harness, {"good": {"do": "return", "result": '{"paid":12}'}})
        await harness.engine.start([request._replace(lane="acme", priority=1)])
        await eventually(lambda: all_stand(harness, ["good"], Status.COMPLETED))
        report = await harness.store.report(harness.work, "good")
        assert (report.progress, report.result_json) == ((0.5, "half way"), '{"paid":12}')
        audit = await harness.store.audit(harness.work, "good", 10, None)
        assert audit[0].detail == "attempt 1 of acme"

    async def test_an_execution_says_when_it_goes_on(self, harness: EngineHarness) -> None:
        contexts = {"postponed": {"do": "postpone", "minutes": 7}, "retried": {"do": "retry", "minutes": 9}}
        requests = await claimed(harness, contexts)
        await harness.engine.start(requests)

        async def back() -> bool:
            return len(harness.ran) == 2 and await all_stand(harness, list(contexts), Status.READY)

        await eventually(back)
        look_ahead = requests[0].config.look_ahead
        postponed, retried = await item(harness, "postponed"), await item(harness, "retried")
        for row, minutes in ((postponed, 7), (retried, 9)):
            pause = row.due_at - row.updated_at - look_ahead
            assert abs(pause - timedelta(minutes=minutes)) < timedelta(minutes=1), f"{row.item_id} rests for {pause}"
        assert (postponed.retry_count, postponed.last_error) == (0, None)
        assert (retried.retry_count, retried.last_error) == (1, "the bank is busy")

    async def test_an_execution_ends_when_somebody_without_the_engine_cancels_it(self, harness: EngineHarness) -> None:
        (request,) = await claimed(harness, {"long": {"do": "wait"}})
        await harness.engine.start([request])
        await eventually(lambda: len(harness.ran) == 1)
        assert (await harness.store.change_items(harness.work, ["long"], Cancellation())).total == 1

        async def ended() -> bool:
            (state,) = await harness.engine.describe([request.claim])
            return state.execution is not Execution.RUNNING

        await eventually(ended)
        assert (await item(harness, "long")).status is Status.CANCELLED

    async def test_an_execution_that_waits_for_its_time_can_be_stopped(self, harness: EngineHarness) -> None:
        requests = await claimed(harness, {"waits": {"do": "succeed"}, "runs": {"do": "wait"}})
        delay = timedelta(hours=1)
        late = [request._replace(start_delay=delay) for request in requests if request.claim.item_id == "waits"]
        await harness.engine.start([*late, *(one for one in requests if one.claim.item_id == "runs")])
        await eventually(lambda: [ran.item_id for ran in harness.ran] == ["runs"])
        await harness.engine.stop([request.claim for request in requests])

        async def ended() -> bool:
            (state,) = await harness.engine.describe([late[0].claim])
            return state.execution is not Execution.RUNNING

        await eventually(ended)
        harness.release("runs")
        await eventually(lambda: all_stand(harness, ["runs"], Status.COMPLETED))

    async def test_a_running_execution_is_cancelled_with_its_item(self, harness: EngineHarness) -> None:
        (request,) = await claimed(harness, {"long": {"do": "wait"}})
        await harness.engine.start([request])
        await eventually(lambda: len(harness.ran) == 1)
        changed = await harness.store.change_items(harness.work, ["long"], Cancellation())
        assert changed == (1, [request.claim])
        await harness.engine.stop(changed.in_flight, running=True)

        async def ended() -> bool:
            (state,) = await harness.engine.describe([request.claim])
            return state.execution is not Execution.RUNNING

        await eventually(ended)
        harness.release("long")
        assert (await item(harness, "long")).status is Status.CANCELLED

    async def test_a_failure_is_reported_with_its_error_and_may_be_started_again(self, harness: EngineHarness) -> None:
        requests = await claimed(harness, {"bad": {"do": "fail", "error": "card declined"}})
        await harness.engine.start(requests)

        async def failed() -> Item | None:
            row = await item(harness, "bad")
            return row if row.retry_count else None

        once = await eventually(failed)
        assert once is not None
        assert once.status is Status.READY
        assert once.retry_count == 1
        assert once.last_error is not None
        assert "card declined" in once.last_error
        batch = await harness.store.claim(harness.work, 1, requests[0].config.look_ahead)
        (again,) = [StartRequest(i.claim, requests[0].config, i.context_json or "", NO_DELAY) for i in batch.items]
        (outcome,) = await harness.engine.start([again])
        assert outcome.start is Start.STARTED
        await eventually(lambda: all_stand(harness, ["bad"], Status.DEAD_LETTER))
        assert len(harness.ran) == 2

    @pytest.mark.parametrize(("do", "error"), [("exit", "SystemExit"), ("end cancelled", "CancelledError")])
    async def test_what_is_no_exception_is_a_failure_too(self, harness: EngineHarness, do: str, error: str) -> None:
        await harness.engine.start(await claimed(harness, {"bad": {"do": do, "error": "no config"}}))

        async def failed() -> Item | None:
            row = await item(harness, "bad")
            return row if row.retry_count else None

        once = await eventually(failed)
        assert once is not None
        assert (once.status, once.retry_count, once.last_error) == (Status.READY, 1, f"{error}: no config")
        assert len(harness.ran) == 1

    async def test_nothing_begins_before_its_start_delay(self, harness: EngineHarness) -> None:
        requests = await claimed(harness, {"later": {"do": "succeed"}}, timedelta(seconds=1))
        before = time.monotonic()
        await harness.engine.start(requests)
        (state,) = await harness.engine.describe([requests[0].claim])
        assert state.execution is Execution.RUNNING
        await eventually(lambda: all_stand(harness, ["later"], Status.COMPLETED))
        # A server's timer may count from when it took the request, and in its own resolution.
        assert harness.ran[0].at - before >= 0.95

    async def test_describe_distinguishes_running_from_unknown_in_order(self, harness: EngineHarness) -> None:
        requests = await claimed(harness, {"here": {"do": "wait"}})
        await harness.engine.start(requests)
        await eventually(lambda: harness.ran)
        strangers = [Claim(harness.work, f"never-{n}", 1, 0) for n in range(120)]
        states = await harness.engine.describe([*strangers[:60], requests[0].claim, *strangers[60:]])
        assert [state.execution for state in states] == (
            [Execution.NOT_FOUND] * 60 + [Execution.RUNNING] + [Execution.NOT_FOUND] * 60
        )
        harness.release("here")
        await eventually(lambda: all_stand(harness, ["here"], Status.COMPLETED))

    async def test_describe_of_nothing_and_start_of_nothing(self, harness: EngineHarness) -> None:
        assert await harness.engine.describe([]) == []
        assert await harness.engine.start([]) == []

    async def test_an_outcome_may_overtake_the_record_of_its_start(self, harness: EngineHarness) -> None:
        """The cycle records DISPATCHED after the engine's answer; the execution may be over by then."""
        await harness.engine.start(await claimed(harness, {"quick": {"do": "succeed"}}))
        await eventually(lambda: all_stand(harness, ["quick"], Status.COMPLETED))
        row = await harness.store.find(harness.work, "quick")
        assert row is not None
        assert row[1] is None, "COMPLETED deletes the context"

    async def test_a_lost_claim_changes_nothing(self, harness: EngineHarness) -> None:
        """Peer bug 19: an execution that lost its claim on the way reports in vain."""
        (request,) = await claimed(harness, {"zombie": {"do": "wait"}})
        await harness.engine.start([request])
        await eventually(lambda: harness.ran)
        assert await harness.store.settle([released(request.claim, "taken for dead")]) == [True]
        harness.release("zombie")

        async def gone() -> bool:
            (state,) = await harness.engine.describe([request.claim])
            return state.execution is not Execution.RUNNING

        await eventually(gone)
        assert (await item(harness, "zombie")).status is Status.READY

    async def test_room_is_a_number_or_unlimited(self, harness: EngineHarness) -> None:
        room = harness.engine.room(DispatchConfig(item_type=harness.work))
        assert room is None or room > 0
