"""The hard limit at the call, shared by independent processes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.downstream.permits import PermitPolicy
from paceline.downstream.rate_gate import PermitRateGate
from paceline.downstream.stores.redis import RedisPermitStore
from paceline.sql.databases import database
from paceline.testing.servers.redis import RedisServer
from tests.faults.bank import Bank

TPS = 25
CALLS = 20


@pytest.mark.parametrize("kind", ["redis", "postgresql", "sqlite"])
async def test_three_processes_keep_one_limit(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """However they are held up on this machine: the bank's own record is the judge."""
    fixtures = {"redis": "redis_url", "postgresql": "postgres_url"}
    store = request.getfixturevalue(fixtures[kind]) if kind in fixtures else f"sqlite:///{tmp_path / 'permits.db'}"
    if kind != "redis":
        await (await database(store)).close()
    with Bank(latency=0.005) as bank:
        words = [sys.executable, "-m", "tests.integration.payment_calls", bank.url, store]
        callers = [subprocess.Popen([*words, f"caller-{number}", str(CALLS), str(TPS)]) for number in range(3)]
        ended = [await asyncio.to_thread(caller.wait, timeout=120) for caller in callers]
        assert (ended, len(bank.executed), len(bank.arrivals)) == ([0, 0, 0], 3 * CALLS, 3 * CALLS)
        assert bank.peak() <= TPS


async def test_while_nobody_can_count_nothing_passes(own_redis: RedisServer) -> None:
    permits = RedisPermitStore(own_redis.url, "bank", PermitPolicy(5, 1), longest_hold=0.0, timeout=0.5)
    gate = PermitRateGate(permits, call_timeout=10.0)
    (await gate.acquire()).release()
    own_redis.kill()
    waiting = asyncio.create_task(gate.acquire())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(waiting), 1.0)
    await asyncio.to_thread(own_redis.start)
    (await asyncio.wait_for(waiting, 60)).release()
    await gate.close()
    await permits.close()
