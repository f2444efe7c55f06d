"""The in-process engine keeps the contract of engines, on every store."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

import pytest

from paceline.dispatch.model import Completion
from paceline.dispatch.ports import QueueStore
from paceline.dispatch.registry import Registry
from paceline.dispatch.stores import queue_store
from paceline.dispatch.worker.engine import LocalEngine
from paceline.dispatch.worker.outcome_reporter import OutcomeReporter
from tests.contracts.conftest import SLOT_STORES, slot_store_url
from tests.contracts.workflow_engine import Ran, WorkflowEngineContract, end


class LocalHarness:
    def __init__(self, store: QueueStore) -> None:
        self.store = store
        self.work = "WORK"
        self.ran: list[Ran] = []
        self._gates: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        registry = Registry()
        self.domain = registry.register(self.work, self._behave, max_dispatch_retries=2, retry_backoff_secs=0)
        self.engine = LocalEngine(registry, OutcomeReporter(self.store))

    def release(self, item_id: str) -> None:
        self._gates[item_id].set()

    async def _behave(self, item_id: str, context: Any) -> Completion | None:
        self.ran.append(Ran(item_id, context, time.monotonic()))
        if context["do"] == "wait":
            await self._gates[item_id].wait()
        return await end(context)


@pytest.fixture(params=SLOT_STORES)
async def harness(request: pytest.FixtureRequest) -> AsyncIterator[LocalHarness]:
    harness = LocalHarness(await queue_store(slot_store_url(request.param, request)))
    await harness.store.configure(harness.domain.config)
    yield harness
    await harness.engine.close()
    await harness.store.close()


class TestLocalEngine(WorkflowEngineContract):
    pass
