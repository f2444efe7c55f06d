"""The exec worker around business workflows that are independent of dispatch: outcomes, the kill switch, the guard."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.worker import Replayer

from paceline import ConfigurationError
from paceline.dispatch.decisions import released
from paceline.dispatch.engines.temporal.client import connect, connect_for_dispatch
from paceline.dispatch.engines.temporal.converter import DATA_CONVERTER
from paceline.dispatch.engines.temporal.engine import TemporalEngine
from paceline.dispatch.engines.temporal.interceptor import DispatchInterceptor
from paceline.dispatch.engines.temporal.workers import exec_worker
from paceline.dispatch.model import Change, EnqueueRequest, Item
from paceline.dispatch.ports import NullObserver, Start, StartRequest
from paceline.dispatch.registry import Domain, Registry
from paceline.dispatch.status import Status
from paceline.dispatch.worker.outcome_reporter import OutcomeReporter
from paceline.errors import StoreUnavailable
from paceline.testing import eventually
from tests.integration.temporal_billing import Billing, BillingExecWorkflow
from tests.models.held_starts import HeldStarts
from tests.models.queue_store import MemoryQueueStore

NO_DELAY = timedelta(0)


class Turnstile:
    """A guard that counts, and admits no call while it is shut."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.open = asyncio.Event()
        self.open.set()

    async def admit(self, plan: str, key: str) -> None:
        self.calls.append((plan, key))
        await self.open.wait()


class FlakyStore(MemoryQueueStore):
    """Can't be reached for the next `outages` writes."""

    outages = 0

    async def settle(self, changes: Sequence[Change], **options: Any) -> list[bool]:
        if self.outages:
            self.outages -= 1
            raise StoreUnavailable("the database is away")
        return await super().settle(changes, **options)


