"""Permits in Redis: a sorted set per downstream, from each holder to when its permit is free; and states."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline.downstream.permits import LOOK_AHEAD_US, Grant, PermitPolicy
from paceline.downstream.state import Reading, State
from paceline.errors import StoreUnavailable
from paceline.redis.async_client import AsyncRedisClient
from paceline.redis.protocol import Script, packed
from paceline.redis.redirects import slot_of
from paceline.redis.url import RedisUrl

_LUA = Path(__file__).with_name("lua")
NAMES = b"downstream:names"
"""The set of all downstreams."""
ATTEMPTS = 20
"""To change a state that other processes change at the same time."""


class RedisPermitStore:
    """The `PermitStore` port on one server, Sentinel or Cluster; all processes on the same Redis share the permits.

    Redis may lose data: after a restart without persistence or with an old snapshot, or after a failover. It then has
    another run id, and nothing is granted for `longest_hold` seconds.
    """

    def __init__(
        self,
        url: str,
        name: str,
        policy: PermitPolicy,
        *,
        longest_hold: float,
        timeout: float | None = None,
    ) -> None:
        self._client = AsyncRedisClient(RedisUrl.parse(url, timeout=timeout))
        self.policy = policy
        self._longest_hold = longest_hold
        self._key = f"downstream:{{{name}}}:permits".encode()
        self._take = Script(_LUA, "permit_take")
        self._free = Script(_LUA, "permit_free")

    async def take(self, holder: str, hold: float, *, now_us: int | None = None) -> Grant:
        number, spacing, burst = self.policy
        numbers = (number, round(hold * 1e6), spacing, burst, round(self._longest_hold * 1e6), LOOK_AHEAD_US)
        given = b"" if now_us is None else b"%d" % now_us
        arguments = [holder.encode(), *(b"%d" % number for number in numbers), given]
        return Grant(*await self._call(self._take, arguments))

    async def free(self, holder: str, at_us: int) -> None:
        await self._call(self._free, [holder.encode(), b"%d" % at_us])

    async def close(self) -> None:
        await self._client.close()

    async def _call(self, script: Script, arguments: list[bytes]) -> Any:
        return await self._client.execute(script.call([self._key], arguments), script, slot_of(self._key))


class RedisStateStore:
    """The `StateStore` port on one server, Sentinel or Cluster. It expires never: an operator's pause must not."""

    def __init__(
        self, url: str, name: str, *, timeout: float | None = None, client: AsyncRedisClient | None = None
    ) -> None:
        self._client = client or AsyncRedisClient(RedisUrl.parse(url, timeout=timeout))
        self._key = f"downstream:{{{name}}}:state".encode()
        self._name: bytes | None = name.encode()
        """To be added to the set of all names; None once it was."""
        self._reading = Script(_LUA, "state_read")
        self._writing = Script(_LUA, "state_write")

    async def read(self) -> Reading:
        text, now_us = await self._call(self._reading, [])
        return Reading(State.of_text(text.decode()), now_us)

    async def change(self, decide: Callable[[State, int], State]) -> Reading:
        for _ in range(ATTEMPTS):
            text, now_us = await self._call(self._reading, [])
            before = State.of_text(text.decode())
            after = decide(before, now_us)
            if after is before or await self._call(self._writing, [text, after.to_text().encode()]):
                await self._add_name()
                return Reading(after, now_us)
        raise StoreUnavailable(f"the downstream's state was changed {ATTEMPTS} times meanwhile")

    async def close(self) -> None:
        await self._client.close()

    async def _call(self, script: Script, arguments: list[bytes]) -> Any:
        return await self._client.execute(script.call([self._key], arguments), script, slot_of(self._key))

    async def _add_name(self) -> None:
        if self._name is not None:
            await self._client.execute(packed(b"SADD", NAMES, self._name), slot=slot_of(NAMES))
            self._name = None


class RedisDirectory:
    """The `DownstreamDirectory` port on one server, Sentinel or Cluster."""

    def __init__(self, url: str, *, timeout: float | None = None) -> None:
        self._url = url
        self._client = AsyncRedisClient(RedisUrl.parse(url, timeout=timeout))

    async def read_all(self) -> dict[str, Reading]:
        names = await self._client.execute(packed(b"SMEMBERS", NAMES), slot=slot_of(NAMES))
        texts = sorted(name.decode() for name in names)
        return dict(zip(texts, await asyncio.gather(*(self.of(name).read() for name in texts)), strict=True))

    def of(self, name: str) -> RedisStateStore:
        return RedisStateStore(self._url, name, client=self._client)

    async def close(self) -> None:
        await self._client.close()
