"""Limits in a real Redis Cluster whose slots move."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from paceline import FixedWindow
from paceline.errors import ConfigurationError
from paceline.limits.model import Charge, Rule
from paceline.limits.stores.redis import AsyncRedisLimitStore
from paceline.limits.stores.redis_blocking import RedisLimitStore
from paceline.limits.stores.redis_commands import common_slot, names
from paceline.redis.redirects import SLOTS
from paceline.testing.availability import available
from paceline.testing.servers.redis import RedisServer
from paceline.testing.servers.redis_cluster import RedisCluster, RedisClusterAddress

MINUTE = Rule("minute", FixedWindow(1000, "PT1M"))
HOUR = Rule("hour", FixedWindow(1000, "PT1H"))


@pytest.fixture
def own_redis_cluster() -> Iterator[RedisCluster]:
    with available("redis"), RedisCluster(durable=False) as cluster:
        yield cluster


def tell(node: RedisServer, *words: object) -> str:
    with node.client() as client:
        return str(client.execute_command(*words))


async def test_keys_spread_over_all_nodes(redis_cluster: RedisClusterAddress) -> None:
    store = AsyncRedisLimitStore(redis_cluster.url, deadline=30)
    prefix = uuid4().hex
    for user in range(60):
        chain = [Charge(f"{prefix}{user}", rule) for rule in (MINUTE, HOUR)]
        assert (await store.decide(chain)).remaining == 999
        assert (await store.decide(chain)).remaining == 998
    assert len(store._client._connections.by_address) == 3
    await store.close()


def test_a_chain_over_slots_is_refused_and_counts_nothing(redis_cluster: RedisClusterAddress) -> None:
    store = RedisLimitStore(redis_cluster.url, deadline=30)
    one, other = Charge(uuid4().hex, MINUTE), Charge(uuid4().hex, MINUTE)
    with pytest.raises(ConfigurationError, match="Cluster"):
        store.decide([one, other])
    assert store.decide([one], spend=False).remaining == 1000
    store.close()


async def test_a_slot_that_moves_loses_and_repeats_nothing(own_redis_cluster: RedisCluster) -> None:
    blocking = RedisLimitStore(own_redis_cluster.url, deadline=30)
    streaming = AsyncRedisLimitStore(own_redis_cluster.url, deadline=30)
    here, there = Charge("k", MINUTE), Charge("k", HOUR)
    slot = common_slot([here])
    masters = own_redis_cluster.masters
    source = masters[slot * len(masters) // SLOTS]
    target = next(node for node in masters if node is not source)
    source_id, target_id = tell(source, "CLUSTER", "MYID"), tell(target, "CLUSTER", "MYID")

    assert blocking.decide([here]).remaining == 999
    tell(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
    tell(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
    # Keys that are still at the source are counted there; the others at the target.
    assert (await streaming.decide([here])).remaining == 998
    assert blocking.decide([there]).remaining == 999
    assert (await streaming.decide([there])).remaining == 998

    tell(source, "MIGRATE", "127.0.0.1", target.port, names([here])[0], 0, 5000)
    for node in (target, source):
        tell(node, "CLUSTER", "SETSLOT", slot, "NODE", target_id)
    assert (await streaming.decide([here, there])).remaining == 997
    assert blocking.decide([here, there]).remaining == 996
    assert blocking.decide([here, there]).remaining == 995
    blocking.close()
    await streaming.close()
