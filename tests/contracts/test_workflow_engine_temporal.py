"""The Temporal engine keeps the contract of engines, on a real server and every store."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

import pytest

from paceline.dispatch.engines.temporal.client import connect, connect_for_dispatch
from paceline.dispatch.engines.temporal.engine import TemporalEngine
from paceline.dispatch.engines.temporal.workers import exec_worker
from paceline.dispatch.model import Completion
from paceline.dispatch.ports import QueueStore
from paceline.dispatch.registry import Registry
from paceline.dispatch.stores import queue_store
from paceline.dispatch.worker.outcome_reporter import OutcomeReporter
from tests.contracts.conftest import SLOT_STORES, slot_store_url
from tests.contracts.workflow_engine import Ran, WorkflowEngineContract, end
from tests.effort import is_thorough


class TemporalHarness:
    def __init__(self, store: QueueStore) -> None:
        self.store = store
        self.work = f"WORK-{uuid.uuid4().hex}"
        self.ran: list[Ran] = []
        self._gates: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.domain = Registry().register(self.work, self._behave, max_dispatch_retries=2, retry_backoff_secs=0)
        self.outcomes = OutcomeReporter(self.store)
        self.engine: TemporalEngine

    def release(self, item_id: str) -> None:
        self._gates[item_id].set()

    async def _behave(self, item_id: str, context: Any) -> Completion | None:
        self.ran.append(Ran(item_id, context, time.monotonic()))
        if context["do"] == "wait":
            await self._gates[item_id].wait()
        return await end(context)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """On every store in the thorough profile; otherwise on PostgreSQL, and on the others in turn: the engine calls no
    store but through its port, and `test_workflow_engine_local.py` has the contract on all of them."""
    stores = SLOT_STORES
    if not is_thorough():
        others = [store for store in SLOT_STORES if store != "postgresql"]
        turn = dir(WorkflowEngineContract).index(metafunc.function.__name__)
        stores = ["postgresql", others[turn % len(others)]]
    metafunc.parametrize("harness", stores, indirect=True)


@pytest.fixture
async def harness(temporal_address: str, request: pytest.FixtureRequest) -> AsyncIterator[TemporalHarness]:
    harness = TemporalHarness(await queue_store(slot_store_url(request.param, request)))
    await harness.store.configure(harness.domain.config)
    harness.engine = TemporalEngine(await connect_for_dispatch(temporal_address), harness.outcomes)
    client = await connect(temporal_address)
    async with exec_worker(client, harness.domain.config.exec_task_queue, [harness.domain], harness.outcomes):
        yield harness
    await harness.engine.close()
    await harness.outcomes.close()
    await harness.store.close()


class TestTemporalEngine(WorkflowEngineContract):
    pass
