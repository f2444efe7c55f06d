"""Workers as a process has them: together, versioned, and without a database driver in their workflows."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import uuid
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from temporalio import activity
from temporalio.api.workflowservice.v1 import DescribeWorkerDeploymentRequest, SetWorkerDeploymentCurrentVersionRequest
from temporalio.client import Client
from temporalio.common import WorkerDeploymentVersion
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Worker

from paceline.dispatch.engines.temporal.claim_memo import KEY, ClaimMemo
from paceline.dispatch.engines.temporal.client import connect
from paceline.dispatch.engines.temporal.engine import TemporalEngine
from paceline.dispatch.engines.temporal.schedule import DISPATCH_TASK_QUEUE
from paceline.dispatch.engines.temporal.versioning import make_current_if_first, versioned
from paceline.dispatch.engines.temporal.worker_group import TemporalWorkerGroup
from paceline.dispatch.engines.temporal.workers import WorkerOptions, exec_worker
from paceline.dispatch.model import EnqueueRequest
from paceline.dispatch.registry import Domain, Registry
from paceline.dispatch.status import Status
from paceline.dispatch.worker.cycle import DispatchCycle
from paceline.dispatch.worker.outcome_reporter import OutcomeReporter
from paceline.errors import ConfigurationError
from paceline.server.settings import Settings
from paceline.server.wiring.temporal import temporal_worker_group
from paceline.testing import eventually
from tests.integration.temporal_billing import Billing, BillingExecWorkflow, BillingInitWorkflow
from tests.models.held_starts import HeldStarts
from tests.models.queue_store import MemoryQueueStore

pytestmark = pytest.mark.quick


def domain(billing: Billing) -> Domain:
    name = f"W{uuid.uuid4().hex[:12]}"
    return Registry().register(
        name,
        nothing,
        workflow=BillingExecWorkflow,
        activities=(billing.charge, billing.receipt),
        exec_workflow_type="BillingExecWorkflow",
        exec_task_queue=f"queue-{name}",
    )


async def nothing(item_id: str, context: Any) -> None: ...


def worker(client: Client, domain: Domain, options: WorkerOptions | None = None) -> Worker:
    outcomes = OutcomeReporter(MemoryQueueStore())
    return exec_worker(client, domain.config.exec_task_queue, [domain], outcomes, options=options)


async def run_one(client: Client, domain: Domain, item_id: str, context: str = "{}", **options: Any) -> Any:
    return await client.start_workflow(
        "BillingExecWorkflow",
        args=[item_id, context],
        id=f"{domain.item_type}-{item_id}",
        task_queue=domain.config.exec_task_queue,
        **options,
    )


class Turnstile:
    """A guard that holds an activity until its worker shuts down."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()

    async def admit(self, plan: str, key: str) -> None:
        self.requested.set()
        await activity.wait_for_worker_shutdown()


async def test_a_crew_that_is_stopped_lets_activities_in_flight_finish(temporal_address: str) -> None:
    client = await connect(temporal_address)
    billing, guard, store = Billing(), Turnstile(), MemoryQueueStore()
    work = domain(billing)
    await store.configure(work.config.changed({"admissionPlan": "plan"}))
    held = exec_worker(client, work.config.exec_task_queue, [work], OutcomeReporter(store), limits=HeldStarts(guard))
    crew = TemporalWorkerGroup(client, [held])
    assert crew.task_queues == [work.config.exec_task_queue]
    stop = asyncio.Event()
    running = asyncio.create_task(crew.run(stop))
    await store.enqueue([EnqueueRequest.of(work.item_type, "one", {})])
    (item,) = (await store.claim(work.item_type, 1, timedelta(0))).items
    memo = ClaimMemo(item.claim)
    await run_one(client, work, "one", memo={KEY: memo.to_json()})
    await asyncio.wait_for(guard.requested.wait(), 20)
    stop.set()
    await asyncio.wait_for(running, 20)
    assert billing.charges == {"one": 1}


async def test_what_a_stopped_worker_does_not_finish_goes_back_and_counts_no_retry(temporal_address: str) -> None:
    client, store, began = await connect(temporal_address), MemoryQueueStore(), asyncio.Event()

    async def execute(_item_id: str, _context: Any) -> None:
        began.set()
        await asyncio.Event().wait()

    work = Registry().register(f"LONG-{uuid.uuid4().hex}", execute, max_dispatch_retries=1)
    await store.configure(work.config)
    await store.enqueue([EnqueueRequest.of(work.item_type, "one", {})])
    outcomes, hasty = OutcomeReporter(store), WorkerOptions(grace=timedelta(seconds=0.1))
    async with exec_worker(client, work.config.exec_task_queue, [work], outcomes, options=hasty):
        await DispatchCycle(store, TemporalEngine(client, outcomes)).run(work.item_type)
        await asyncio.wait_for(began.wait(), 20)
    async with exec_worker(client, work.config.exec_task_queue, [work], outcomes):

        async def back() -> bool:
            row = await store.find(work.item_type, "one")
            return row is not None and (row[0].status, row[0].retry_count) == (Status.READY, 0)

        await eventually(back)


