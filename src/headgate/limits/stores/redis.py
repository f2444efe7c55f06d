"""Limits kept in Redis: a decision is one script call, whatever the chain, by Redis's own clock."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.limits.model import Charge, Decision
from headgate.limits.ports import Hold, Settlement
from headgate.limits.stores.redis_calls import Calls, common_slot, decision, settlement
from headgate.limits.stores.redis_coalescing import Coalescer
from headgate.redis.async_client import AsyncRedisClient
from headgate.redis.blocking_client import RedisClient
from headgate.redis.url import RedisUrl, Shape


class RedisLimitStore:
    """A `LimitStore` in Redis, for threads. Nothing is connected before the first call."""

    def __init__(self, url: str, *, deadline: float | None = None) -> None:
        self._client = RedisClient(RedisUrl.parse(url, timeout=deadline))
        self._clustered = self._client.url.shape is Shape.CLUSTER
        self._calls = Calls()

    def decide(
        self, chain: Sequence[Charge], *, spend: bool = True, hold: Hold | None = None, now_us: int | None = None
    ) -> Decision:
        slot = common_slot(chain) if self._clustered else 0
        if spend and hold is None:
            command = self._calls.spending(chain, now_us)
        else:
            command = self._calls.deciding(chain, spend, hold, now_us)
        return decision(chain, self._client.execute(command, self._calls.script, slot))

    def refund(self, chain: Sequence[Charge], *, now_us: int | None = None) -> None:
        slot = common_slot(chain) if self._clustered else 0
        self._client.execute(self._calls.refunding(chain, now_us), self._calls.script, slot)

    def settle(self, hold_id: str, chain: Sequence[Charge], actual: int, *, now_us: int | None = None) -> Settlement:
        slot = common_slot(chain) if self._clustered else 0
        command = self._calls.settling(hold_id, chain, actual, now_us)
        return settlement(self._client.execute(command, self._calls.script, slot))

    def reset(self, chain: Sequence[Charge]) -> None:
        slot = common_slot(chain) if self._clustered else 0
        self._client.execute(self._calls.resetting(chain), None, slot)

    def close(self) -> None:
        self._client.close()


class AsyncRedisLimitStore:
    """`RedisLimitStore` for event loops: concurrent calls share a connection and travel in one packet a turn, and those
    that ask the very same are decided by one run of the script, one after another."""

    def __init__(self, url: str, *, deadline: float | None = None) -> None:
        self._client = AsyncRedisClient(RedisUrl.parse(url, timeout=deadline))
        self._clustered = self._client.url.shape is Shape.CLUSTER
        self._calls = Calls()
        self._crowds = Coalescer(self._calls, self._client)

    async def decide(
        self, chain: Sequence[Charge], *, spend: bool = True, hold: Hold | None = None, now_us: int | None = None
    ) -> Decision:
        slot = common_slot(chain) if self._clustered else 0
        if spend and hold is None:
            reply, time = await self._crowds.join(chain, now_us, slot)
            return decision(chain, reply, time)
        command = self._calls.deciding(chain, spend, hold, now_us)
        return decision(chain, await self._client.execute(command, self._calls.script, slot))

    async def refund(self, chain: Sequence[Charge], *, now_us: int | None = None) -> None:
        slot = common_slot(chain) if self._clustered else 0
        await self._client.execute(self._calls.refunding(chain, now_us), self._calls.script, slot)

    async def settle(
        self, hold_id: str, chain: Sequence[Charge], actual: int, *, now_us: int | None = None
    ) -> Settlement:
        slot = common_slot(chain) if self._clustered else 0
        command = self._calls.settling(hold_id, chain, actual, now_us)
        return settlement(await self._client.execute(command, self._calls.script, slot))

    async def reset(self, chain: Sequence[Charge]) -> None:
        slot = common_slot(chain) if self._clustered else 0
        await self._client.execute(self._calls.resetting(chain), None, slot)

    async def close(self) -> None:
        await self._client.close()
