"""The permits of the payments' downstream in Redis: one sorted set, from each permit to when it is free again."""

from __future__ import annotations

from pathlib import Path

from headgate.redis.async_client import AsyncRedisClient
from headgate.redis.protocol import Script
from headgate.redis.redirects import slot_of
from headgate.redis.url import RedisUrl

_LUA = Path(__file__).with_name("lua")
KEY = b"payments:{downstream}:permits"


class RedisPermitStore:
    """The `PermitStore` port on one server, Sentinel or Cluster; whoever shares the Redis shares the permits."""

    def __init__(self, url: str, count: int, *, timeout: float | None = None) -> None:
        self._client = AsyncRedisClient(RedisUrl.parse(url, timeout=timeout))
        self._count = count
        self._take = Script(_LUA, "permit_take")
        self._keep = Script(_LUA, "permit_keep")
        self._free = Script(_LUA, "permit_free")

    async def take(self, permit: str, hold: float) -> float:
        arguments = [permit.encode(), b"%d" % self._count, b"%d" % round(hold * 1e6)]
        return await self._call(self._take, arguments) / 1e6

    async def keep(self, permit: str, hold: float) -> bool:
        return await self._call(self._keep, [permit.encode(), b"%d" % round(hold * 1e6)]) == 1

    async def free(self, permit: str, after: float) -> None:
        await self._call(self._free, [permit.encode(), b"%d" % round(after * 1e6)])

    async def close(self) -> None:
        await self._client.close()

    async def _call(self, script: Script, arguments: list[bytes]) -> int:
        answer: int = await self._client.execute(script.call([KEY], arguments), script, slot_of(KEY))
        return answer