class Durations(NullObserver):
    """Notes how long executions took."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def executed(self, item_type: str, seconds: float) -> None:
        self.seconds.append(seconds)


class Bench:
    """An exec worker for billing, with a queue behind it."""

    def __init__(self, address: str, client: Client, domain: Domain, billing: Billing) -> None:
        self.client, self.domain, self.billing = client, domain, billing
        self.address = address
        self.store = FlakyStore()
        self.durations = Durations()
        self.outcomes = OutcomeReporter(self.store, observer=self.durations)
        self.guard = Turnstile()

    @property
    def item_type(self) -> str:
        return self.domain.item_type

    async def start(self, contexts: dict[str, Any]) -> list[StartRequest]:
        await self.store.enqueue([EnqueueRequest.of(self.item_type, key, value) for key, value in contexts.items()])
        return await self.start_queued(len(contexts))

    async def start_queued(self, items: int) -> list[StartRequest]:
        batch = await self.store.claim(self.item_type, items, NO_DELAY)
        requests = [StartRequest(i.claim, self.domain.config, i.context_json or "", NO_DELAY) for i in batch.items]
        engine = TemporalEngine(await connect_for_dispatch(self.address), self.outcomes)
        assert [outcome.start for outcome in await engine.start(requests)] == [Start.STARTED] * items
        return requests

    async def switch(self, *, on: bool) -> None:
        """Throws the kill switch and waits until the worker has read it."""
        await self.store.configure(self.domain.config.changed({"enabled": on}))

        async def known() -> bool:
            return await self.outcomes.enabled(self.item_type) is on

        await eventually(known)

    async def item(self, item_id: str) -> Item:
        row = await self.store.find(self.item_type, item_id)
        assert row is not None
        return row[0]

    async def until(self, item_id: str, status: Status) -> Item:
        async def reached() -> Item | None:
            item = await self.item(item_id)
            return item if item.status is status else None

        item = await eventually(reached)
        assert item is not None
        return item


@pytest.fixture
async def make_bench(temporal_address: str) -> AsyncIterator[Callable[..., Awaitable[Bench]]]:
    async with benches(temporal_address) as make:
        yield make


@asynccontextmanager
async def benches(address: str) -> AsyncIterator[Callable[..., Awaitable[Bench]]]:
    running: list[Any] = []

    async def make(**settings: Any) -> Bench:
        guarded, guard = settings.pop("guarded", None), settings.pop("guard", None)
        name = f"B{uuid.uuid4().hex[:12]}"
        billing = Billing()
        domain = Registry().register(
            name,
            nothing,
            workflow=BillingExecWorkflow,
            activities=(billing.charge, billing.receipt),
            guarded=guarded,
            exec_workflow_type="BillingExecWorkflow",
            exec_task_queue=f"queue-{name}",
            retry_backoff_secs=0,
            **settings,
        )
        client = await connect(address)
        bench = Bench(address, client, domain, billing)
        await bench.store.configure(domain.config)
        worker = exec_worker(
            client, domain.config.exec_task_queue, [domain], bench.outcomes, limits=HeldStarts(guard or bench.guard)
        )
        await worker.__aenter__()
        running.append(worker)
        return bench

    try:
        yield make
    finally:
        for worker in running:
            await worker.__aexit__(None, None, None)


async def nothing(item_id: str, context: Any) -> None: ...


Make = Callable[..., Awaitable[Bench]]


async def test_a_business_workflow_completes_its_item_without_knowing(make_bench: Make) -> None:
    bench = await make_bench()
    (request,) = await bench.start({"invoice-1": {}})
    await bench.until("invoice-1", Status.COMPLETED)
    assert bench.billing.charges == bench.billing.receipts == {"invoice-1": 1}
    assert await bench.client.get_workflow_handle(request.execution_id).result() == "charged invoice-1"
    (took,) = bench.durations.seconds
    assert 0 < took < 60


async def test_a_failed_activity_fails_the_item_with_what_the_business_said(make_bench: Make) -> None:
    bench = await make_bench(max_dispatch_retries=1)
    await bench.start({"invoice-1": {"declines": 3}})
    item = await bench.until("invoice-1", Status.DEAD_LETTER)
    assert item.last_error == "Declined: card of invoice-1 declined"
    assert len(bench.durations.seconds) == 1


async def test_a_bug_in_the_workflow_fails_the_item_instead_of_hanging_for_ever(make_bench: Make) -> None:
    bench = await make_bench(max_dispatch_retries=1)
    await bench.start({"invoice-1": {"bug": "missing"}})
    item = await bench.until("invoice-1", Status.DEAD_LETTER)
    assert item.last_error == "KeyError: 'missing'"


async def test_a_cancelled_execution_fails_its_item(make_bench: Make) -> None:
    bench = await make_bench(max_dispatch_retries=1)
    (request,) = await bench.start({"invoice-1": {"sleep": 600}})
    await eventually(lambda: bench.billing.charges)
    await bench.client.get_workflow_handle(request.execution_id).cancel()
    item = await bench.until("invoice-1", Status.DEAD_LETTER)
    assert item.last_error is not None
    assert "Cancelled" in item.last_error


async def test_a_workflow_that_continues_as_new_is_reported_once_at_its_end(make_bench: Make) -> None:
    bench = await make_bench()
    await bench.start({"invoice-1": {"continue": 2}})
    await bench.until("invoice-1", Status.COMPLETED)
    assert bench.billing.charges == {"invoice-1": 1}
    audit = await bench.store.audit(bench.item_type, "invoice-1", 100, None)
    assert [entry.action for entry in audit].count("COMPLETED") == 1


@pytest.mark.parametrize("context", [{}, {"declines": 3}, {"bug": "missing"}])
async def test_histories_replay(make_bench: Make, context: dict[str, Any]) -> None:
    """A worker that takes over an execution, or evicted it from its cache, replays the same steps."""
    bench = await make_bench(max_dispatch_retries=1)
    (request,) = await bench.start({"invoice-1": context})
    await replayed(bench, request)


async def test_an_outcome_is_retried_until_it_is_reported(make_bench: Make) -> None:
    bench = await make_bench()
    bench.store.outages = 4
    await bench.start({"invoice-1": {}})
    await bench.until("invoice-1", Status.COMPLETED)
    assert bench.store.outages == 0
    assert bench.billing.charges == {"invoice-1": 1}, "only the report is repeated, never the work"
    assert len(bench.durations.seconds) == 1, "and it counts once"


async def test_a_workflow_somebody_else_started_passes_untouched(make_bench: Make) -> None:
    bench = await make_bench(admission_plan="downstream")
    result = await bench.client.execute_workflow(
        "BillingExecWorkflow",
        args=["stranger", "{}"],
        id=f"stranger-{bench.item_type}",
        task_queue=bench.domain.config.exec_task_queue,
    )
    assert result == "charged stranger"
    assert bench.guard.calls == []


async def test_the_kill_switch_holds_back_what_was_already_handed_over(make_bench: Make) -> None:
    bench = await make_bench()
    await bench.store.configure(bench.domain.config.changed({"enabled": False}))
    (request,) = await bench.start({"invoice-1": {}})
    item = await bench.until("invoice-1", Status.READY)
    assert item.retry_count == 0
    assert bench.billing.attempts == {}
    await eventually(lambda: closed(bench.client, request.execution_id))
    await bench.store.configure(bench.domain.config)
    await eventually(lambda: bench.outcomes.enabled(bench.item_type))
    await bench.start_queued(1)
    await bench.until("invoice-1", Status.COMPLETED)
    assert bench.billing.charges == {"invoice-1": 1}


async def test_a_dispatcher_that_wakes_up_without_its_claim_executes_nothing(make_bench: Make) -> None:
    """It claimed and froze; its claim was recovered, the item discarded, and now it starts it all the same."""
    bench = await make_bench()
    await bench.store.enqueue([EnqueueRequest.of(bench.item_type, "invoice-1", {})])
    (item,) = (await bench.store.claim(bench.item_type, 1, NO_DELAY)).items
    await bench.store.settle([released(item.claim, "stale")])
    await bench.store.redirect(bench.item_type, ["invoice-1"], Status.CANCELLED)
    engine = TemporalEngine(await connect_for_dispatch(bench.address), bench.outcomes)
    await engine.start([StartRequest(item.claim, bench.domain.config, "{}", NO_DELAY)])
    await eventually(lambda: closed(bench.client, item.claim.execution_id))
    assert bench.billing.attempts == {}
    assert (await bench.item("invoice-1")).status is Status.CANCELLED


async def test_a_frozen_dispatchers_start_yields_to_that_of_the_claims_new_holder(make_bench: Make) -> None:
    bench = await make_bench()
    await bench.store.enqueue([EnqueueRequest.of(bench.item_type, "invoice-1", {})])
    (item,) = (await bench.store.claim(bench.item_type, 1, NO_DELAY)).items
    await bench.store.settle([released(item.claim, "stale")])
    engine = TemporalEngine(await connect_for_dispatch(bench.address), bench.outcomes)
    await engine.start([StartRequest(item.claim, bench.domain.config, "{}", NO_DELAY)])
    await bench.start_queued(1)
    await bench.until("invoice-1", Status.COMPLETED)
    assert bench.billing.attempts == {"invoice-1": 1}


async def test_the_guard_stands_before_each_attempt_of_a_guarded_activity_only(make_bench: Make) -> None:
    bench = await make_bench(admission_plan="downstream", guarded=("charge",))
    await bench.start({"invoice-1": {"declines": 2}})
    await bench.until("invoice-1", Status.COMPLETED)
    assert bench.guard.calls == [("downstream", bench.item_type)] * 3, "each attempt is a call"


async def test_without_names_every_activity_is_guarded(make_bench: Make) -> None:
    bench = await make_bench(admission_plan="downstream")
    await bench.start({"invoice-1": {}})
    await bench.until("invoice-1", Status.COMPLETED)
    assert bench.guard.calls == [("downstream", bench.item_type)] * 2


async def test_a_guard_for_an_activity_that_does_not_exist_is_refused(make_bench: Make) -> None:
    with pytest.raises(ConfigurationError, match="'chargé' is no activity"):
        await make_bench(admission_plan="downstream", guarded=("chargé",))


async def test_a_long_wait_at_the_guard_is_no_silence(make_bench: Make) -> None:
    """It lasts longer than the activity's heartbeat timeout of a second, and the activity is not given up."""
    bench = await make_bench(admission_plan="downstream", guarded=("charge",))
    bench.guard.open.clear()
    await bench.start({"invoice-1": {}})
    await eventually(lambda: bench.guard.calls)
    with pytest.raises(TimeoutError):
        await eventually(lambda: len(bench.guard.calls) > 1, within=2.0)
    assert bench.billing.attempts == {}
    bench.guard.open.set()
    await bench.until("invoice-1", Status.COMPLETED)
    assert bench.billing.attempts == {"invoice-1": 1}


