"""Slots, counted: refusals stand at zero before the first."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from headgate.server.settings import Settings
from headgate.server.wiring.slots import open_slots
from headgate.slots import SlotRequest


async def test_refusals_of_the_default_config_stand_at_zero() -> None:
    registry = CollectorRegistry()
    async with open_slots(Settings.load(database_url="memory://"), registry=registry):
        labels = {"config": "default", "reason": "exhausted"}
        assert registry.get_sample_value("rate_limiter_slot_assignment_failures_total", labels) == 0


async def test_names_that_do_not_exist_leave_nothing_behind_for_events_that_do() -> None:
    registry = CollectorRegistry()
    async with open_slots(Settings.load(database_url="memory://"), registry=registry) as slots:
        await slots.assign("known", "default", "2030-03-01T16:00:00Z")
        before = {sample.labels.get("config") for metric in registry.collect() for sample in metric.samples}
        for n in range(20):
            assert (await slots.assign("known", f"unknown-{n}", "2030-03-01T16:00:00Z")).existing
            await slots.book([SlotRequest("known", 0)], f"unknown-{n}")
        after = {sample.labels.get("config") for metric in registry.collect() for sample in metric.samples}
        assert after - before <= {"(other)"}
        assert set(slots._writers) == {"default"}
