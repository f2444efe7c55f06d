"""Slots, counted: refusals stand at zero before the first."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from headgate.bootstrap.scheduling import slot_scheduler
from headgate.settings import Settings


async def test_refusals_of_the_default_config_stand_at_zero() -> None:
    registry = CollectorRegistry()
    async with slot_scheduler(Settings.load(database_url="memory://"), registry=registry):
        labels = {"config": "default", "reason": "exhausted"}
        assert registry.get_sample_value("rate_limiter_slot_assignment_failures_total", labels) == 0