class Moody:
    """A guard that answers each call from its list: admitted, wait, or unavailable. Then it admits all."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.reads = 0
        self.open = asyncio.Event()

    async def admit(self, plan: str, key: str) -> None:
        self.reads += 1
        answer = self.answers.pop(0) if self.answers else "admit"
        if answer == "wait":
            await self.open.wait()
        if answer == "fail":
            raise StoreUnavailable("the limits are away")


async def test_the_kill_switch_gives_back_what_waits_at_the_plan(make_bench: Make) -> None:
    """The business workflow, which would treat a failed charge as an answer, does not see it."""
    bench = await make_bench(admission_plan="downstream", guarded=("charge",))
    bench.guard.open.clear()
    (request,) = await bench.start({"invoice-1": {"forgives": True}})
    await eventually(lambda: bench.guard.calls)
    await bench.switch(on=False)
    item = await bench.until("invoice-1", Status.READY)
    assert item.retry_count == 0
    await eventually(lambda: closed(bench.client, request.execution_id))
    assert bench.billing.attempts == {}
    await replayed(bench, request)
    bench.guard.open.set()
    await bench.switch(on=True)
    await bench.start_queued(1)
    await bench.until("invoice-1", Status.COMPLETED)
    assert bench.billing.charges == bench.billing.receipts == {"invoice-1": 1}
    audit = await bench.store.audit(bench.item_type, "invoice-1", 100, None)
    assert [entry.action for entry in reversed(audit)] == ["CLAIMED", "RELEASED", "CLAIMED", "COMPLETED"]


@pytest.mark.parametrize("plan", [None, "downstream"])
async def test_the_kill_switch_is_looked_at_again_before_the_first_call(
    make_bench: Make, plan: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The execution has begun, but its activity was still queued when the switch was thrown."""
    bench = await make_bench(admission_plan=plan)
    looks = iter([True])

    async def enabled(item_type: str) -> bool:
        return next(looks, False)

    monkeypatch.setattr(bench.outcomes, "enabled", enabled)
    await bench.start({"invoice-1": {}})
    await bench.until("invoice-1", Status.READY)
    assert bench.billing.attempts == {}


