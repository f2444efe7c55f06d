"""The in-process engine keeps the contract of engines."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

import pytest

from headgate.adapters.local.engine import LocalEngine
from headgate.adapters.memory.queue import MemoryQueueStore
from headgate.dispatch.registry import Registry
from headgate.dispatch.reporting import OutcomeReporter
from tests.contracts.workflow_engine import WORK, Ran, WorkflowEngineContract


class LocalHarness:
    def __init__(self) -> None:
        self.store = MemoryQueueStore()
        self.ran: list[Ran] = []
        self._gates: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        registry = Registry()
        self.domain = registry.register(WORK, self._behave, max_dispatch_retries=2, retry_backoff_secs=0)
        self.engine = LocalEngine(registry, OutcomeReporter(self.store))

    def release(self, item_id: str) -> None:
        self._gates[item_id].set()

    async def _behave(self, item_id: str, context: Any) -> None:
        self.ran.append(Ran(item_id, context, time.monotonic()))
        if context["do"] == "wait":
            await self._gates[item_id].wait()
        if context["do"] == "fail":
            raise RuntimeError(context["error"])


@pytest.fixture
async def harness() -> AsyncIterator[LocalHarness]:
    harness = LocalHarness()
    await harness.store.configure(harness.domain.config)
    yield harness
    await harness.engine.close()


class TestLocalEngine(WorkflowEngineContract):
    pass
