"""Bugs that peers' rate limiters have had, on every store, through `Limiter` and `AsyncLimiter` as an application opens
them. The contract of the stores themselves is in `test_limit_store.py`; `docs/explanation/peer-bugs.md` lists all
tests."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import pytest
import redis

from paceline import AsyncLimiter, FixedWindow, LeasePolicy, Limiter, Plan, SlidingLog, SlidingWindow, TokenBucket
from paceline.circuit_breaker import BreakerPolicy
from paceline.errors import CostExceedsCapacity
from paceline.limits.model import Spec
from paceline.testing.servers.ports import PortClaim
from tests.unit.limits.both import Awaited, Watcher

REDIS = [pytest.param(name, marks=pytest.mark.redis) for name in ("redis", "redis_cluster", "redis_sentinel")]
POSTGRES = pytest.param("postgresql", marks=pytest.mark.postgres)
ELSEWHERE = ["sqlite", POSTGRES, *REDIS]
DAILY: list[Spec] = [
    TokenBucket(10, Fraction(10, 86_400)),
    FixedWindow(10, "P1D"),
    SlidingWindow(10, "P1D"),
    SlidingLog(10, "P1D"),
]

Open: TypeAlias = Callable[..., Any]
"""A limiter with these plans on the store under test, its calls awaited."""


@pytest.fixture(params=["memory", *ELSEWHERE])
def url(request: pytest.FixtureRequest) -> str:
    return location(request.param, request)


def location(store: str, request: pytest.FixtureRequest) -> str:
    """Where a store is that all tests of this module share; they keep apart by their keys."""
    match store:
        case "memory":
            return "memory://"
        case "redis_cluster":
            return str(request.getfixturevalue("redis_cluster").url)
        case "redis_sentinel":
            return str(request.getfixturevalue("sentinel_location"))
        case _:
            return str(request.getfixturevalue(f"{store.replace('postgresql', 'postgres')}_location"))


@pytest.fixture(params=[Limiter, AsyncLimiter], ids=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
async def opened(url: str, kind: Any) -> AsyncIterator[Open]:
    made: list[Any] = []

    def open(*plans: Plan, **options: Any) -> Any:
        limiter = kind(url, plans=plans, **{"deadline": 30, **options})
        made.append(Awaited(limiter) if kind is Limiter else limiter)
        return made[-1]

    yield open
    for limiter in made:
        await limiter.close()


@pytest.fixture
def key() -> str:
    return uuid4().hex


@pytest.mark.parametrize("lease", [None, LeasePolicy(share=0.5)], ids=["", "leased"])
@pytest.mark.parametrize("spec", DAILY, ids=lambda spec: spec.algorithm)
async def test_peer_bug_01_a_denial_burns_quota(opened: Open, key: str, spec: Spec, lease: LeasePolicy | None) -> None:
    limiter = opened(Plan("ten", spec), lease=lease)
    with pytest.raises(CostExceedsCapacity):
        await limiter.acquire(key, "ten", 50)
    assert (await limiter.acquire(key, "ten", 4)).allowed
    for _ in range(5):
        assert not (await limiter.acquire(key, "ten", 7)).allowed
    assert (await limiter.acquire(key, "ten", 6)).allowed
    assert not (await limiter.acquire(key, "ten")).allowed


async def test_peer_bug_02_non_atomic_chain(opened: Open, key: str) -> None:
    limiter = opened(Plan("minute", FixedWindow(5, "PT1M")), Plan("hour", SlidingWindow(3, "PT1H")))
    answers = [await limiter.acquire(key, ["minute", "hour"]) for _ in range(5)]
    assert [answer.allowed for answer in answers] == [True, True, True, False, False]
    assert answers[-1].plan == "hour"
    assert (await limiter.peek(key, "minute")).remaining == 2


async def test_peer_bug_04_a_state_that_lives_too_short(opened: Open, key: str) -> None:
    """A bucket that fills up in less than a second: a life counted in whole ones would be none."""
    limiter = opened(Plan("burst", TokenBucket(40, 100)))
    await limiter.peek("warm", "burst")
    begun = time.monotonic()
    admitted = sum([(await limiter.acquire(key, "burst")).allowed for _ in range(200)])
    assert 40 <= admitted <= 40 + 100 * (time.monotonic() - begun) + 1


@pytest.mark.parametrize("url", ["memory", POSTGRES, *REDIS], indirect=True)
@pytest.mark.parametrize("seconds", [61, -61])
async def test_peer_bug_07_clock_skew(
    opened: Open, url: str, key: str, seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite's clock is the host's, and one host has one clock: it is not here."""
    plan, real, real_ns = Plan("log", SlidingLog(3, "PT1M")), time.time, time.time_ns
    first = opened(plan)
    second = first if url == "memory://" else opened(plan)
    assert all([(await first.acquire(key, "log")).allowed for _ in range(3)])
    monkeypatch.setattr(time, "time", lambda: real() + seconds)
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + seconds * 10**9)
    denied = await second.acquire(key, "log")
    assert not denied.allowed
    assert 0 < denied.retry_after <= 60


