"""Redis goes away, comes back with old data, loses answers: no process admits more than the limit.

Histories of sends and faults on a real Redis and a real database. Peer bug 28: Redis returns after an outage with a
stale low count and grants a second quota.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.errors import StoreUnavailable
from paceline.sql.outbox import SqlOutbox
from paceline.testing import FakeClock, RedisServer, eventually
from paceline_sms.intake import Intake
from paceline_sms.model import Attempt, Verdict
from paceline_sms.ports import Lease
from paceline_sms.quota import Quota
from paceline_sms.stores.redis import RedisQuotaCache
from paceline_sms.stores.sql import SqlQuotaStore
from tests.effort import examples
from tests.every_schema import database
from tests.integration.notification_gateway import gateway, in_this_loop, new_user

ENOUGH_SECONDS = 60
"""Longer than any pause of the circuit breaker."""


class UnreliableCache:
    """The real cache, behind a line that can be cut."""

    def __init__(self, url: str) -> None:
        self._cache = RedisQuotaCache(url, timeout=5)
        self._server = redis.Redis.from_url(url)
        self._old: dict[bytes | str, tuple[bytes, int]] = {}
        self.down = False
        self.loses_next_answer = False
        self.restarts_under_next = False

    def save(self) -> None:
        """What the server will come back with, if it is restarted."""
        keys = self._server.keys()
        self._old = {key: (self._server.dump(key) or b"", self._server.pttl(key)) for key in keys}

    def restart(self) -> None:
        """The server comes back with what was saved: budgets of the server before it."""
        self._server.flushdb()
        for key, (value, ttl) in self._old.items():
            self._server.restore(key, max(ttl, 1), value)
            if self._server.type(key) == b"hash":
                self._server.hset(key, "server", "the one before")

    def forget_everything(self) -> None:
        """All keys are gone, as by eviction; the connection stays."""
        self._server.flushdb()

    async def spend(self, attempt: Attempt, quota: Quota) -> Verdict | None:
        self._reach()
        if self.restarts_under_next:
            self.restarts_under_next = False
            self.restart()
        verdict = await self._cache.spend(attempt, quota)
        await asyncio.sleep(0)
        self._reach()
        if self.loses_next_answer:
            self.loses_next_answer = False
            raise StoreUnavailable("the answer was lost")
        return verdict

    async def grant(self, lease: Lease, *, now_ms: int | None = None) -> None:
        self._reach()
        await self._cache.grant(lease, now_ms=now_ms)

    async def refund(self, attempt: Attempt) -> None:
        self._reach()
        await self._cache.refund(attempt)

    async def forget(self, quota: Quota) -> None:
        self._reach()
        await self._cache.forget(quota)

    async def close(self) -> None:
        self._server.close()
        await self._cache.close()

    def _reach(self) -> None:
        if self.down:
            raise StoreUnavailable("cut")


class World:
    def __init__(self, intake: Intake, cache: UnreliableCache, store: SqlQuotaStore, clock: FakeClock) -> None:
        self.intake, self.cache, self.store, self.clock = intake, cache, store, clock


@asynccontextmanager
async def world(directory: Path, url: str, database_url: str | None = None) -> AsyncIterator[World]:
    opened = await database(database_url or f"sqlite:///{directory / 'gateway.db'}")
    log = SqlOutbox(opened)
    cache = UnreliableCache(url)
    store = SqlQuotaStore(opened)
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


async def test_a_redis_that_refuses_is_as_one_that_is_away(postgres_url: str, own_redis: RedisServer) -> None:
    async with gateway(database_url=postgres_url, redis_url=own_redis.url) as served:
        user = new_user()
        await served.configure(user, 10, 10)
        assert (await served.send(user)).status_code == 200
        with own_redis.client() as client:
            client.config_set("maxmemory", "1")  # every write is refused from now on
            statuses = [(await served.send(user)).status_code for _ in range(12)]
            client.config_set("maxmemory", "0")
        # What was leased, and did not arrive, is with nobody.
        admitted = statuses.count(200)
        assert statuses == [200] * admitted + [429] * (12 - admitted)
        assert admitted == 8


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


async def test_a_process_that_missed_the_outage_admits_no_more_than_is_left(tmp_path: Path, redis_url: str) -> None:
    async with world(tmp_path, redis_url) as here, world(tmp_path, redis_url) as there:
        user = new_user()
        await here.intake.configure(user, 10, 10)
        assert (await there.intake.send(user, "m")).allowed
        here.cache.down = True  # a partition: only one of them is cut off
        assert all(v.allowed for v in await send_many(here.intake, user, 8))
        assert [v.allowed for v in await send_many(there.intake, user, 5)].count(True) == 1


async def test_three_processes_that_lose_and_find_redis_admit_sixty_of_sixty(
    postgres_url: str, tmp_path: Path, redis_url: str
) -> None:
    """Property 11, with each process's way to Redis cut and mended at other times."""
    async with AsyncExitStack() as opened:
        worlds = [await opened.enter_async_context(world(tmp_path, redis_url, postgres_url)) for _ in range(3)]
        for _ in range(5):
            user, admitted = new_user(), 0
            await worlds[0].intake.configure(user, 60, 10)
            for turn in range(24):
                for number, each in enumerate(worlds):
                    each.cache.down = (turn + number) % 3 == 0
                    each.cache.loses_next_answer = turn % 5 == number
                    each.clock.advance(ENOUGH_SECONDS)
                verdicts = await asyncio.gather(*(send_many(each.intake, user, 4) for each in worlds))
                admitted += sum(verdict.allowed for some in verdicts for verdict in some)
                assert admitted <= 60

            async def is_used_up(user: int = user) -> bool:
                nonlocal admitted
                for each in worlds:
                    each.cache.down = each.cache.loses_next_answer = False
                    each.clock.advance(ENOUGH_SECONDS)
                    admitted += (await each.intake.send(user, "m")).allowed
                return admitted == 60

            await eventually(is_used_up)
            verdicts = await asyncio.gather(*(send_many(each.intake, user, 4) for each in worlds))
            assert not any(verdict.allowed for some in verdicts for verdict in some)


