"""A store that answers and turns paceline's login away: an error that names the setting, never a failure policy, and
gone as soon as the login is right again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis

from paceline import AsyncLimiter, BreakerPolicy, FixedWindow, LeasePolicy, Limiter, Plan
from paceline.errors import StoreRefused
from paceline.testing import RedisServer
from paceline.testing.servers.redis_cluster import RedisClusterAddress
from paceline.testing.servers.redis_sentinel import RedisSentinel
from tests.unit.limits.both import Awaited

PLANS = [Plan(policy, FixedWindow(1000, "PT1H"), on_error=policy) for policy in ("open", "closed", "fallback")]


@pytest.fixture(params=[Limiter, AsyncLimiter], ids=["sync", "async"])
async def opened(request: pytest.FixtureRequest) -> AsyncIterator[Callable[..., Any]]:
    made: list[Any] = []

    def open(url: str, **options: Any) -> Any:
        limiter = request.param(url, plans=PLANS, **{"deadline": 30, **options})
        made.append(Awaited(limiter) if request.param is Limiter else limiter)
        return made[-1]

    yield open
    for limiter in made:
        await limiter.close()


def tell(server: RedisServer, *commands: tuple[str, ...], password: str | None = None) -> None:
    """Tells a server to change, and to close all connections, as a restarted one would."""
    with redis.Redis(port=server.port, password=password) as client:
        for command in commands:
            client.execute_command(*command)
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


async def refused(limiter: Any) -> StoreRefused:
    """The error of every call, whatever the plan's failure policy."""
    with suppress(StoreRefused):
        # May meet a connection the server has closed, and be lost with it.
        await limiter.acquire("k", "open")
    for plan in PLANS:
        with pytest.raises(StoreRefused) as found:
            await limiter.acquire("k", plan.name)
    assert limiter.breaker_state == "closed"
    error: BaseException | None = found.value
    while error is not None:
        assert "hunter" not in repr(error)
        error = error.__cause__ or error.__context__
    return found.value


async def settles(limiter: Any, remaining: int) -> None:
    """The next call works; one that met a connection the server closed may be lost with it."""
    for _ in range(3):
        decision = await limiter.acquire("k", "closed")
        if not decision.degraded:
            break
    assert (decision.allowed, decision.remaining) == (True, remaining)


async def test_a_password_that_is_changed_and_put_back(own_redis: RedisServer, opened: Callable[..., Any]) -> None:
    tell(own_redis, ("CONFIG", "SET", "requirepass", "hunter1"))
    limiter = opened(f"redis://:hunter1@{own_redis.address}")
    await settles(limiter, 999)
    tell(own_redis, ("CONFIG", "SET", "requirepass", "hunter2"), password="hunter1")
    error = await refused(limiter)
    assert error.setting == "redis_url"
    assert "password" in str(error)
    with pytest.raises(StoreRefused):
        await limiter.refund("k", "open")
    tell(own_redis, ("CONFIG", "SET", "requirepass", "hunter1"), password="hunter2")
    await settles(limiter, 998)
    # The server requires none any more: sending one is still an error.
    tell(own_redis, ("CONFIG", "SET", "requirepass", ""), password="hunter1")
    assert "has no password set" in str(await refused(limiter))


async def test_a_password_that_is_missing(own_redis: RedisServer, opened: Callable[..., Any]) -> None:
    tell(own_redis, ("CONFIG", "SET", "requirepass", "hunter1"))
    limiter = opened(own_redis.url)
    assert "wants a password" in str(await refused(limiter))
    tell(own_redis, ("CONFIG", "SET", "requirepass", ""), password="hunter1")
    await settles(limiter, 999)


@pytest.mark.parametrize("missing", ["-evalsha", "-set", "resetkeys"])
async def test_a_permission_that_is_taken_away_and_given_back(
    own_redis: RedisServer, opened: Callable[..., Any], missing: str
) -> None:
    with own_redis.client() as client:
        client.execute_command("ACL", "SETUSER", "limits", "on", ">hunter1", "~*", "+@all")
        limiter = opened(f"redis://limits:hunter1@{own_redis.address}")
        await settles(limiter, 999)
        client.execute_command("ACL", "SETUSER", "limits", missing)
        error = await refused(limiter)
        assert error.setting == "redis_url"
        assert "does not permit" in str(error)
        client.execute_command("ACL", "SETUSER", "limits", "~*", "+@all")
        await settles(limiter, 998)


async def test_a_refusal_after_an_outage_is_not_taken_for_one(
    own_redis: RedisServer, opened: Callable[..., Any]
) -> None:
    limiter = opened(own_redis.url, breaker=BreakerPolicy(failures=1, first_pause=0.01, longest_pause=0.02))
    await settles(limiter, 999)
    own_redis.kill()
    while limiter.breaker_state == "closed":
        assert (await limiter.acquire("k", "open")).reason in ("FAIL_OPEN", "OK")
    own_redis.start()
    tell(own_redis, ("CONFIG", "SET", "requirepass", "hunter1"))
    for _ in range(100_000):
        try:
            assert (await limiter.acquire("k", "open")).reason == "FAIL_OPEN"
        except StoreRefused:
            break
    # From here on there is no pause between the breaker's probes.
    await refused(limiter)


async def test_leases_end_quietly_where_the_store_refuses(own_redis: RedisServer, opened: Callable[..., Any]) -> None:
    with own_redis.client() as client:
        client.execute_command("ACL", "SETUSER", "limits", "on", ">hunter1", "~*", "+@all")
        limiter = opened(f"redis://limits:hunter1@{own_redis.address}", lease=LeasePolicy(longest=60))
        for _ in range(20):
            assert (await limiter.acquire("k", "closed")).allowed
        client.execute_command("ACL", "SETUSER", "limits", "-@all")
        await limiter.close()


async def test_sentinels_and_clusters_refuse_by_their_own_setting(
    redis_sentinel: RedisSentinel, redis_cluster: RedisClusterAddress, opened: Callable[..., Any]
) -> None:
    for url, setting in (
        (f"{redis_sentinel.url}?sentinel_password=hunter1", "sentinel_username, sentinel_password in redis_url"),
        (redis_sentinel.url.replace("://", "://:hunter1@"), "redis_url"),
        (redis_cluster.url.replace("://", "://:hunter1@"), "redis_url"),
    ):
        assert (await refused(opened(url))).setting == setting


@pytest.mark.parametrize("wrong", ["role", "database"])
async def test_a_database_that_turns_us_away(postgres_url: str, opened: Callable[..., Any], wrong: str) -> None:
    place = urlsplit(postgres_url)
    url = f"postgresql://hunter@{place.hostname}:{place.port}/x" if wrong == "role" else f"{postgres_url}_nothing"
    limiter = opened(url)
    with pytest.raises(StoreRefused, match="does not exist") as found:
        await limiter.acquire("k", "open")
    assert found.value.setting == "database_url"
