"""The Temporal engine against what real servers do: refuse, go away, time out, keep what has ended."""

from __future__ import annotations

import asyncio
import json
import random
import string
import uuid
from datetime import timedelta
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import Worker

from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.engines.temporal.client import connect, connect_for_dispatch
from paceline.dispatch.engines.temporal.engine import TemporalEngine
from paceline.dispatch.model import Claim, EnqueueRequest
from paceline.dispatch.ports import Execution, Start, StartOutcome, StartRequest
from paceline.dispatch.status import Status
from paceline.dispatch.worker.outcome_reporter import OutcomeReporter
from paceline.errors import StoreUnavailable
from paceline.testing import TemporalServer, eventually
from tests.models.queue_store import MemoryQueueStore

NO_DELAY = timedelta(0)


@workflow.defn(name="EngineTestWorkflow", sandboxed=False)
class Behaving:
    """Plain Temporal, without any of paceline's interceptors."""

    @workflow.run
    async def run(self, item_id: str, context_json: str) -> int:
        context = json.loads(context_json)
        if context.get("sleep"):
            await workflow.sleep(context["sleep"])
        return len(context_json)


class Starts:
    """Makes start requests of an item type that no other test uses."""

    def __init__(self) -> None:
        name = f"T{uuid.uuid4().hex[:12]}"
        self.config = DispatchConfig(
            item_type=name, exec_workflow_type="EngineTestWorkflow", exec_task_queue=f"queue-{name}"
        )

    def request(
        self, item_id: str = "one", context: Any = None, *, epoch: int = 1, delay: timedelta = NO_DELAY
    ) -> StartRequest:
        claim = Claim(self.config.item_type, item_id, epoch, 0)
        return StartRequest(claim, self.config, json.dumps(context or {}), delay)

    def worker(self, client: Client) -> Worker:
        return Worker(client, task_queue=self.config.exec_task_queue, workflows=[Behaving])


@pytest.fixture
def starts() -> Starts:
    return Starts()


@pytest.fixture
async def engine(temporal_address: str) -> TemporalEngine:
    return TemporalEngine(await connect_for_dispatch(temporal_address))


async def states(engine: TemporalEngine, *claims: Claim) -> list[Execution]:
    return [state.execution for state in await engine.describe(claims)]


async def test_an_exhausted_server_is_not_the_items_fault_and_the_batch_stops_pressing(starts: Starts) -> None:
    with TemporalServer(durable=False, dynamic_config={"frontend.namespaceRPS": 5}) as server:
        engine = TemporalEngine(await connect_for_dispatch(server.address), concurrency=8)
        outcomes = await engine.start([starts.request(f"{n}") for n in range(400)])
    counted = {start: [outcome.start for outcome in outcomes].count(start) for start in Start}
    assert counted[Start.STARTED] > 0
    assert counted[Start.EXHAUSTED] > 300, "once refused, the rest is given back untried"
    assert counted[Start.STARTED] + counted[Start.EXHAUSTED] == 400
    assert "RESOURCE_EXHAUSTED" in outcomes[-1].detail


@pytest.mark.parametrize("lazy", [False, True], ids=["connected before", "never connected"])
async def test_an_unreachable_server_is_not_the_items_fault_and_proves_nothing(starts: Starts, lazy: bool) -> None:
    with TemporalServer(durable=False) as server:
        engine = TemporalEngine(await connect_for_dispatch(server.address, lazy=lazy))
    requests = [starts.request(f"{n}") for n in range(3)]
    assert [outcome.start for outcome in await engine.start(requests)] == [Start.EXHAUSTED] * 3
    assert await states(engine, requests[0].claim) == [Execution.UNKNOWN]


async def test_connecting_to_nobody_is_a_store_error() -> None:
    with pytest.raises(StoreUnavailable, match="no Temporal answers at"):
        await connect("127.0.0.1:1")


async def test_a_missing_namespace_does_not_mean_that_executions_are_lost(
    temporal_address: str, starts: Starts
) -> None:
    engine = TemporalEngine(await connect_for_dispatch(temporal_address, "nowhere"))
    request = starts.request()
    (outcome,) = await engine.start([request])
    assert outcome.start is Start.EXHAUSTED
    assert "nowhere" in outcome.detail
    assert await states(engine, request.claim) == [Execution.UNKNOWN]


async def test_a_context_of_the_queues_limit_passes_temporals(
    temporal_address: str, engine: TemporalEngine, starts: Starts
) -> None:
    """Quotes double when JSON travels in JSON: two megabytes of context would be refused as they are."""
    context = {str(n): {"name": "Zoë", "iban": "DE89370400440532013000"} for n in range(34_000)}
    request = starts.request("large", context)
    assert len(request.context_json) > 2_000_000
    assert await engine.start([request]) == [StartOutcome(Start.STARTED)]
    client = await connect(temporal_address)
    async with starts.worker(client):
        size = await client.get_workflow_handle(request.execution_id, result_type=int).result()
    assert size == len(request.context_json)


@pytest.mark.parametrize("megabytes", [3, 6])
async def test_a_context_too_large_for_temporal_is_poisoned_alone(
    engine: TemporalEngine, starts: Starts, megabytes: int
) -> None:
    noise = "".join(random.Random(1).choices(string.printable, k=megabytes * 1_000_000))
    outcomes = await engine.start([starts.request("before"), starts.request("huge", noise), starts.request("after")])
    assert [outcome.start for outcome in outcomes] == [Start.STARTED, Start.POISONED, Start.STARTED]
    assert "too large" in outcomes[1].detail


