"""The hard limit at the call, shared through Redis by processes that know nothing of each other."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import httpx2 as httpx
import pytest

from headgate.apps.payments.downstream.rate_gate import PermitRateGate
from headgate.apps.payments.stores.redis import RedisPermitStore
from headgate.testing import eventually
from headgate.testing.servers.redis import RedisServer
from tests import warm_start

TPS = 30


@pytest.fixture
def bank() -> Iterator[str]:
    """A bank that counts, in a process of its own."""
    words = ["headgate.apps.payments.downstream", "--port", "0", "--tps", str(TPS), "--latency-ms", "5"]
    serving = warm_start.popen([sys.executable, "-m", *words], stdout=subprocess.PIPE, text=True)
    assert serving.stdout is not None
    yield serving.stdout.readline().partition(" on ")[2].partition(",")[0]
    serving.terminate()
    serving.wait()
    serving.stdout.close()


def test_three_processes_keep_one_limit(bank: str, redis_url: str) -> None:
    """However they are held up on this machine: the bank's own record is the judge."""
    callers = [
        warm_start.popen(
            [
                sys.executable,
                "-m",
                "tests.integration.payment_calls",
                bank,
                redis_url,
                f"caller-{number}",
                "40",
                str(TPS),
            ]
        )
        for number in range(3)
    ]
    assert [caller.wait(timeout=120) for caller in callers] == [0, 0, 0]
    stats = httpx.get(f"{bank}/stats").json()
    assert (stats["executed"], stats["statuses"]) == (120, {"201": 120})
    assert stats["peakPerSecond"] <= TPS


async def test_a_permit_is_free_a_while_after_it_was_given_back_or_forgotten(redis_url: str) -> None:
    permits = RedisPermitStore(redis_url, 2)
    assert [await permits.take(name, 60.0) for name in "ab"] == [0, 0]
    assert 59 < await permits.take("c", 60.0) <= 60
    await permits.free("a", 30.0)
    assert 29 < await permits.take("c", 60.0) <= 30
    await permits.free("a", 90.0)
    assert await permits.take("c", 60.0) <= 30, "only ever sooner"
    await permits.free("nobody", 0.0)
    assert await permits.take("c", 60.0) > 0
    await permits.free("b", 0.0)

    async def taken() -> bool:
        return await permits.take("c", 60.0) == 0

    await eventually(taken)
    await permits.close()


async def test_a_permit_is_held_for_longer_only_while_it_is_held(redis_url: str) -> None:
    permits = RedisPermitStore(redis_url, 1)
    assert await permits.take("a", 10.0) == 0
    assert await permits.keep("a", 60.0)
    assert 59 < await permits.take("b", 1.0) <= 60
    await permits.free("a", 0.0)

    async def lost() -> bool:
        return not await permits.keep("a", 60.0)

    await eventually(lost)
    assert await permits.keep("nobody", 60.0) is False
    assert await permits.take("b", 1.0) == 0
    await permits.close()


async def test_while_nobody_can_count_nothing_passes(own_redis: RedisServer) -> None:
    permits = RedisPermitStore(own_redis.url, 5, timeout=0.5)
    gate = PermitRateGate(permits)
    (await gate.acquire()).release()
    own_redis.kill()
    waiting = asyncio.create_task(gate.acquire())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(waiting), 1.0)
    await asyncio.to_thread(own_redis.start)
    (await asyncio.wait_for(waiting, 60)).release()
    await gate.close()
    await permits.close()
