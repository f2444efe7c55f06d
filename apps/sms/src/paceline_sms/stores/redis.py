"""Budgets of the SMS gateway in Redis: one hash per user at `RateLimiterCache:{userId}`, decided by Lua.

The hash expires when its window ends. In the same slot of a cluster are the calls that spent, and, after a change of
configuration, the least version to accept.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.redis.async_client import AsyncRedisClient
from paceline.redis.protocol import Script
from paceline.redis.redirects import slot_of
from paceline.redis.url import RedisUrl
from paceline_sms.model import Attempt, Verdict
from paceline_sms.ports import Lease
from paceline_sms.quota import Quota

_LUA = Path(__file__).with_name("lua")
REFUSAL_MS = 3_600_000
"""How long budgets of older versions are rejected: longer than any lease takes to arrive."""


class RedisQuotaCache:
    """The `QuotaCache` port on one server, Sentinel or Cluster."""

    def __init__(self, url: str, *, timeout: float | None = None) -> None:
        self._client = AsyncRedisClient(RedisUrl.parse(url, timeout=timeout))
        self._spend = Script(_LUA, "quota_spend")
        self._grant = Script(_LUA, "quota_grant")
        self._refund = Script(_LUA, "quota_refund")
        self._forget = Script(_LUA, "quota_forget")

    async def spend(self, attempt: Attempt, quota: Quota) -> Verdict | None:
        arguments = [
            _time(attempt.now_ms),
            b"%d" % quota.version,
            b"%d" % quota.refreshed_ms,
            attempt.call_id.encode(),
        ]
        what, now_ms, *state = await self._call(self._spend, attempt.user_id, _pair(attempt.user_id), arguments)
        if what == b"EMPTY":
            return None
        count, limit, left_ms = state
        return Verdict(what == b"ADMITTED", attempt.message_id, count, limit, left_ms, now_ms)

    async def grant(self, lease: Lease, *, now_ms: int | None = None) -> None:
        quota = lease.quota
        numbers = (
            quota.user_id,
            quota.rate_limit,
            quota.version,
            quota.refreshed_ms,
            max(1, quota.ends_ms - lease.at_ms),
            quota.count,
            lease.budget,
        )
        keys = [*_pair(quota.user_id), _least_version(quota.user_id)]
        arguments = [_time(now_ms), *(b"%d" % number for number in numbers), lease.lease_id.encode()]
        await self._call(self._grant, quota.user_id, keys, arguments)

    async def refund(self, attempt: Attempt) -> None:
        await self._call(self._refund, attempt.user_id, _pair(attempt.user_id), [attempt.call_id.encode()])

    async def forget(self, quota: Quota) -> None:
        keys = [_copy(quota.user_id), _least_version(quota.user_id)]
        await self._call(self._forget, quota.user_id, keys, [b"%d" % quota.version, b"%d" % REFUSAL_MS])

    async def close(self) -> None:
        await self._client.close()

    async def _call(self, script: Script, user_id: int, keys: list[bytes], arguments: list[bytes]) -> Any:
        return await self._client.execute(script.call(keys, arguments), script, slot_of(_copy(user_id)))


def _copy(user_id: int) -> bytes:
    return b"RateLimiterCache:%d" % user_id


def _pair(user_id: int) -> list[bytes]:
    return [_copy(user_id), b"{%b}:spent" % _copy(user_id)]


def _least_version(user_id: int) -> bytes:
    return b"{%b}:version" % _copy(user_id)


def _time(now_ms: int | None) -> bytes:
    return b"" if now_ms is None else b"%d" % now_ms