async def test_an_id_too_long_for_temporal_is_poisoned_too(engine: TemporalEngine, starts: Starts) -> None:
    """The queue counts characters, Temporal bytes."""
    (outcome,) = await engine.start([starts.request("💧" * 255)])
    assert outcome.start is Start.POISONED


async def test_a_run_timeout_counts_from_the_end_of_the_start_delay(temporal_address: str, starts: Starts) -> None:
    """Peer bug 25: an execution timeout would have ended it before it began."""
    timeout = timedelta(seconds=3)
    engine = TemporalEngine(await connect_for_dispatch(temporal_address), run_timeout=timeout)
    quick = starts.request("quick", delay=timedelta(seconds=3.5))
    stuck = starts.request("stuck", {"sleep": 60})
    await engine.start([quick, stuck])
    async with starts.worker(await connect(temporal_address)):

        async def ended() -> list[Execution] | None:
            known = await states(engine, quick.claim, stuck.claim)
            return None if Execution.RUNNING in known else known

        assert await eventually(ended) == [Execution.COMPLETED, Execution.LOST]
    (state,) = await engine.describe([stuck.claim])
    assert "timed out" in state.detail


async def test_what_has_succeeded_is_not_started_again_and_is_reported_at_once(
    temporal_address: str, starts: Starts
) -> None:
    """Its report was lost, its claim recovered, and now it is started under a new one."""
    store = MemoryQueueStore()
    await store.configure(starts.config)
    item_type = starts.config.item_type
    engine = TemporalEngine(await connect_for_dispatch(temporal_address), OutcomeReporter(store))
    await store.enqueue([EnqueueRequest.of(item_type, "one", {})])
    batch = await store.claim(item_type, 1, NO_DELAY)
    lost = batch.items[0].claim._replace(epoch=batch.items[0].claim.epoch - 1)
    async with starts.worker(await connect(temporal_address)):
        await engine.start([StartRequest(lost, starts.config, "{}", NO_DELAY)])
        await eventually(lambda: reached(engine, lost, Execution.COMPLETED))
        (again,) = await engine.start([StartRequest(batch.items[0].claim, starts.config, "{}", NO_DELAY)])
    assert again.start is Start.ALREADY_STARTED
    row = await store.find(item_type, "one")
    assert row is not None
    assert row[0].status is Status.COMPLETED


async def test_a_terminated_execution_is_lost_and_may_be_started_again(
    temporal_address: str, engine: TemporalEngine, starts: Starts
) -> None:
    request = starts.request()
    await engine.start([request])
    await (await connect(temporal_address)).get_workflow_handle(request.execution_id).terminate("by an operator")
    (state,) = await engine.describe([request.claim])
    assert state.execution is Execution.LOST
    assert "terminated" in state.detail.lower()
    later = starts.request(epoch=2)
    assert await states(engine, later.claim) == [Execution.NOT_FOUND], "nothing was started under the later claim"
    assert [outcome.start for outcome in await engine.start([later])] == [Start.STARTED]
    assert await states(engine, later.claim) == [Execution.RUNNING]


async def test_an_execution_still_waiting_under_an_older_claim_gives_way_to_the_newer(
    temporal_address: str, engine: TemporalEngine, starts: Starts
) -> None:
    """Its claim is lost, so it could neither begin nor report its outcome."""
    hour = timedelta(hours=1)
    await engine.start([starts.request(delay=hour)])
    later = starts.request(epoch=2, delay=hour)
    (outcome,) = await asyncio.wait_for(engine.start([later]), 1.5)
    assert outcome.start is Start.STARTED
    assert await states(engine, later.claim) == [Execution.RUNNING]
    description = await (await connect(temporal_address)).get_workflow_handle(later.execution_id).describe()
    assert (await description.memo_value("paceline"))["epoch"] == 2
    assert description.history_length == 1, "it waits for its time"


async def test_an_execution_that_has_begun_under_an_older_claim_goes_on(
    temporal_address: str, engine: TemporalEngine, starts: Starts
) -> None:
    async with starts.worker(await connect(temporal_address)):
        first = starts.request(context={"sleep": 600})
        await engine.start([first])
        handle = (await connect(temporal_address)).get_workflow_handle(first.execution_id)

        async def begun() -> bool:
            return (await handle.describe()).history_length > 3

        await eventually(begun)
        (outcome,) = await engine.start([starts.request(epoch=2)])
    assert outcome == StartOutcome(Start.ALREADY_STARTED, "under an older claim")


async def test_a_workflow_somebody_else_started_under_the_items_id_is_left_alone(
    temporal_address: str, engine: TemporalEngine, starts: Starts
) -> None:
    request = starts.request()
    client = await connect(temporal_address)
    theirs = await client.start_workflow(
        "EngineTestWorkflow", args=["one", "{}"], id=request.execution_id, task_queue=starts.config.exec_task_queue
    )
    (outcome,) = await engine.start([request])
    assert outcome.start is Start.ALREADY_STARTED
    assert (await client.get_workflow_handle(request.execution_id).describe()).run_id == theirs.first_execution_run_id


async def reached(engine: TemporalEngine, claim: Claim, expected: Execution) -> bool:
    return await states(engine, claim) == [expected]
