"""Every metric of the contract, with its labels, after what it counts has happened to a real service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import httpx2 as httpx
import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from paceline import DispatchQueue
from paceline.testing import eventually
from tests.acceptance.service import Service

ROOT = Path(__file__).parents[2]
SOON = "2030-03-01T16:00:00Z"
INVOICE = {"customer": "ACME", "total": "1", "currency": "EUR"}
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]

COUNTED = [
    ("rate_limiter_slot_assignment_duration_seconds_count", {"config": "tight"}),
    ("rate_limiter_slot_transaction_duration_seconds_count", {"config": "tight"}),
    ("rate_limiter_slot_batch_size_count", {"config": "tight"}),
    ("rate_limiter_window_contention_total", {"config": "tight"}),
    ("rate_limiter_window_lookahead_depth_count", {"config": "tight"}),
    ("rate_limiter_config_cache_hits_total", {}),
    ("rate_limiter_config_cache_misses_total", {}),
    ("rate_limiter_slot_assignment_failures_total", {"config": "tight", "reason": "exhausted"}),
    ("dispatch_batch_claimed_total", {"item_type": "INVOICE"}),
    ("dispatch_workflow_started_total", {"item_type": "INVOICE"}),
    ("dispatch_workflow_start_failures_total", {"item_type": "INVOICE"}),
    ("dispatch_stale_recovered_total", {"item_type": "INVOICE"}),
    ("dispatch_dead_letter_total", {"item_type": "INVOICE"}),
    ("dispatch_cycle_duration_seconds_count", {"item_type": "INVOICE"}),
    ("rate_limiter_decisions_total", {"plan": "gold", "outcome": "OK"}),
    ("rate_limiter_decisions_total", {"plan": "gold", "outcome": "DENIED"}),
    ("rate_limiter_store_duration_seconds_count", {"operation": "decide"}),
    ("rate_limiter_breaker_state", {"state": "closed"}),
    ("notification_send_duration_seconds_count", {"path": "sql", "outcome": "SENT"}),
]
"""At least once each."""


@pytest.fixture
async def service(tmp_path: Path, postgres_url: str) -> AsyncIterator[Service]:
    variables = {
        "PACELINE_DATABASE_URL": postgres_url,
        "PACELINE_DISPATCH_DOMAINS": "examples.invoices.invoices:tasks",
        "INVOICES_FOLDER": str(tmp_path / "sent"),
        "PYTHONPATH": str(ROOT),
    }
    with Service(tmp_path, **variables) as running:
        yield running


async def test_every_metric_of_the_contract_is_there(service: Service, postgres_url: str) -> None:
    async with httpx.AsyncClient(base_url=service.url, timeout=30) as http:
        await book(http, postgres_url)
        await decide(http)
        await dispatch(http, postgres_url)

        async def missing() -> list[str]:
            samples = read((await http.get("/metrics")).text)
            return [f"{name}{labels}" for name, labels in COUNTED if not samples.get((name, frozenset(labels.items())))]

        async def complete() -> bool:
            return not await missing()

        try:
            await eventually(complete, within=30)
        except TimeoutError:
            pytest.fail(f"not counted: {await missing()}")
        text = (await http.get("/metrics")).text
        depths = {dict(labels)["status"] for name, labels in read(text) if name == "dispatch_queue_depth"}
        assert depths == {
            "READY",
            "CLAIMED",
            "DISPATCHED",
            "COMPLETED",
            "FAILED",
            "UNKNOWN",
            "DEAD_LETTER",
            "CANCELLED",
        }
        assert {name for name, _ in read((await http.get("/q/metrics")).text)} >= {name for name, _ in COUNTED}


async def book(http: httpx.AsyncClient, postgres_url: str) -> None:
    config = {"configName": "tight", "maxPerWindow": 1, "windowSize": "PT4S", "maxDelay": "PT0S"}
    assert (await http.post("/admin/rate-limit/config", json=config)).is_success
    for _ in range(2):
        assert (await http.get("/admin/rate-limit/config", params={"name": "tight"})).is_success
    assert (await http.post("/admin/rate-limit/cache/flush")).is_success
    assert (await http.get("/admin/rate-limit/config", params={"name": "tight"})).is_success
    slot = {"eventId": "first", "configName": "tight", "requestedTime": SOON}
    assert (await http.post("/api/v1/slots", json=slot)).status_code == 200
    assert (await http.post("/api/v1/slots", json=slot | {"eventId": "second"})).status_code == 503
    minutes = iter(range(1, 60))

    async def depth_is_counted() -> bool:
        """Depths are measured in windows; their size is read in the background, when a config is first seen."""
        minute = next(minutes)
        another = slot | {"eventId": f"after-{minute}", "requestedTime": f"2030-03-01T16:{minute:02}:00Z"}
        assert (await http.post("/api/v1/slots", json=another)).status_code == 200
        return 'rate_limiter_window_lookahead_depth_count{config="tight"}' in (await http.get("/metrics")).text

    await eventually(depth_is_counted, every=0.5)
    # Somebody else is about to commit a slot for the same event, under another config.
    async with await psycopg.AsyncConnection.connect(postgres_url) as other:
        await other.execute(
            "INSERT INTO paceline_slot SELECT 'wanted', 'other', config_version, requested_at, window_start, "
            "scheduled_at, created_at FROM paceline_slot WHERE event_id = 'first'"
        )
        later = slot | {"eventId": "wanted", "requestedTime": "2030-03-01T17:00:00Z"}
        asked = asyncio.create_task(http.post("/api/v1/slots", json=later))
        await eventually(lambda: waits(postgres_url), within=30)
        await other.commit()
    answer = (await asked).json()
    assert (answer["existing"], answer["configName"]) == (True, "other")


async def waits(postgres_url: str) -> bool:
    async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as watching:
        found = await watching.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        row = await found.fetchone()
        return row is not None and row[0] > 0


async def decide(http: httpx.AsyncClient) -> None:
    plan = {"algorithm": "token_bucket", "capacity": 1, "perSecond": 0.001}
    assert (await http.put("/admin/plans/gold", json=plan)).is_success
    decided = [await http.post("/api/v1/limits/acquire", json={"key": "u", "plans": ["gold"]}) for _ in range(2)]
    assert [decision.status_code for decision in decided] == [200, 429]
    assert (await http.post("/api/config", json={"userId": 1, "rateLimit": 1, "timeWindow": 1})).is_success
    assert (await http.post("/api/send", json={"userId": 1, "message": "hello"})).status_code == 200


async def dispatch(http: httpx.AsyncClient, postgres_url: str) -> None:
    """One item succeeds, one fails for good, one can't be read, and one was claimed by a process that died."""
    off = {"enabled": False, "maxDispatchRetries": 0, "dispatchIntervalSecs": 0.1, "staleClaimThresholdMins": 0.005}
    assert (await http.patch("/admin/dispatch/INVOICE", json=off)).is_success
    async with DispatchQueue.open(postgres_url) as queue:
        await queue.enqueue("INVOICE", "lost", context=INVOICE)
        claimed = await queue.store.claim("INVOICE", 1, timedelta(0))
        assert [item.claim.item_id for item in claimed.items] == ["lost"]
        await queue.enqueue("INVOICE", "good", context=INVOICE)
        await queue.enqueue("INVOICE", "bad", context={"no": "invoice"})
        await queue.enqueue("INVOICE", "torn", context=INVOICE)
    async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as other:
        await other.execute("UPDATE paceline_dispatch_context SET context_json = '{' WHERE item_id = 'torn'")
    assert (await http.patch("/admin/dispatch/INVOICE", json={"enabled": True})).is_success


def read(text: str) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
