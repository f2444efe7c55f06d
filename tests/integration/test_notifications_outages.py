"""Redis goes away, comes back with old data, loses answers: one process never admits more than the limit.

Histories of sends and faults on a real Redis and a real database. Peer bug 28: Redis returns after an outage with a
stale low count and grants a second quota.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.errors import StoreUnavailable
from paceline.sql.databases import database
from paceline.sql.outbox import SqlOutbox
from paceline.testing import FakeClock, RedisServer, eventually
from paceline_sms.intake import Intake
from paceline_sms.model import Attempt, Message
from paceline_sms.ports import Busy, Hit, Miss
from paceline_sms.quota import Quota, Spending
from paceline_sms.stores.redis import RedisQuotaCache
from paceline_sms.stores.sql import SqlQuotaStore
from tests.effort import examples
from tests.integration.notification_gateway import gateway, in_this_loop, new_user

ENOUGH_SECONDS = 60
"""Longer than any pause of the circuit breaker."""


class UnreliableCache:
    """The real cache, behind a line that can be cut."""

    def __init__(self, url: str) -> None:
        self._cache = RedisQuotaCache(url, timeout=5)
        self._server = redis.Redis.from_url(url)
        self._restarts = 0
        self._old: dict[bytes | str, tuple[bytes, int]] = {}
        self.down = False
        self.loses_next_answer = False
        self.restarts_under_next = False

    @property
    def incarnation(self) -> int:
        return self._cache.incarnation + self._restarts

    def save(self) -> None:
        """What the server will come back with, if it is restarted."""
        keys = self._server.keys()
        self._old = {key: (self._server.dump(key) or b"", self._server.pttl(key)) for key in keys}

    def restart(self) -> None:
        """The server comes back with what was saved."""
        self._server.flushdb()
        for key, (value, ttl) in self._old.items():
            self._server.restore(key, max(ttl, 1), value)
        self._restarts += 1

    def forget_everything(self) -> None:
        """All keys are gone, as by eviction; the connection stays."""
        self._server.flushdb()

    async def spend(self, attempt: Attempt) -> Hit | Miss | Busy:
        self._reach()
        if self.restarts_under_next:
            self.restarts_under_next = False
            self.restart()
        answer = await self._cache.spend(attempt)
        await asyncio.sleep(0)
        self._reach()
        if self.loses_next_answer:
            self.loses_next_answer = False
            raise StoreUnavailable("the answer was lost")
        return answer

    async def settle(self, attempt: Attempt, *, sent: bool) -> None:
        self._reach()
        await self._cache.settle(attempt, sent=sent)

    async def learn(self, quota: Quota, left_ms: int, *, now_ms: int | None = None) -> None:
        self._reach()
        await self._cache.learn(quota, left_ms, now_ms=now_ms)

    async def forget(self, quota: Quota) -> None:
        self._reach()
        await self._cache.forget(quota)

    async def close(self) -> None:
        self._server.close()
        await self._cache.close()

    def _reach(self) -> None:
        if self.down:
            raise StoreUnavailable("cut")


class SlowQuotaStore(SqlQuotaStore):
    """The real store, whose syncs take a while: what the cache admitted is not in it for just as long."""

    async def sync(
        self, spendings: Sequence[Spending], sent_keys: Mapping[str, str], messages: Sequence[Message]
    ) -> set[int]:
        await asyncio.sleep(0.005)
        return await super().sync(spendings, sent_keys, messages)


class World:
    def __init__(self, intake: Intake, cache: UnreliableCache, store: SqlQuotaStore, clock: FakeClock) -> None:
        self.intake, self.cache, self.store, self.clock = intake, cache, store, clock


@asynccontextmanager
async def world(directory: Path, url: str) -> AsyncIterator[World]:
    opened = await database(f"sqlite:///{directory / 'gateway.db'}")
    log = SqlOutbox(opened)
    cache = UnreliableCache(url)
    store = SlowQuotaStore(opened, topic="t")
    clock = FakeClock(datetime(2027, 3, 1, tzinfo=UTC))
    intake = Intake(store, log, cache=cache, clock=clock)
    yield World(intake, cache, store, clock)
    await intake.close()
    await log.close()
    await cache.close()
    await opened.close()


faults = ["save", "save", "restart", "restart", "cut", "mend", "mend", "evict", "lose", "wait"]
sends = ["send", "send", "send", "send while cut", "send while restarted"]
steps = st.lists(
    st.one_of(st.tuples(st.sampled_from(sends), st.integers(1, 6)), st.sampled_from(faults)), min_size=4, max_size=16
)


async def test_no_fault_of_redis_gives_a_second_quota(tmp_path: Path, redis_url: str) -> None:
    async with world(tmp_path, redis_url) as here:
        intake, cache = here.intake, here.cache

        @settings(max_examples=examples(120), deadline=None, suppress_health_check=[HealthCheck.too_slow])
        @given(st.integers(1, 12), steps)
        async def history(limit: int, steps: list[Any]) -> None:
            cache.down = cache.loses_next_answer = False
            here.clock.advance(ENOUGH_SECONDS)
            cache.save()
            user = new_user()
            await intake.configure(user, limit, 10)
            admitted = 0
            for step in steps:
                match step:
                    case "send", count:
                        admitted += sum([v.allowed for v in await send_many(intake, user, count)])
                    case "send while cut", count:
                        sends = asyncio.create_task(send_many(intake, user, count))
                        for _ in range(count):
                            await asyncio.sleep(0)
                        cache.down = True
                        admitted += sum([verdict.allowed for verdict in await sends])
                    case "send while restarted", count:
                        sends = asyncio.create_task(send_many(intake, user, count))
                        for _ in range(count):
                            await asyncio.sleep(0)
                        cache.restart()
                        admitted += sum([verdict.allowed for verdict in await sends])
                    case "cut":
                        cache.down = True
                    case "mend":
                        cache.down = False
                        here.clock.advance(ENOUGH_SECONDS)
                    case "save":
                        cache.save()
                    case "restart":
                        cache.restart()
                    case "evict":
                        cache.forget_everything()
                    case "lose":
                        cache.loses_next_answer = True
                    case "wait":
                        here.clock.advance(ENOUGH_SECONDS)
                assert admitted <= limit
            # Once more with everything repaired, and then with Redis down: nothing is left over on either path.
            for down in (False, True):
                cache.down, cache.loses_next_answer = down, False
                here.clock.advance(ENOUGH_SECONDS)
                admitted += sum([v.allowed for v in await send_many(intake, user, limit + 1)])
                assert admitted <= limit
            assert intake.cached is not None
            await intake.cached.sync.flush()
            row = await here.store.find(user)
            assert row is not None
            assert row[0].count >= limit

        await in_this_loop(history)


async def send_many(intake: Intake, user: int, count: int) -> list[Any]:
    return await asyncio.gather(*(intake.send(user, f"message {n}") for n in range(count)))


async def test_the_stale_count_of_a_returned_redis_admits_nobody(tmp_path: Path, redis_url: str) -> None:
    """Peer bug 28, step by step."""
    async with world(tmp_path, redis_url) as here:
        user = new_user()
        await here.intake.configure(user, 10, 10)
        assert [v.allowed for v in await send_many(here.intake, user, 2)] == [True] * 2
        here.cache.save()
        here.cache.down = True
        assert [v.allowed for v in await send_many(here.intake, user, 8)] == [True] * 8
        here.cache.restart()
        here.cache.down = False
        here.clock.advance(ENOUGH_SECONDS)
        assert not any(v.allowed for v in await send_many(here.intake, user, 5))


async def test_a_redis_that_restarts_under_a_call_admits_nobody(tmp_path: Path, redis_url: str) -> None:
    async with world(tmp_path, redis_url) as here:
        user = new_user()
        await here.intake.configure(user, 10, 10)
        assert all(v.allowed for v in await send_many(here.intake, user, 2))
        here.cache.save()
        assert all(v.allowed for v in await send_many(here.intake, user, 8))
        here.cache.restarts_under_next = True
        assert not (await here.intake.send(user, "m")).allowed


async def test_a_keyed_send_under_which_redis_restarts_need_not_wait_for_itself(tmp_path: Path, redis_url: str) -> None:
    async with world(tmp_path, redis_url) as here:
        user = new_user()
        await here.intake.configure(user, 10, 10)
        await here.intake.send(user, "m")
        here.cache.save()
        here.cache.restarts_under_next = True
        async with asyncio.timeout(5):  # the lease of a note lasts longer
            assert (await here.intake.send(user, "m", key="k")).allowed


async def test_a_redis_that_refuses_is_as_one_that_is_away(postgres_url: str, own_redis: RedisServer) -> None:
    async with gateway(database_url=postgres_url, redis_url=own_redis.url) as served:
        user = new_user()
        await served.configure(user, 3, 10)
        assert (await served.send(user)).status_code == 200
        with own_redis.client() as client:
            client.config_set("maxmemory", "1")  # every write is refused from now on
            statuses = [(await served.send(user)).status_code for _ in range(4)]
            client.config_set("maxmemory", "0")
        assert statuses == [200, 200, 429, 429]


async def test_a_new_process_does_not_believe_a_stale_redis_either(tmp_path: Path, redis_url: str) -> None:
    user = new_user()
    async with world(tmp_path, redis_url) as here:
        await here.intake.configure(user, 10, 10)
        assert all(v.allowed for v in await send_many(here.intake, user, 2))
        here.cache.save()
        here.cache.down = True
        assert all(v.allowed for v in await send_many(here.intake, user, 8))
        here.cache.restart()
    async with world(tmp_path, redis_url) as there:
        assert not any(v.allowed for v in await send_many(there.intake, user, 5))


async def test_a_process_that_missed_the_outage_learns_of_it_from_its_first_sync(
    tmp_path: Path, redis_url: str
) -> None:
    async with world(tmp_path, redis_url) as here, world(tmp_path, redis_url) as there:
        user = new_user()
        await here.intake.configure(user, 10, 10)
        assert (await there.intake.send(user, "m")).allowed
        assert there.intake.cached is not None
        await there.intake.cached.sync.flush()
        here.cache.down = True  # a partition: only one of them is cut off
        assert all(v.allowed for v in await send_many(here.intake, user, 8))
        # The other process has not seen it. One more is correct; the excess is what it admits before its sync returns.
        admitted = 0
        for _ in range(5):
            admitted += (await there.intake.send(user, "m")).allowed
            await there.intake.cached.sync.flush()
        assert admitted == 1


async def test_a_copy_of_the_old_configuration_can_not_come_back(redis_url: str) -> None:
    cache = RedisQuotaCache(redis_url)
    user = new_user()
    old, new = Quota(user, 100, 10, 0, 1_000, version=1), Quota(user, 1, 10, 0, 2_000, version=2)
    await cache.learn(old, 60_000)
    await cache.forget(new)
    await cache.learn(old, 60_000)  # another process read the row before the change, and writes it after
    assert await cache.spend(Attempt.of(user, "m")) == Miss()
    await cache.learn(new, 60_000)
    assert isinstance(await cache.spend(Attempt.of(user, "m")), Hit)
    await cache.learn(old, 60_000)
    answer = await cache.spend(Attempt.of(user, "m"))
    assert isinstance(answer, Hit)
    assert not answer.verdict.allowed
    await cache.close()


async def test_a_copy_that_could_not_be_dropped_is_dropped_when_redis_is_back(tmp_path: Path, redis_url: str) -> None:
    async with world(tmp_path, redis_url) as here, world(tmp_path, redis_url) as there:
        users = [new_user() for _ in range(3)]
        for user in users:
            await here.intake.configure(user, 1, 10)
            assert sorted(v.allowed for v in await send_many(there.intake, user, 2)) == [False, True]
        here.cache.down = True
        for user in users:
            await here.intake.configure(user, 2, 10)
        here.cache.down = False
        here.clock.advance(ENOUGH_SECONDS)
        # Any answer from Redis shows that it is back; here it is another user's.
        other = new_user()
        await here.intake.configure(other, 1, 10)

        async def all_dropped() -> bool:
            with redis.Redis.from_url(redis_url) as client:
                return not any(client.exists(f"RateLimiterCache:{user}") for user in users)

        await eventually(all_dropped)
        for user in users:
            assert sorted(v.allowed for v in await send_many(there.intake, user, 3)) == [False, True, True]


@pytest.mark.parametrize("generation", [0, 1, 2])
async def test_learning_never_lowers_a_count_within_a_window(redis_url: str, generation: int) -> None:
    cache = RedisQuotaCache(redis_url)
    user = new_user()
    await cache.learn(Quota(user, 10, 10, 5, 1_000, generation=1), 60_000)
    await cache.learn(Quota(user, 10, 10, 3, 1_000, generation=generation), 60_000)
    answer = await cache.spend(Attempt.of(user, "m"))
    assert isinstance(answer, Hit)
    assert answer.verdict.used == 6
    assert answer.spending is not None
    assert answer.spending.generation == max(1, generation)
    await cache.learn(Quota(user, 10, 10, 0, 2_000, generation=generation), 60_000)  # the next window
    answer = await cache.spend(Attempt.of(user, "m"))
    assert isinstance(answer, Hit)
    assert answer.verdict.used == 1
    await cache.close()


async def test_every_key_in_redis_goes_away_by_itself(tmp_path: Path, redis_url: str) -> None:
    """Peer bug 3."""
    async with world(tmp_path, redis_url) as here:
        user = new_user()
        await here.intake.configure(user, 10, 10)
        await here.intake.send(user, "m")
        await here.intake.send(user, "m", key="k")
        with redis.Redis.from_url(redis_url) as client:
            assert client.dbsize() == 3
            assert all(client.pttl(key) > 0 for key in client.scan_iter())
