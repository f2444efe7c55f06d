"""Sentinel makes a replica master, a cluster's replica takes over: limits continue. How many are admitted meanwhile:
`test_limits_failover_load.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from paceline import FixedWindow, Limiter, Plan
from paceline.errors import StoreUnavailable
from paceline.limits.model import Charge, Rule
from paceline.limits.stores.redis import AsyncRedisLimitStore
from paceline.limits.stores.redis_blocking import RedisLimitStore
from paceline.limits.stores.redis_commands import common_slot
from paceline.redis.redirects import SLOTS
from paceline.testing import eventually
from paceline.testing.availability import available
from paceline.testing.servers.redis_cluster import RedisCluster
from paceline.testing.servers.redis_sentinel import RedisSentinel
from tests.faults.limits_load import BREAKER


def test_peer_bug_06_blocking_callers_find_the_new_master_which_lacks_the_script(redis_sentinel: RedisSentinel) -> None:
    plans = [Plan("minute", FixedWindow(1000, "PT1H"), on_error="closed")]
    with Limiter(redis_sentinel.url, plans=plans, deadline=5, breaker=BREAKER) as limiter:
        assert limiter.acquire("k", ["minute"]).remaining == 999
        with redis_sentinel.master.client() as client:
            client.wait(1, 5000)
            client.script_flush()  # A replica of an old Redis may have been given the script as well.
        lost = redis_sentinel.fail_over()
        with redis_sentinel.master.client() as client:
            client.script_flush()
        after = limiter.acquire("k", ["minute"])
        if after.degraded:  # the call that found the old connection dead
            after = limiter.acquire("k", ["minute"])
        assert after.remaining == 998
        # The old master comes back as a replica and is not called any more.
        lost.start()
        assert limiter.acquire("k", ["minute"]).remaining == 997


def test_a_master_that_was_demoted_under_an_open_connection_is_left(redis_sentinel: RedisSentinel) -> None:
    rule = Rule("minute", FixedWindow(1000, "PT1H"))
    store = RedisLimitStore(redis_sentinel.url, deadline=30)
    assert store.decide([Charge("k", rule)]).remaining == 999
    demoted = redis_sentinel.master
    with demoted.client() as client:
        client.wait(1, 5000)
        redis_sentinel.wait_until(lambda: _asks_for_failover(redis_sentinel), "no failover began", 30)
        redis_sentinel.wait_until(lambda: redis_sentinel.master is not demoted, "nobody was promoted", 60)
        # The sentinels would report the same, but only some seconds later.
        client.replicaof("127.0.0.1", redis_sentinel.master.port)
    assert store.decide([Charge("k", rule)]).remaining == 998
    store.close()


def _asks_for_failover(group: RedisSentinel) -> bool:
    with group.sentinels[0].client() as sentinel:
        return bool(sentinel.execute_command("SENTINEL", "FAILOVER", group.master_name))


@pytest.fixture
def replicated_redis_cluster() -> Iterator[RedisCluster]:
    with available("redis"), RedisCluster(replicas=1, durable=False) as cluster:
        yield cluster


async def test_a_cluster_replica_takes_over(replicated_redis_cluster: RedisCluster) -> None:
    charge = Charge("k", Rule("minute", FixedWindow(1000, "PT1H")))
    # Every client notices a killed node at once. A short deadline would only end calls that a busy machine makes
    # slow, and it would be unknown whether those were counted.
    blocking = RedisLimitStore(replicated_redis_cluster.url, deadline=30)
    streaming = AsyncRedisLimitStore(replicated_redis_cluster.url, deadline=30)
    blocking.decide([charge])
    assert (await streaming.decide([charge])).remaining == 998
    masters = replicated_redis_cluster.masters
    owner = masters[common_slot([charge]) * len(masters) // SLOTS]
    with owner.client() as client:
        assert client.wait(1, 30_000) == 1
    owner.kill()

    async def remaining() -> int | None:
        try:
            return (await streaming.decide([charge])).remaining
        except StoreUnavailable:
            return None

    def remaining_for_threads() -> int | None:
        try:
            return blocking.decide([charge]).remaining
        except StoreUnavailable:
            return None

    assert await eventually(remaining, within=60) == 997
    # The first node that it asks may not know the new owner yet.
    assert await eventually(remaining_for_threads, within=60) == 996
    blocking.close()
    await streaming.close()


async def test_a_silent_cluster_node_takes_only_its_own_slots_along(replicated_redis_cluster: RedisCluster) -> None:
    rule = Rule("minute", FixedWindow(1000, "PT1H"))
    masters = replicated_redis_cluster.masters

    def on(number: int) -> Charge:
        charges = (Charge(f"k{count}", rule) for count in range(1000))
        return next(charge for charge in charges if common_slot([charge]) * len(masters) // SLOTS == number)

    lost, others = on(0), [on(1), on(2)]
    blocking = RedisLimitStore(replicated_redis_cluster.url, deadline=0.5)
    streaming = AsyncRedisLimitStore(replicated_redis_cluster.url, deadline=0.5)
    for charge in (lost, *others):
        assert blocking.decide([charge]).remaining == 999
        assert (await streaming.decide([charge])).remaining == 998
    with masters[0].client() as client:
        client.wait(1, 5000)
    # A host that hangs: the first caller waits for a deadline. The others must be called before
    # the cluster itself finds out, which then stops until the replica has taken over.
    masters[0].pause()
    failed = await asyncio.gather(
        asyncio.to_thread(blocking.decide, [lost]), streaming.decide([lost]), return_exceptions=True
    )
    assert [type(error) for error in failed] == [StoreUnavailable, StoreUnavailable]
    for charge in others:
        assert blocking.decide([charge]).remaining == 997
        assert (await streaming.decide([charge])).remaining == 996

    await eventually(lambda: not _fails(blocking, lost))

    async def recovered() -> bool:
        try:
            return (await streaming.decide([lost])).remaining < 998
        except StoreUnavailable:
            return False

    await eventually(recovered)
    blocking.close()
    await streaming.close()


def _fails(store: RedisLimitStore, charge: Charge) -> bool:
    try:
        store.decide([charge])
    except StoreUnavailable:
        return True
    return False
