"""Release mode `direct`: payments are passed to Temporal as soon as they are stored; no dispatcher runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from paceline.dispatch.engines.temporal.client import connect
from tests.effort import is_thorough
from tests.faults.payment_stack import all_completed, check, installed, queue_depth, write_feed
from tests.temporal_namespaces import TemporalNamespace


async def test_in_direct_mode_no_dispatcher_is_needed(
    tmp_path: Path, postgres_url: str, redis_url: str, temporal_namespace: TemporalNamespace
) -> None:
    """A namespace of its own, without any Schedule; the init worker starts payments with a delay."""
    tps = 15
    ids = [f"direct-{number:03d}" for number in range((4 if is_thorough() else 2) * tps)]
    mode = {"PACELINE_PAYMENTS_MODE": "direct"}
    with installed(tmp_path, postgres_url, redis_url, temporal_namespace, tps, **mode) as (stack, bank):
        stack.paceline("config", "set", "default", "--max", str(4 * tps), "--window", "PT4S")
        stack.worker("init")
        write_feed(tmp_path / "feed.csv", ids, datetime.now(UTC) + timedelta(seconds=6))
        assert stack.paceline("payments", "submit", "feed.csv")["accepted"] == len(ids)
        assert queue_depth(postgres_url) == {"DISPATCHED": len(ids)}, "all are handed over before their time"
        stack.worker("exec")
        await all_completed(stack, postgres_url, len(ids))
        check(postgres_url, bank.get("/calls").json()["calls"], ids, tps)
        client = await connect(*temporal_namespace)
        assert [schedule async for schedule in await client.list_schedules()] == []
