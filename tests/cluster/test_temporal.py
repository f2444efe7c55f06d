"""Payments on a Temporal cluster: two processes of the real server that share every role, on PostgreSQL.

Many payments have the same requested time. Both exec workers are killed on the way, one after the other, and so is one
of the servers, with half of the history shards. Each payment is executed exactly once, no sliding second brings the
bank more calls than it takes, and the trail is complete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from paceline.testing import ServerUnavailable, TemporalCluster
from tests.cluster.balancer import Balancer
from tests.faults.payment_stack import all_completed, check, executed, installed, write_feed
from tests.temporal_namespaces import TemporalNamespace

PAYMENTS, TPS = 400, 15


@pytest.fixture(scope="module")
def cluster() -> Iterator[TemporalCluster]:
    try:
        with TemporalCluster() as cluster:
            yield cluster
    except ServerUnavailable as failure:
        pytest.fail(str(failure), pytrace=False)


@pytest.mark.timeout(1200)
async def test_payments_go_on_while_workers_and_a_server_are_killed(
    tmp_path: Path, postgres_url: str, redis_url: str, cluster: TemporalCluster
) -> None:
    assert set(cluster.shares().values()) == {2}, "each role is shared"
    ids = [f"cluster-{number:04d}" for number in range(PAYMENTS)]
    with (
        Balancer(cluster.addresses) as balancer,
        installed(tmp_path, postgres_url, redis_url, TemporalNamespace(balancer.address, "default"), TPS) as (
            stack,
            bank,
        ),
    ):
        stack.paceline("config", "set", "default", "--max", str(8 * TPS), "--window", "PT4S")
        for role in ("init", "dispatch"):
            stack.worker(role)
        working = [stack.worker("exec"), stack.worker("exec")]
        write_feed(tmp_path / "feed.csv", ids, datetime.now(UTC) + timedelta(seconds=8))
        assert stack.paceline("payments", "submit", "feed.csv")["accepted"] == PAYMENTS
        await executed(bank, PAYMENTS // 5)
        working[0].kill()
        working[0] = stack.worker("exec")
        await executed(bank, 2 * PAYMENTS // 5)
        cluster.nodes[0].kill()
        await executed(bank, 3 * PAYMENTS // 5)
        working[1].kill()
        working[1] = stack.worker("exec")
        await executed(bank, 4 * PAYMENTS // 5)
        await asyncio.to_thread(cluster.nodes[0].start)
        await all_completed(stack, postgres_url, PAYMENTS)
        check(postgres_url, bank.get("/calls").json()["calls"], ids, TPS)
