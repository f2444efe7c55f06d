"""Redis Cluster and Sentinel, of real processes: slots shared, masters lost and replaced."""

from __future__ import annotations

import pytest
import redis
from redis.cluster import ClusterNode
from redis.cluster import RedisCluster as ClusterClient
from redis.sentinel import Sentinel

from paceline.testing import RedisCluster, RedisSentinel, RedisServer, eventually
from paceline.testing.servers.reaper import family
from paceline.testing.servers.redis_cluster import RedisClusterAddress

pytestmark = pytest.mark.full


def cluster_client(location: RedisClusterAddress) -> ClusterClient:
    return ClusterClient(startup_nodes=[ClusterNode(*node) for node in location.nodes], decode_responses=True)


def test_three_masters_share_the_keys(redis_cluster: RedisClusterAddress) -> None:
    client = cluster_client(redis_cluster)
    try:
        keys = [f"servers:{letter}" for letter in "abcdefghijkl"]
        for key in keys:
            client.set(key, key)
        assert [client.get(key) for key in keys] == keys
        owners = {client.get_node_from_key(key).port for key in keys}
        assert owners == set(redis_cluster.ports)
        assert len(owners) == 3
    finally:
        client.close()


async def test_a_cluster_replaces_a_lost_master_and_keeps_its_data_over_restarts() -> None:
    with RedisCluster(masters=3, replicas=1) as cluster:
        location, url = cluster.location, cluster.url
        processes = family({node.pid for node in cluster.members()})
        client = cluster_client(location)
        try:
            key = "servers:kept"
            client.set(key, "1")
            lost = owner(cluster, client, key)
            with lost.client() as direct:
                assert direct.wait(1, 5_000) == 1
            lost.kill()
            await eventually(lambda: can_get(client, key), within=60)
            assert owner(cluster, client, key) is not lost
            cluster.start()  # brings only the lost one back
            cluster.restart()
            assert cluster.url == url
            assert client.get(key) == "1"
        finally:
            client.close()
    assert not family(processes)


def owner(cluster: RedisCluster, client: ClusterClient, key: str) -> RedisServer:
    port = client.get_node_from_key(key).port
    return next(node for node in cluster.members() if node.port == port)


def can_get(client: ClusterClient, key: str) -> bool:
    try:
        return client.get(key) == "1"
    except redis.RedisError:
        return False


def test_sentinels_promote_a_replica_when_the_master_is_killed(redis_sentinel: RedisSentinel) -> None:
    addresses = [(sentinel.address.split(":")[0], sentinel.port) for sentinel in redis_sentinel.sentinels]
    assert redis_sentinel.url.endswith(f",{redis_sentinel.sentinels[-1].address}/mymaster")
    sentinel = Sentinel(addresses, socket_timeout=5, decode_responses=True)
    first = redis_sentinel.master
    with first.client() as client:
        client.set("a", "1")
        assert client.wait(1, 5_000) == 1

    lost = redis_sentinel.fail_over()

    assert lost is first
    assert not lost.running
    assert redis_sentinel.master is not first
    assert sentinel.discover_master("mymaster") == ("127.0.0.1", redis_sentinel.master.port)
    with redis_sentinel.master.client() as client:
        assert client.get("a") == "1"
        client.set("b", "2")
    lost.start()
    redis_sentinel.wait_until(redis_sentinel.is_whole, "the lost master did not come back as a follower")
    with lost.client() as client:
        assert client.role()[0] == "slave"
        assert client.mget("a", "b") == ["1", "2"]
    for sentinel_client in sentinel.sentinels:
        sentinel_client.close()