async def test_an_execution_that_has_called_waits_at_the_plan_until_the_switch_is_on_again(make_bench: Make) -> None:
    """Given back, it would call again what it has called already."""
    guard = Moody("admit", "wait")
    bench = await make_bench(admission_plan="downstream", guarded=("charge",), guard=guard)
    await bench.start({"invoice-1": {"declines": 1}})
    await eventually(lambda: guard.reads == 2)
    await bench.switch(on=False)
    with pytest.raises(TimeoutError):
        await eventually(lambda: guard.reads > 2 or bench.billing.attempts["invoice-1"] > 1, within=1.5)
    guard.open.set()
    assert (await bench.item("invoice-1")).status is Status.CLAIMED
    await bench.switch(on=True)
    await bench.until("invoice-1", Status.COMPLETED)
    assert bench.billing.attempts == {"invoice-1": 2}


async def test_waiting_at_the_plan_uses_up_no_attempt(make_bench: Make) -> None:
    guard = Moody(*["wait"] * 5)
    bench = await make_bench(admission_plan="downstream", guarded=("charge",), guard=guard, max_dispatch_retries=1)
    (request,) = await bench.start({"invoice-1": {"timeout": 0.5}})
    await bench.until("invoice-1", Status.COMPLETED)
    assert guard.reads == 6
    assert bench.billing.attempts == {"invoice-1": 1}
    await replayed(bench, request)


async def test_a_wait_in_between_grants_no_further_attempts(make_bench: Make) -> None:
    guard = Moody("admit", "wait", "wait", "admit", "wait")
    bench = await make_bench(admission_plan="downstream", guarded=("charge",), guard=guard, max_dispatch_retries=1)
    await bench.start({"invoice-1": {"timeout": 0.5, "declines": 99}})
    item = await bench.until("invoice-1", Status.DEAD_LETTER)
    assert item.last_error == "Declined: card of invoice-1 declined"
    assert bench.billing.attempts == {"invoice-1": 3}


async def test_a_limiter_whose_store_is_away_uses_up_no_attempt(make_bench: Make) -> None:
    guard = Moody(*["fail"] * 4)
    bench = await make_bench(admission_plan="downstream", guarded=("charge",), guard=guard, max_dispatch_retries=1)
    await bench.start({"invoice-1": {"timeout": 3}})
    await bench.until("invoice-1", Status.COMPLETED)
    assert bench.billing.attempts == {"invoice-1": 1}


async def test_what_waits_at_the_plan_can_be_cancelled(make_bench: Make) -> None:
    bench = await make_bench(admission_plan="downstream", guarded=("charge",), max_dispatch_retries=1)
    bench.guard.open.clear()
    (request,) = await bench.start({"invoice-1": {"timeout": 0.5}})
    await eventually(lambda: len(bench.guard.calls) > 1)
    await bench.client.get_workflow_handle(request.execution_id).cancel()
    item = await bench.until("invoice-1", Status.DEAD_LETTER)
    assert item.last_error is not None
    assert "Cancelled" in item.last_error
    assert bench.billing.attempts == {}


async def replayed(bench: Bench, request: StartRequest) -> None:
    """Raises unless the closed execution's history replays."""
    await eventually(lambda: closed(bench.client, request.execution_id))
    replayer = Replayer(
        workflows=[BillingExecWorkflow], interceptors=[DispatchInterceptor()], data_converter=DATA_CONVERTER
    )
    await replayer.replay_workflow(await bench.client.get_workflow_handle(request.execution_id).fetch_history())


async def closed(client: Client, workflow_id: str) -> bool:
    description = await client.get_workflow_handle(workflow_id).describe()
    return description.status is not WorkflowExecutionStatus.RUNNING
