"""Limits in a real Redis: what the contract suite can't see from outside."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from paceline import AsyncLimiter, FixedWindow, Limiter, Plan, SlidingLog, SlidingWindow, TokenBucket
from paceline.errors import StoreError, StoreUnavailable
from paceline.limits.algorithms import State
from paceline.limits.chain import rule_on
from paceline.limits.model import Charge, Rule, Spec
from paceline.limits.ports import Hold
from paceline.limits.stores.redis import AsyncRedisLimitStore
from paceline.limits.stores.redis_blocking import RedisLimitStore
from paceline.testing import RedisServer, eventually
from paceline.testing.availability import available
from tests.interruptions import in_a_thread, interrupt_often

pytestmark = pytest.mark.quick

T0 = 1_800_000_000_000_000
SPECS: list[Spec] = [
    TokenBucket(10, 1),
    FixedWindow(10, "PT10S"),
    SlidingWindow(10, "PT10S"),
    SlidingLog(10, "PT10S"),
]
RULES = [Rule(spec.algorithm, spec) for spec in SPECS]
MINUTE = Rule("minute", FixedWindow(1000, "PT1M"))


@pytest.fixture(scope="module")
def redis_alone() -> Iterator[RedisServer]:
    """A server without other clients: its counters are those of these tests."""
    with available("redis"), RedisServer(durable=False) as server:
        yield server


@pytest.fixture
def redis_url(redis_alone: RedisServer) -> str:
    with redis_alone.client() as client:
        client.flushdb()
    return redis_alone.url


@pytest.fixture
def store(redis_url: str) -> Iterator[RedisLimitStore]:
    store = RedisLimitStore(redis_url, deadline=30)
    yield store
    store.close()


@pytest.fixture
async def awaited(redis_url: str) -> AsyncIterator[AsyncRedisLimitStore]:
    store = AsyncRedisLimitStore(redis_url, deadline=30)
    yield store
    await store.close()


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as client:
        yield client


def calls_of(client: redis.Redis, command: str) -> int:
    stats: Any = client.info("commandstats")
    return int(stats.get(f"cmdstat_{command}", {"calls": 0})["calls"])


def test_peer_bug_03_key_without_ttl(store: RedisLimitStore, client: redis.Redis) -> None:
    for rule in RULES:
        for cost in (1, 2, 3):
            assert store.decide([Charge("k", rule, cost)])
        assert store.decide([Charge("k", rule, 3)], hold=Hold("h", 5_000_000))
        store.settle("h", [Charge("k", rule)], 1)
        store.refund([Charge("k", rule, 2)])
        store.decide([Charge("k", rule, 10)])
    chain = [Charge("chain", rule) for rule in RULES]
    store.decide(chain)
    kept = list(client.scan_iter("*"))
    assert len(kept) == 3 * len(RULES)
    for key in kept:
        assert 0 < client.pttl(key) <= 20_002, key


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.plan)
def test_peer_bug_04_ttl_too_short_or_zero(store: RedisLimitStore, client: redis.Redis, rule: Rule) -> None:
    decision = store.decide([Charge("k", rule, 10)])
    left: Any = client.pttl(f"rate_limiter:{{k}}:{rule.plan}")
    # Two milliseconds are added for Redis's rounding; the rest went by between the two calls.
    assert decision.reset_after_us / 1000 - 5_000 < left <= decision.reset_after_us / 1000 + 2


def test_peer_bug_04_a_thousand_a_second_with_a_burst_of_four_hundred(store: RedisLimitStore) -> None:
    rule = Rule("burst", TokenBucket(400, 1000))
    before = store.decide([Charge("clock", MINUTE)])
    started = time.monotonic()
    admitted = sum(store.decide([Charge("k", rule)]).allowed for _ in range(3000))
    assert before
    assert 400 <= admitted <= 400 + 1000 * (time.monotonic() - started) + 1


def test_what_was_given_back_entirely_is_not_kept(store: RedisLimitStore, client: redis.Redis) -> None:
    for rule in RULES:
        store.decide([Charge("k", rule, 3)], now_us=T0)
        store.refund([Charge("k", rule, 5)], now_us=T0)
    assert client.dbsize() == 0


async def test_peer_bug_06_noscript_for_a_whole_packet(awaited: AsyncRedisLimitStore, client: redis.Redis) -> None:
    await awaited.decide([Charge("k", MINUTE)])
    client.script_flush()
    decisions = await asyncio.gather(*(awaited.decide([Charge("k", MINUTE)]) for _ in range(50)))
    assert sorted(decision.remaining for decision in decisions) == list(range(949, 999))


def test_peer_bug_12_a_key_that_holds_something_else(store: RedisLimitStore, client: redis.Redis) -> None:
    for rule in RULES:
        name = f"rate_limiter:{{k}}:{rule.plan}"
        for foreign in (("tokens", "5"), "text", b"\x01\x09 another version or tag......"):
            client.delete(name)
            if isinstance(foreign, tuple):
                client.hset(name, *foreign)
            else:
                client.set(name, foreign)
            assert store.decide([Charge("k", rule)]).remaining == 9
            assert client.type(name) == b"string"


def test_a_chain_is_one_command(store: RedisLimitStore, client: redis.Redis) -> None:
    chain = [Charge("k", rule) for rule in RULES]
    store.decide(chain)
    before = calls_of(client, "evalsha")
    for _ in range(5):
        assert store.decide(chain)
    assert calls_of(client, "evalsha") - before == 5


async def test_calls_of_one_turn_share_a_packet(awaited: AsyncRedisLimitStore, client: redis.Redis) -> None:
    await awaited.decide([Charge("k", MINUTE)])

    def reads() -> int:
        stats: Any = client.info("stats")
        return int(stats["total_reads_processed"])

    before = reads()
    await asyncio.gather(*(awaited.decide([Charge(f"k{number % 20}", MINUTE)]) for number in range(200)))
    # One packet, and the two questions; by themselves it would be 200.
    assert reads() - before <= 5


@pytest.mark.parametrize("callers", [2, 40, 300])
@pytest.mark.parametrize("length", [1, len(RULES)])
async def test_callers_of_one_turn_are_decided_one_after_another(
    awaited: AsyncRedisLimitStore, client: redis.Redis, callers: int, length: int
) -> None:
    for first in range(len(RULES) if length == 1 else 1):
        chain = [Charge(f"k{first}", rule, 3) for rule in RULES[first : first + length]]
        states: list[State | None] = [None] * length
        for now in (T0, T0 + 1_000_000, T0 + 9_000_000, T0 + 10_500_000, T0 - 1_000_000):
            expected = []
            for _ in range(callers):
                ruling = rule_on(chain, states, now)
                expected.append(ruling.decision)
                states = [new or old for new, old in zip(ruling.writes, states, strict=True)]
            before = calls_of(client, "evalsha")
            assert await asyncio.gather(*(awaited.decide(chain, now_us=now) for _ in range(callers))) == expected
            assert calls_of(client, "evalsha") - before <= callers // 128 + 1


async def test_a_caller_who_gives_up_before_anything_was_sent_is_not_charged(awaited: AsyncRedisLimitStore) -> None:
    await awaited.decide([Charge("k", MINUTE)])
    leaving = [asyncio.ensure_future(awaited.decide([Charge("k", MINUTE)])) for _ in range(5)]
    staying = asyncio.ensure_future(awaited.decide([Charge("k", MINUTE)]))
    await asyncio.sleep(0)
    for task in leaving:
        task.cancel()
    # Those five and the one were called in one turn; what had been sent by then counts, and each only once.
    left = (await staying).remaining
    assert left in (998, 993)
    assert (await awaited.decide([Charge("k", MINUTE)], spend=False)).remaining == left


async def test_a_caller_who_gives_up_takes_nobody_elses_answer(awaited: AsyncRedisLimitStore) -> None:
    await awaited.decide([Charge("k", MINUTE)])
    leaving = [asyncio.ensure_future(awaited.decide([Charge("other", MINUTE, 7)])) for _ in range(5)]
    await asyncio.sleep(0)
    for task in leaving:
        task.cancel()
    decisions = await asyncio.gather(*(awaited.decide([Charge("k", MINUTE)]) for _ in range(5)))
    assert [decision.remaining for decision in decisions] == [998, 997, 996, 995, 994]


def test_a_log_is_no_longer_than_what_lives(store: RedisLimitStore, client: redis.Redis) -> None:
    rule = Rule("log", SlidingLog(50, "PT1S"))
    longest, admitted = 0, 0
    for call in range(3000):
        admitted += store.decide([Charge("k", rule)], now_us=T0 + call * 25_000).allowed
        longest = max(longest, int(client.strlen("rate_limiter:{k}:log")))
    assert admitted == 3000
    assert longest <= 28 + 10 * (2 * 64 + 2)


def test_one_store_serves_many_loops_one_after_another(redis_url: str) -> None:
    store = AsyncRedisLimitStore(redis_url, deadline=30)

    async def once() -> int:
        try:
            return (await store.decide([Charge("k", MINUTE)])).remaining
        finally:
            await store.close()

    assert [asyncio.run(once()) for _ in range(3)] == [999, 998, 997]


def _decide_in_child(store: RedisLimitStore, results: Any) -> None:
    results.put([store.decide([Charge("k", MINUTE)]).remaining for _ in range(200)])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_uses_connections_of_its_own(store: RedisLimitStore) -> None:
    store.decide([Charge("k", MINUTE)])
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    children = [context.Process(target=_decide_in_child, args=(store, results)) for _ in range(3)]
    for child in children:
        child.start()
    mine = [store.decide([Charge("k", MINUTE)]).remaining for _ in range(200)]
    answers = mine + [remaining for _ in children for remaining in results.get()]
    for child in children:
        child.join()
    assert sorted(answers) == list(range(199, 999))


def test_a_login_is_used_and_never_shown(own_redis: RedisServer) -> None:
    with own_redis.client() as client:
        client.execute_command("ACL", "SETUSER", "limits", "on", ">hunter2", "~*", "+@all")
        client.execute_command("CONFIG", "SET", "requirepass", "hunter1")
    for login in (":hunter1", "limits:hunter2"):
        store = RedisLimitStore(f"redis://{login}@{own_redis.address}/0", deadline=30)
        assert store.decide([Charge("k", MINUTE)])
        store.close()
    for login in ("", "limits:hunter3@"):
        with pytest.raises(StoreError) as refused:
            RedisLimitStore(f"redis://{login}{own_redis.address}/0", deadline=30).decide([Charge("k", MINUTE)])
        assert not isinstance(refused.value, StoreUnavailable)
        assert "hunter" not in str(refused.value)


def test_the_documented_permissions_are_enough(own_redis: RedisServer) -> None:
    guide = Path(__file__).parents[2] / "docs" / "howto" / "redis.md"
    line = next(line for line in guide.read_text().splitlines() if line.startswith("    ACL SETUSER"))
    with own_redis.client() as client:
        client.execute_command(*line.split())
    store = RedisLimitStore(f"redis://paceline:secret@{own_redis.address}/1", deadline=30)
    chain = [Charge("k", rule, 2) for rule in RULES]
    for _ in range(3):
        assert store.decide(chain)
    assert store.decide(chain, hold=Hold("h", 5_000_000))
    assert store.settle("h", chain, 1) == "APPLIED"
    store.refund(chain)
    store.reset(chain)
    assert store.decide(chain, spend=False).remaining == 10
    store.close()


async def test_a_call_that_was_not_answered_is_never_repeated(own_redis: RedisServer) -> None:
    blocking = RedisLimitStore(own_redis.url, deadline=0.3)
    streaming = AsyncRedisLimitStore(own_redis.url, deadline=0.3)
    for name in ("sync", "async"):
        blocking.decide([Charge(name, MINUTE)])
        await streaming.decide([Charge(name, MINUTE)])
    own_redis.pause()
    with pytest.raises(StoreUnavailable, match=r"did not answer within 0\.3 s"):
        blocking.decide([Charge("sync", MINUTE)])
    lost = await asyncio.gather(
        *(streaming.decide([Charge("async", MINUTE)]) for _ in range(3)), return_exceptions=True
    )
    assert [type(error) for error in lost] == [StoreUnavailable] * 3
    own_redis.resume()

    async def used(name: str) -> int:
        return 1000 - (await streaming.decide([Charge(name, MINUTE)], spend=False)).remaining

    # What was in the sockets is run, once, when Redis resumes; nothing else was sent.
    assert await eventually(lambda: _none_if_unavailable(used("async"), 5)) == 5
    assert await used("sync") == 3
    blocking.close()
    await streaming.close()


async def _none_if_unavailable(call: Any, expected: int) -> int | None:
    try:
        value = int(await call)
    except StoreUnavailable:
        return None
    return value if value == expected else None


async def test_connections_that_redis_closed_are_replaced_without_an_error(own_redis: RedisServer) -> None:
    blocking, streaming = RedisLimitStore(own_redis.url, deadline=30), AsyncRedisLimitStore(own_redis.url, deadline=30)
    for _ in range(3):
        assert blocking.decide([Charge("k", MINUTE)])
        assert await streaming.decide([Charge("k", MINUTE)])
        with own_redis.client() as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "normal")
        # The loop notices it later; calls before then are lost with the connection.
        await eventually(
            lambda: all(connection.closed for connection in streaming._client._connections.by_address.values())
        )
    blocking.close()
    await streaming.close()


async def test_a_redis_that_comes_back_is_used_again(own_redis: RedisServer) -> None:
    plans = [Plan("minute", FixedWindow(1000, "PT1M"), on_error="closed")]
    with Limiter(own_redis.url, plans=plans, deadline=30) as limiter:
        assert limiter.acquire("k", ["minute"]).remaining == 999
        own_redis.kill()
        down = limiter.acquire("k", ["minute"])
        assert (down.allowed, down.degraded) == (False, True)
        own_redis.start()
        assert limiter.acquire("k", ["minute"]).remaining == 998
    async with AsyncLimiter(own_redis.url, plans=plans, deadline=30) as limiter:
        assert (await limiter.acquire("k", ["minute"])).remaining == 997
        await asyncio.to_thread(own_redis.restart)
        assert (await limiter.acquire("k", ["minute"])).remaining == 996


# A signal handler that raises may do so in the callback of a weak reference, where Python can only report it; and a
# connection that it interrupts is closed by the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_a_signal_handler_that_raises_stops_no_other_thread(redis_url: str) -> None:
    limiter = Limiter(redis_url, plans=[Plan("gold", TokenBucket(10**9, 10**6))])

    def call() -> None:
        assert limiter.acquire("u", "gold").limit == 10**9
        limiter.reserve("u", "gold", 5).settle(2)

    interrupt_often(call, 500)
    in_a_thread(call)
    in_a_thread(limiter.close)
