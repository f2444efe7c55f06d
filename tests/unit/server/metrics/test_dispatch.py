"""Dispatch, counted: every series is there before it counts, and lateness is told apart from depth."""

from __future__ import annotations

from datetime import timedelta

import pytest
from prometheus_client import CollectorRegistry

from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.meter import QueueMeter
from paceline.dispatch.model import QueueStats
from paceline.dispatch.queue import DispatchQueue
from paceline.dispatch.registry import Domain
from paceline.dispatch.status import Status
from paceline.server.metrics.dispatch import DispatchMetrics
from paceline.server.wiring.dispatch import local_dispatch
from tests.models.queue_store import MemoryQueueStore

COUNTERS = (
    "dispatch_batch_claimed_total",
    "dispatch_workflow_started_total",
    "dispatch_workflow_start_failures_total",
    "dispatch_stale_recovered_total",
    "dispatch_dead_letter_total",
    "dispatch_switch_unread_total",
)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def counts(registry: CollectorRegistry) -> set[float | None]:
    return {registry.get_sample_value(name, {"item_type": "PAYMENT"}) for name in COUNTERS}


async def test_counters_stand_at_zero_as_soon_as_a_type_is_dispatched(registry: CollectorRegistry) -> None:
    async def run(*_: object) -> None: ...

    async with DispatchQueue(MemoryQueueStore()) as queue:
        domain = Domain(DispatchConfig(item_type="PAYMENT"), run)
        async with local_dispatch(queue, [domain], observer=DispatchMetrics(registry)):
            assert counts(registry) == {0.0}


async def test_counters_stand_at_zero_as_soon_as_a_type_is_measured(registry: CollectorRegistry) -> None:
    store = MemoryQueueStore()
    async with DispatchQueue(store) as queue:
        await queue.define(DispatchConfig(item_type="PAYMENT"))
        assert counts(registry) == {None}
        await QueueMeter(store, DispatchMetrics(registry)).measure()
    assert counts(registry) == {0.0}
    assert registry.get_sample_value("dispatch_oldest_due_seconds", {"item_type": "PAYMENT"}) == 0


def test_what_is_due_later_is_deep_but_not_late(registry: CollectorRegistry) -> None:
    metrics = DispatchMetrics(registry)
    ready = {"item_type": "PAYMENT", "status": "READY"}
    for age, seconds in ((None, 0), (timedelta(minutes=7), 420), (None, 0)):
        metrics.measured(QueueStats("PAYMENT", {Status.READY: 5}, age))
        assert registry.get_sample_value("dispatch_queue_depth", ready) == 5
        assert registry.get_sample_value("dispatch_oldest_due_seconds", {"item_type": "PAYMENT"}) == seconds


def test_the_roles_of_a_process_count_together() -> None:
    registry = CollectorRegistry()
    assert DispatchMetrics.of(registry) is DispatchMetrics.of(registry)
    assert DispatchMetrics.of(CollectorRegistry()) is not DispatchMetrics.of(registry)
