"""Limits kept in Redis: a decision is one script call, whatever the chain, by Redis's own clock.

The form for threads is generated from this file: `scripts/generate_blocking.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from paceline.limits.keys import KeyStart
from paceline.limits.model import Charge, Decision
from paceline.limits.ports import Hold, Settlement
from paceline.limits.stores.redis_coalescing import Coalescer
from paceline.limits.stores.redis_commands import Commands, check_slots, common_slot, decision, runs_of, settlement
from paceline.redis.async_client import AsyncRedisClient
from paceline.redis.url import RedisUrl, Topology

MAX_PIPELINE = 1000
"""The most script runs in one packet of a batch."""


class AsyncRedisLimitStore:
    """A `LimitStore` in Redis, for event loops. Nothing is connected before the first call.

    Concurrent calls share a connection and one packet per turn of the loop.
    Equal calls are coalesced into one run of the script.
    """

    def __init__(self, url: str, *, deadline: float | None = None) -> None:
        self._client = AsyncRedisClient(RedisUrl.parse(url, timeout=deadline))
        self._is_cluster = self._client.url.topology is Topology.CLUSTER
        self._commands = Commands(self._client.url.prefix)
        self._coalescer = Coalescer(self._commands, self._client)  # async only

    def check_chain(self, keys: Sequence[Sequence[KeyStart]]) -> None:
        """Raises `ConfigurationError` if keys with these prefixes never share a slot of a cluster."""
        if self._is_cluster:
            check_slots(keys)

    async def decide(
        self, chain: Sequence[Charge], *, spend: bool = True, hold: Hold | None = None, now_us: int | None = None
    ) -> Decision:
        slot = common_slot(chain) if self._is_cluster else 0
        if spend and hold is None:
            # async only: begin
            reply, time = await self._coalescer.join(chain, now_us, slot)
            return decision(chain, reply, time)
            # async only: end
            # blocking: command = self._commands.spending(chain, now_us)
            # blocking: return decision(chain, self._client.execute(command, self._commands.script, slot))
        command = self._commands.deciding(chain, spend, hold, now_us)
        return decision(chain, await self._client.execute(command, self._commands.script, slot))

    async def decide_many(self, chains: Sequence[Sequence[Charge]], *, now_us: int | None = None) -> list[Decision]:
        decisions: list[Decision | None] = [None] * len(chains)
        runs = runs_of(chains)
        for first in range(0, len(runs), MAX_PIPELINE):
            sent = runs[first : first + MAX_PIPELINE]
            calls = [
                (
                    self._commands.spending(chain, now_us, len(positions)),
                    common_slot(chain) if self._is_cluster else 0,
                )
                for chain, positions in sent
            ]
            replies = await self._client.execute_many(calls, self._commands.script)
            for (chain, positions), reply in zip(sent, replies, strict=True):
                for time, position in enumerate(positions):
                    decisions[position] = decision(chain, reply, time)
        return cast(list[Decision], decisions)

    async def refund(self, chain: Sequence[Charge], *, now_us: int | None = None) -> None:
        slot = common_slot(chain) if self._is_cluster else 0
        await self._client.execute(self._commands.refunding(chain, now_us), self._commands.script, slot)

    async def settle(
        self, hold_id: str, chain: Sequence[Charge], actual: int | Sequence[int], *, now_us: int | None = None
    ) -> Settlement:
        slot = common_slot(chain) if self._is_cluster else 0
        command = self._commands.settling(hold_id, chain, actual, now_us)
        return settlement(await self._client.execute(command, self._commands.script, slot))

    async def renew(
        self, hold_id: str, chain: Sequence[Charge], ttl_us: int, *, now_us: int | None = None
    ) -> Settlement:
        slot = common_slot(chain) if self._is_cluster else 0
        command = self._commands.renewing(hold_id, chain, ttl_us, now_us)
        return settlement(await self._client.execute(command, self._commands.script, slot))

    async def reset(self, chain: Sequence[Charge]) -> None:
        slot = common_slot(chain) if self._is_cluster else 0
        await self._client.execute(self._commands.resetting(chain), None, slot)

    async def close(self) -> None:
        await self._client.close()