async def test_a_crew_for_every_role_and_task_queue(temporal_address: str) -> None:
    settings = Settings.load(database_url="memory://", temporal_address=temporal_address)
    billing = Billing()
    work, other = domain(billing), domain(billing)
    work = replace(work, init_workflows=(BillingInitWorkflow,), init_activities=(billing.prepare,))
    store = MemoryQueueStore()
    await store.configure(other.config.changed({"execTaskQueue": work.config.exec_task_queue}))
    exec_queue, init_queue = work.config.exec_task_queue, work.init_task_queue

    async def crew(*roles: str) -> TemporalWorkerGroup:
        return await temporal_worker_group(settings, [work, other], store, roles)

    assert (await crew("dispatch", "init", "exec")).task_queues == [DISPATCH_TASK_QUEUE, init_queue, exec_queue], (
        "the config in the database says where the other runs"
    )
    assert (await crew("dispatch")).task_queues == [DISPATCH_TASK_QUEUE]
    preparing = await crew("init")
    assert preparing.task_queues == [init_queue]
    client, stop = await connect(temporal_address), asyncio.Event()
    running = asyncio.create_task(preparing.run(stop))
    prepared = await client.execute_workflow(
        BillingInitWorkflow.run, "one", id=f"init-{work.item_type}", task_queue=init_queue
    )
    assert prepared == "prepared one"
    stop.set()
    await asyncio.wait_for(running, 20)


async def test_temporal_needs_an_address() -> None:
    with pytest.raises(ConfigurationError, match="PACELINE_TEMPORAL_ADDRESS"):
        await temporal_worker_group(Settings.load(database_url="memory://"), [], MemoryQueueStore(), ["exec"])


async def test_a_crew_stopped_before_it_began_ends_at_once(temporal_address: str) -> None:
    client, stop = await connect(temporal_address), asyncio.Event()
    stop.set()
    await asyncio.wait_for(TemporalWorkerGroup(client, [worker(client, domain(Billing()))]).run(stop), 20)


async def test_a_worker_group_reports_when_it_can_not_work(temporal_address: str) -> None:
    client = await connect(temporal_address, "nowhere")
    with pytest.raises(Exception, match="nowhere"):
        await asyncio.wait_for(
            TemporalWorkerGroup(client, [worker(client, domain(Billing()))]).run(asyncio.Event()), 20
        )


async def test_executions_stay_with_the_version_they_began_on(temporal_address: str) -> None:
    client = await connect(temporal_address)
    deployment = f"paceline-{uuid.uuid4().hex[:8]}"
    old, new = Billing(), Billing()
    work = domain(old)
    build_1, build_2 = versioned("build-1", deployment), versioned("build-2", deployment)
    async with worker(client, work, WorkerOptions(deployment=build_1)):
        assert await make_current_if_first(client, build_1.version)
        assert await make_current_if_first(client, build_1.version), "asking again changes nothing"
        begun = await run_one(client, work, "long", '{"sleep": 1}')
        await eventually(lambda: old.charges)
        renewed = Domain(work.config, nothing, BillingExecWorkflow, (new.charge, new.receipt))
        async with worker(client, renewed, WorkerOptions(deployment=build_2)):
            await eventually(lambda: known(client, build_2.version))
            assert not await make_current_if_first(client, build_2.version), "an operator promotes the next one"
            await eventually(lambda: promote(client, build_2.version), every=0.1)
            await (await run_one(client, work, "next")).result()
            await begun.result()
    assert (old.receipts, new.receipts) == ({"long": 1}, {"next": 1})


async def promote(client: Client, version: WorkerDeploymentVersion) -> bool:
    """False while some of its task queues are not registered yet."""
    try:
        await client.workflow_service.set_worker_deployment_current_version(
            SetWorkerDeploymentCurrentVersionRequest(
                namespace=client.namespace, deployment_name=version.deployment_name, build_id=version.build_id
            )
        )
    except RPCError as error:
        if error.status is not RPCStatusCode.FAILED_PRECONDITION:
            raise
        return False
    return True


async def known(client: Client, version: WorkerDeploymentVersion) -> bool:
    deployment = await client.workflow_service.describe_worker_deployment(
        DescribeWorkerDeploymentRequest(namespace=client.namespace, deployment_name=version.deployment_name)
    )
    summaries = deployment.worker_deployment_info.version_summaries
    return any(summary.deployment_version.build_id == version.build_id for summary in summaries)


@pytest.mark.parametrize("module", ["dispatcher", "item_workflow", "interceptor", "workers"])
def test_no_database_driver_is_loaded_into_workflows(module: str) -> None:
    """Peer bug 25: SQLAlchemy stays out of workflow modules."""
    code = f"import sys, paceline.dispatch.engines.temporal.{module}; sys.exit('sqlalchemy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