@pytest.mark.parametrize("url", ELSEWHERE, indirect=True)
@pytest.mark.parametrize("kind", [AsyncLimiter], indirect=True, ids=["async"])
async def test_peer_bug_10_the_event_loop_goes_on_meanwhile(opened: Open, key: str) -> None:
    limiter = opened(Plan("hour", FixedWindow(1000, "PT1H")))
    await limiter.acquire(key, "hour")
    turns, done = 0, False

    async def others() -> None:
        nonlocal turns
        while not done:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    for _ in range(20):
        await limiter.acquire(key, "hour")
    done = True
    await task
    assert turns > 40


@pytest.fixture
def unreachable(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a store that is not there."""
    claim = PortClaim()
    with closing(sqlite3.connect(tmp_path / "held.db")) as made:
        made.execute("CREATE TABLE known (n)")  # a new file would be waited for
    place = f"127.0.0.1:{claim.number}"
    yield {
        "sqlite": f"sqlite:///{tmp_path / 'held.db'}",
        "postgresql": f"postgresql://nobody@{place}/nothing",
        "redis": f"redis://{place}",
        "redis_cluster": f"redis+cluster://{place}",
        "redis_sentinel": f"redis+sentinel://{place}/mymaster",
    }[request.param]
    claim.release()


@pytest.mark.parametrize(
    "unreachable", ["sqlite", "postgresql", "redis", "redis_cluster", "redis_sentinel"], indirect=True
)
async def test_peer_bug_11_a_store_that_is_down_is_policy(unreachable: str, kind: Any, tmp_path: Path) -> None:
    once = FixedWindow(1, "PT1H")
    plans = [Plan(name, once, on_error=name) for name in ("open", "closed", "fallback")]
    breaker = BreakerPolicy(failures=2, first_pause=30)
    limiter = kind(unreachable, plans=plans, deadline=0.2, breaker=breaker)
    awaited = Awaited(limiter) if kind is Limiter else limiter
    # A writer that does not come to an end is how a file is out of reach.
    writer = sqlite3.connect(tmp_path / "held.db", isolation_level=None)
    writer.execute("BEGIN EXCLUSIVE")
    began = time.monotonic()
    answers = {plan.name: [await awaited.acquire("k", plan.name) for _ in range(4)] for plan in plans}
    assert time.monotonic() - began < 20, "a caller that gave a deadline waits for the tables of a file too long"
    writer.close()
    await awaited.close()
    assert [answer.reason for answer in answers["open"]] == ["FAIL_OPEN"] * 4
    assert [answer.reason for answer in answers["closed"]] == ["FAIL_CLOSED"] * 4
    assert [(answer.reason, answer.allowed) for answer in answers["fallback"]] == [
        ("FALLBACK", number == 0) for number in range(4)
    ]
    assert limiter.breaker_state == "open"


async def test_peer_bug_12_limit_lowered_or_raised_in_flight(opened: Open, key: str) -> None:
    def day(limit: int) -> Plan:
        return Plan("day", FixedWindow(limit, "P1D"))

    limiter = opened(day(10))
    replace = (limiter.limiter if isinstance(limiter, Awaited) else limiter).replace_plans
    assert (await limiter.acquire(key, "day", 10)).remaining == 0
    replace([day(20)])
    assert (await limiter.acquire(key, "day", 4)).remaining == 6
    replace([day(5)])
    lowered = await limiter.acquire(key, "day")
    assert not lowered.allowed
    assert (lowered.remaining, lowered.limit) == (0, 5)
    replace([Plan("day", SlidingLog(10, "P1D"))])
    assert (await limiter.acquire(key, "day", 3)).remaining == 7


async def test_peer_bug_13_races(opened: Open, url: str, key: str, kind: Any) -> None:
    """Callers at once, through one limiter, and through three where they share what is elsewhere."""
    limiters = [opened(Plan("day", FixedWindow(100, "P1D"))) for _ in range(1 if url == "memory://" else 3)]

    def thread(limiter: Limiter) -> int:
        return sum(limiter.acquire(key, "day").allowed for _ in range(20))

    async def task(limiter: AsyncLimiter) -> int:
        return sum([(await limiter.acquire(key, "day")).allowed for _ in range(20)])

    chosen = [limiters[number % len(limiters)] for number in range(9)]
    if kind is Limiter:
        admitted = await asyncio.gather(
            *(asyncio.to_thread(thread, opened_limiter.limiter) for opened_limiter in chosen)
        )
    else:
        admitted = await asyncio.gather(*map(task, chosen))
    assert sum(admitted) == 100


@pytest.mark.parametrize("url", ELSEWHERE, indirect=True)
async def test_peer_bug_13_every_waiter_wakes(opened: Open, key: str, kind: Any) -> None:
    """Only the first in the queue calls the store: a few calls per waiter, not one of every waiter per token."""
    watcher, waiters = Watcher(), 12
    limiter = opened(Plan("slow", TokenBucket(1, 100)), observer=watcher)
    await limiter.acquire(key, "slow")
    watcher.store_calls.clear()
    if kind is Limiter:
        waits = (asyncio.to_thread(limiter.limiter.wait, key, "slow") for _ in range(waiters))
    else:
        waits = (limiter.wait(key, "slow") for _ in range(waiters))
    assert all(decision.allowed for decision in await asyncio.gather(*waits))
    assert len(watcher.store_calls) <= 3 * waiters


@pytest.fixture
def servers(request: pytest.FixtureRequest) -> Iterator[list[redis.Redis]]:
    """Clients of all masters of the Redis that `opened` is on."""
    match request.getfixturevalue("url"):
        case cluster if cluster.startswith("redis+cluster"):
            clients = [redis.Redis(host, port) for host, port in request.getfixturevalue("redis_cluster").nodes]
        case sentinel if sentinel.startswith("redis+sentinel"):
            clients = [request.getfixturevalue("sentinel_group").master.client()]
        case alone:
            clients = [redis.Redis.from_url(alone)]
    yield clients
    for client in clients:
        client.close()


@pytest.mark.parametrize("url", REDIS, indirect=True)
async def test_peer_bug_03_key_without_ttl(opened: Open, key: str, servers: list[redis.Redis]) -> None:
    limiter = opened(*(Plan(spec.algorithm, spec) for spec in DAILY), lease=LeasePolicy(share=1))
    names = [spec.algorithm for spec in DAILY]
    for name in names:
        assert (await limiter.acquire(key, name, 2)).allowed
        assert await (await limiter.reserve(key, name, 3)).settle(2)
        await limiter.refund(key, name)
        assert not (await limiter.acquire(key, name, 10)).allowed
    assert (await limiter.acquire(key, names)).allowed
    expiries = [(name, client.ttl(name)) for client in servers for name in client.scan_iter(f"*{key}*")]
    assert len(expiries) == 2 * len(DAILY)
    # A sliding window keeps its state for twice the window.
    assert all(0 < seconds <= 2 * 86_400 + 1 for _, seconds in expiries), expiries


@pytest.mark.parametrize("url", REDIS, indirect=True)
async def test_peer_bug_06_noscript_heals_and_is_decided_once(
    opened: Open, key: str, servers: list[redis.Redis], kind: Any
) -> None:
    limiter = opened(Plan("hour", FixedWindow(1000, "PT1H")))
    for used in (1, 2):
        for client in servers:
            client.script_flush()
        assert (await limiter.acquire(key, "hour")).remaining == 1000 - used
    for client in servers:
        client.script_flush()
    if kind is Limiter:
        answers = await asyncio.gather(*(asyncio.to_thread(limiter.limiter.acquire, key, "hour") for _ in range(20)))
    else:
        answers = await asyncio.gather(*(limiter.acquire(key, "hour") for _ in range(20)))
    assert sorted(answer.remaining for answer in answers) == list(range(978, 998))
