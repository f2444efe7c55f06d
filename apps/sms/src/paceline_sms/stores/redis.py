"""Quotas of the SMS gateway in Redis: one hash per user at `RateLimiterCache:{userId}`, decided by Lua.

The hash expires when its window ends. In the same slot of a cluster are one record per idempotency key and, after a
change of configuration, the least version to accept.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.redis.async_client import AsyncRedisClient
from paceline.redis.protocol import Script
from paceline.redis.redirects import slot_of
from paceline.redis.url import RedisUrl
from paceline_sms.model import Attempt, KeyReused, Verdict
from paceline_sms.ports import Busy, Hit, Miss
from paceline_sms.quota import Quota, Spending

_LUA = Path(__file__).with_name("lua")
KEY_LIFE_MS = 24 * 3_600_000
"""How long the record of an idempotency key is kept; as long as in the database."""
REFUSAL_MS = 3_600_000
"""How long copies of older versions are rejected: longer than any read of the database takes."""


class RedisQuotaCache:
    """The `QuotaCache` port on one server, Sentinel or Cluster."""

    def __init__(self, url: str, *, timeout: float | None = None, publish_seconds: float = 10.0) -> None:
        self._client = AsyncRedisClient(RedisUrl.parse(url, timeout=timeout))
        self._lease_ms = round(publish_seconds * 1000)
        self._spend = Script(_LUA, "quota_spend")
        self._learn = Script(_LUA, "quota_learn")
        self._forget = Script(_LUA, "quota_forget")
        self._settle = Script(_LUA, "quota_settle")

    @property
    def incarnation(self) -> int:
        return self._client.opened

    async def spend(self, attempt: Attempt) -> Hit | Miss | Busy:
        keys = [_copy(attempt.user_id)]
        if attempt.keyed:
            keys.append(_note(attempt))
        caller = attempt.call_id.encode()
        arguments = [
            _time(attempt.now_ms),
            b"%d" % self._lease_ms,
            b"%d" % KEY_LIFE_MS,
            caller,
            attempt.fingerprint.encode(),
        ]
        what, now_ms, *state = await self._call(self._spend, attempt.user_id, keys, arguments)
        if what == b"MISS":
            return Miss()
        if what == b"BUSY":
            return Busy()
        if what == b"REUSED":
            raise KeyReused(attempt.message_id)
        count, limit, left_ms, version, refreshed_ms, generation = state
        verdict = Verdict(
            what != b"DENIED", attempt.message_id, count, limit, left_ms, now_ms, replayed=what == b"SENT"
        )
        spending = None
        if what == b"ADMITTED":
            spending = Spending(attempt.user_id, version, refreshed_ms, generation, count, 1)
        return Hit(verdict, spending)

    async def settle(self, attempt: Attempt, *, sent: bool) -> None:
        arguments = [b"sent" if sent else b"failed", b"%d" % KEY_LIFE_MS]
        await self._call(self._settle, attempt.user_id, [_note(attempt)], arguments)

    async def learn(self, quota: Quota, left_ms: int, *, now_ms: int | None = None) -> None:
        numbers = (
            quota.user_id,
            quota.rate_limit,
            quota.count,
            quota.version,
            quota.refreshed_ms,
            quota.generation,
            max(1, left_ms),
        )
        arguments = [_time(now_ms), *(b"%d" % number for number in numbers)]
        await self._call(self._learn, quota.user_id, _pair(quota.user_id), arguments)

    async def forget(self, quota: Quota) -> None:
        await self._call(self._forget, quota.user_id, _pair(quota.user_id), [b"%d" % quota.version, b"%d" % REFUSAL_MS])

    async def close(self) -> None:
        await self._client.close()

    async def _call(self, script: Script, user_id: int, keys: list[bytes], arguments: list[bytes]) -> Any:
        return await self._client.execute(script.call(keys, arguments), script, slot_of(_copy(user_id)))


def _copy(user_id: int) -> bytes:
    return b"RateLimiterCache:%d" % user_id


def _pair(user_id: int) -> list[bytes]:
    return [_copy(user_id), b"{%b}:version" % _copy(user_id)]


def _note(attempt: Attempt) -> bytes:
    return b"{%b}:key:%b" % (_copy(attempt.user_id), attempt.message_id.encode())


def _time(now_ms: int | None) -> bytes:
    return b"" if now_ms is None else b"%d" % now_ms
