"""A Redis Cluster of six whose slots move under load, while one node is frozen and another is killed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping

import pytest

from paceline import FixedWindow
from paceline.errors import StoreUnavailable
from paceline.limits.model import Charge, Rule
from paceline.limits.stores.redis import AsyncRedisLimitStore
from paceline.limits.stores.redis_blocking import RedisLimitStore
from paceline.limits.stores.redis_commands import common_slot, names
from paceline.redis.redirects import SLOTS
from paceline.testing import eventually
from paceline.testing.availability import available
from paceline.testing.servers.redis import RedisServer
from paceline.testing.servers.redis_cluster import RedisCluster, RedisClusterNode

LIMIT = 1_000_000
RULES = [Rule("minute", FixedWindow(LIMIT, "PT1H")), Rule("day", FixedWindow(LIMIT, "P1D"))]
Ids = Mapping[RedisClusterNode, str]
MOVING = 6
"""Keys in slots that move."""


@pytest.fixture
def cluster() -> Iterator[RedisCluster]:
    with available("redis"), RedisCluster(replicas=1, durable=False) as cluster:
        yield cluster


def tell(node: RedisServer, *words: object) -> str:
    with node.client() as client:
        return str(client.execute_command(*words))


def chain(key: str) -> list[Charge]:
    return [Charge(key, rule) for rule in RULES]


def keys_of(master: int, count: int) -> list[str]:
    candidates = (f"k{number}" for number in range(10_000))
    own = (key for key in candidates if common_slot(chain(key)) * 3 // SLOTS == master)
    return [next(own) for _ in range(count)]


class Load:
    """Callers on event loop and thread that never stop; counts what was admitted and what failed, by key."""

    def __init__(self, url: str, keys: list[str]) -> None:
        self.keys = keys
        self.admitted: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self._streaming = AsyncRedisLimitStore(url, deadline=10)
        self._blocking = RedisLimitStore(url, deadline=10)
        self._stop = asyncio.Event()
        self._callers: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Load:
        for key in self.keys:
            for threaded in (False, True):
                self._callers.append(asyncio.create_task(self._call(key, threaded)))
        return self

    async def _call(self, key: str, threaded: bool) -> None:
        while not self._stop.is_set():
            try:
                if threaded:
                    await asyncio.to_thread(self._blocking.decide, chain(key))
                else:
                    await self._streaming.decide(chain(key))
            except StoreUnavailable:
                self.failed[key] += 1
                await asyncio.sleep(0.05)
            else:
                self.admitted[key] += 1
            await asyncio.sleep(0.02)

    async def progress(self, keys: list[str], calls: int = 3) -> None:
        """Until each of the keys was admitted some times more."""
        before = Counter(self.admitted)
        await eventually(lambda: all(self.admitted[key] >= before[key] + calls for key in keys), within=60)

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        await asyncio.gather(*self._callers)

    async def counted(self, key: str) -> set[int]:
        """What the store has counted, by either plan."""
        decided = [self._blocking.decide([charge], spend=False) for charge in chain(key)]
        assert (await self._streaming.decide(chain(key), spend=False)).remaining == decided[0].remaining
        return {LIMIT - decision.remaining for decision in decided}

    async def close(self) -> None:
        self._blocking.close()
        await self._streaming.close()


async def test_slots_move_under_load_while_a_node_freezes_and_another_dies(cluster: RedisCluster) -> None:
    source, target, bystander = cluster.masters
    moving, staying, others = keys_of(0, MOVING), keys_of(1, 2), keys_of(2, 2)
    load = Load(cluster.url, moving + staying + others)
    async with load:
        await load.progress(load.keys)
        ids = {node: tell(node, "CLUSTER", "MYID") for node in cluster.masters}
        for key in moving[:-1]:
            await move(key, source, target, ids, load)
        assert not load.failed, "a slot that moves is no outage"

        # In the middle of the last move, the node that has nothing to do with it freezes.
        last = moving[-1]
        begin_move(last, source, target, ids)
        first, second = names(chain(last))
        tell(source, "MIGRATE", "127.0.0.1", target.port, first, 0, 5000)
        await asyncio.to_thread(bystander.pause)
        await load.progress(moving[:-1] + staying)
        tell(source, "MIGRATE", "127.0.0.1", target.port, second, 0, 5000)
        await load.progress([last])
        end_move(last, [target, source], ids[target])
        await load.progress(others)  # its replica has taken over
    for key in moving + staying:
        # A call that failed while the cluster did not answer for its keys may have been counted.
        (counted,) = await load.counted(key)
        assert load.admitted[key] <= counted <= load.admitted[key] + load.failed[key]

    # The slots' new owner dies. Its replica continues with the replicated data.
    await asyncio.to_thread(bystander.resume)
    before = {key: await load.counted(key) for key in moving}
    with target.client() as client:
        assert client.wait(1, 30_000) == 1
    await asyncio.to_thread(target.kill)

    async def same() -> bool:
        try:
            return {key: await load.counted(key) for key in moving} == before
        except StoreUnavailable:
            return False

    await eventually(same, within=60)
    await load.close()


async def move(key: str, source: RedisClusterNode, target: RedisClusterNode, ids: Ids, load: Load) -> None:
    """Moves a key's slot, one of its two states after the other, under load."""
    begin_move(key, source, target, ids)
    for name in names(chain(key)):
        tell(source, "MIGRATE", "127.0.0.1", target.port, name, 0, 5000)
        # Until callers have seen the state in between.
        await load.progress([other for other in load.keys if other != key], calls=1)
    end_move(key, [target, source], ids[target])
    await load.progress([key])


def begin_move(key: str, source: RedisClusterNode, target: RedisClusterNode, ids: Ids) -> None:
    slot = common_slot(chain(key))
    tell(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
    tell(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target])


def end_move(key: str, nodes: list[RedisClusterNode], owner: str) -> None:
    for node in nodes:
        tell(node, "CLUSTER", "SETSLOT", common_slot(chain(key)), "NODE", owner)
