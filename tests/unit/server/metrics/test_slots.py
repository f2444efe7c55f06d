"""Slots, counted: refusals stand at zero before the first."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from paceline.server.metrics.slots import MAX_NAMES
from paceline.server.settings import Settings
from paceline.server.wiring.slots import open_slots
from paceline.slots import SlotRequest, WindowPolicy
from paceline.slots.model import BookingGroup


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


async def test_a_process_does_not_remember_every_config_that_it_has_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Configs come and go with a template: a process that runs for years sees any number of them."""
    for bound in ("slots.stores.sql.MAX_POLICIES", "slots.scheduler.MAX_POLICIES", "server.metrics.slots.MAX_SIZES"):
        monkeypatch.setattr(f"paceline.{bound}", 5, raising=False)
    async with open_slots(Settings.load(database_url="memory://"), registry=CollectorRegistry()) as slots:
        await slots.configure("merchant-*", WindowPolicy(1, "PT4S"))
        for n in range(12):
            await slots.assign(f"e{n}", f"merchant-{n}", "2030-03-01T16:00:00Z")
            assert (await slots.policy(f"merchant-{n}")).name == f"merchant-{n}"
        caches = slots._store._booker._policies, slots._policies, slots._observer._sizes  # type: ignore[attr-defined]
        assert [0 < len(cache) <= 5 for cache in caches] == [True] * 3


async def test_the_configs_of_a_template_are_counted_as_one() -> None:
    registry = CollectorRegistry()
    async with open_slots(Settings.load(database_url="memory://"), registry=registry) as slots:
        await slots.configure("merchant-*", WindowPolicy(1, "PT4S"))
        await slots.configure("merchant-7", WindowPolicy(5, "PT4S"))
        request = SlotRequest.of("e", "2030-03-01T16:00:00Z")
        groups = [BookingGroup((f"merchant-{n}",), [request._replace(event_id=f"e{n}")]) for n in range(1500)]
        await slots.book_groups(groups)
        await slots.assign("last", "merchant-3", "2030-03-01T16:00:00Z")
        await slots.assign("e9", "other", "2030-03-01T16:00:00Z")
    samples = [sample for metric in registry.collect() for sample in metric.samples]
    assert {sample.labels.get("config") for sample in samples} == {
        None,
        "default",
        "merchant-*",
        "merchant-7",
        "(other)",
    }
    assert registry.get_sample_value("rate_limiter_slots_assigned_total", {"config": "merchant-*"}) == 1500
    assert registry.get_sample_value("rate_limiter_slots_assigned_total", {"config": "merchant-7"}) == 1
    assert registry.get_sample_value("rate_limiter_window_lookahead_depth_count", {"config": "merchant-*"})
    assert len(samples) < 400


async def test_configs_beyond_a_number_share_their_series() -> None:
    registry = CollectorRegistry()
    async with open_slots(Settings.load(database_url="memory://"), registry=registry) as slots:
        for number in range(MAX_NAMES + 20):
            await slots.configure(f"c{number}", WindowPolicy(5, "PT4S"))
            await slots.assign(f"e{number}", f"c{number}", "2030-03-01T16:00:00Z")
    samples = [sample for metric in registry.collect() for sample in metric.samples]
    assert len({sample.labels.get("config") for sample in samples}) == 2 + MAX_NAMES  # with none, and (other)
    assert registry.get_sample_value("rate_limiter_slots_assigned_total", {"config": "(other)"}) == 21
