"""Payments end to end, all real: PostgreSQL, Temporal, Redis, worker processes, and a bank that counts.

Many payments have the same requested time. Each is executed exactly once, no sliding second brings the bank more calls
than it takes, and the trail is complete; also with the exec worker killed twice on the way and a bank that fails.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.effort import is_thorough
from tests.faults.payment_stack import all_completed, check, executed, installed, write_feed
from tests.temporal_namespaces import TemporalNamespace

TPS = 6
PAYMENTS = (10 if is_thorough() else 3) * TPS
"""Seconds of what the bank takes: long enough to be over its limit, and for two kills on the way."""


async def test_many_payments_for_one_instant(
    tmp_path: Path, postgres_url: str, redis_url: str, temporal_namespace: TemporalNamespace
) -> None:
    ids = [f"first-{number:04d}" for number in range(PAYMENTS)]
    with installed(tmp_path, postgres_url, redis_url, temporal_namespace, TPS) as (stack, bank):
        # The dispatcher starts twice as much as the bank takes, so that the limit at the call binds.
        stack.paceline("config", "set", "default", "--max", str(8 * TPS), "--window", "PT4S")
        stack.worker("all")
        write_feed(tmp_path / "feed.csv", ids, datetime.now(UTC) + timedelta(seconds=8))
        report = stack.paceline("payments", "submit", "feed.csv")
        assert (report["accepted"], report["rejectedCount"]) == (PAYMENTS, 0)
        await all_completed(stack, postgres_url, PAYMENTS)
        check(postgres_url, bank.get("/calls").json()["calls"], ids, TPS)


async def test_the_same_with_the_exec_worker_killed_twice_and_a_bank_that_fails(
    tmp_path: Path, postgres_url: str, redis_url: str, temporal_namespace: TemporalNamespace
) -> None:
    ids = [f"second-{number:04d}" for number in range(PAYMENTS)]
    faults = ("--fail", "0.2", "--lose", "0.05", "--seed", "7")
    with installed(tmp_path, postgres_url, redis_url, temporal_namespace, TPS, *faults) as (stack, bank):
        stack.paceline("config", "set", "default", "--max", str(8 * TPS), "--window", "PT4S")
        for role in ("init", "dispatch"):
            stack.worker(role)
        working = stack.worker("exec")
        write_feed(tmp_path / "feed.csv", ids, datetime.now(UTC) + timedelta(seconds=8))
        assert stack.paceline("payments", "submit", "feed.csv")["accepted"] == PAYMENTS
        for share in (0.3, 0.6):
            await executed(bank, int(share * PAYMENTS))
            working.kill()
            working = stack.worker("exec")
        await all_completed(stack, postgres_url, PAYMENTS)
        calls = bank.get("/calls").json()["calls"]
        assert {call["status"] for call in calls} >= {201, 503}
        check(postgres_url, calls, ids, TPS)