async def test_a_configuration_holds_at_once_in_every_process(
    postgres_url: str, tmp_path: Path, redis_url: str
) -> None:
    async with AsyncExitStack() as opened:
        here, there = [await opened.enter_async_context(world(tmp_path, redis_url, postgres_url)) for _ in range(2)]
        for _ in range(10):
            user = new_user()
            await here.intake.configure(user, 100, 10)
            assert all(v.allowed for v in await send_many(there.intake, user, 15))  # 20 are leased
            here.cache.down = True  # as a process without Redis
            await here.intake.configure(user, 3, 10)
            here.cache.down = False
            await eventually(partial(_limit_of, there, user, 3))
            assert sum(v.allowed for v in await send_many(there.intake, user, 9)) <= 3


async def _limit_of(there: World, user: int, limit: int) -> bool:
    """Whether a process knows the limit; a send tells."""
    return bool((await there.intake.send(user, "m")).rate_limit == limit)


async def test_a_budget_of_the_old_configuration_can_not_come_back(redis_url: str) -> None:
    cache = RedisQuotaCache(redis_url)
    user = new_user()
    old, new = Quota(user, 100, 10, 10, 1_000, version=1), Quota(user, 1, 10, 1, 2_000, version=2)
    await cache.grant(Lease(old, 10, 1_000, "l0"))
    assert await cache.spend(Attempt.of(user, "m"), new) is None  # it was not dropped, and has another version
    await cache.forget(new)
    await cache.grant(Lease(old, 10, 1_000, "l1"))  # another process leased it before the change, and brings it after
    assert await cache.spend(Attempt.of(user, "m"), old) is None
    await cache.grant(Lease(new, 1, 2_000, "l2"))
    verdicts = [await cache.spend(Attempt.of(user, "m"), new) for _ in range(2)]
    assert [verdict and verdict.allowed for verdict in verdicts] == [True, False]
    await cache.close()


async def test_a_budget_of_an_earlier_life_of_the_user_is_void(redis_url: str) -> None:
    """A user that is deleted and created again begins with version 1 again."""
    cache = RedisQuotaCache(redis_url)
    user = new_user()
    await cache.grant(Lease(Quota(user, 100, 10, 10, 1_000), 10, 1_000, "l3"))
    assert await cache.spend(Attempt.of(user, "m"), Quota(user, 1, 10, 0, 2_000)) is None
    await cache.close()


async def test_a_lease_that_comes_twice_counts_once(redis_url: str) -> None:
    cache = RedisQuotaCache(redis_url)
    user = new_user()
    quota = Quota(user, 2, 10, 2, 1_000)
    for _ in range(3):
        await cache.grant(Lease(quota, 2, 1_000, "again"))
    verdicts = [await cache.spend(Attempt.of(user, "m"), quota) for _ in range(4)]
    assert [verdict and verdict.allowed for verdict in verdicts] == [True, True, False, False]
    await cache.close()


async def test_what_a_lost_answer_spent_is_given_back_once(redis_url: str) -> None:
    cache = RedisQuotaCache(redis_url)
    user = new_user()
    quota, attempt = Quota(user, 1, 10, 1, 1_000), Attempt.of(user, "m")
    await cache.grant(Lease(quota, 1, 1_000, "l4"))
    for _ in range(2):
        spent = await cache.spend(attempt, quota)
        assert spent is not None
        assert spent.allowed
        await cache.refund(attempt)
        await cache.refund(attempt)
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
