"""Unix sockets, prefixes, users, providers of credentials: on a real Redis."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline import AsyncLimiter, Limiter, Plan
from paceline.errors import ConfigurationError, StoreRefused
from paceline.limits.model import Reason
from paceline.redis.url import RedisUrl
from paceline.testing.servers.redis import RedisServer

pytestmark = pytest.mark.redis

PLANS = [Plan("gold", "3/hour"), Plan("log", "3/hour;5/day")]
ACL = "+eval +evalsha +ping +get +set +del +pexpire +getrange +setrange +time"
logins: list[tuple[str | None, str]] = []


def next_login() -> tuple[str | None, str]:
    """A provider of credentials."""
    return logins.pop(0)


@pytest.fixture(scope="module")
def socket() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:  # a socket's path is short
        yield Path(directory) / "redis.sock"


@pytest.fixture(scope="module")
def server(socket: Path) -> Iterator[RedisServer]:
    server = RedisServer(durable=False, settings={"unixsocket": str(socket)})
    server.start()
    with server.client() as client:
        client.execute_command(f"ACL SETUSER limits on >secret ~shop:rate_limiter* -@all {ACL}")
    yield server
    server.close()


async def acquire(url: str, key: str, kind: Any = AsyncLimiter) -> Any:
    limiter = kind(url, plans=PLANS, on_error="closed", deadline=5)
    try:
        decision = limiter.acquire(key, ["gold", "log"])
        return await decision if kind is AsyncLimiter else decision
    finally:
        closed = limiter.close()
        if kind is AsyncLimiter:
            await closed


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
@pytest.mark.parametrize("scheme", ["unix", "redis+unix"])
async def test_a_unix_socket_is_the_same_server(server: RedisServer, socket: Path, kind: Any, scheme: str) -> None:
    key = f"{scheme}-{kind.__name__}"
    assert (await acquire(f"{scheme}://{socket}?db=3", key, kind)).remaining == 2
    assert (await acquire(f"{server.url.removesuffix('/0')}/3", key, kind)).remaining == 1
    missing = await acquire(f"unix://{socket}x", key, kind)
    assert missing.reason is Reason.FAIL_CLOSED


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
async def test_a_prefix_keeps_applications_apart(server: RedisServer, kind: Any) -> None:
    key = f"prefix-{kind.__name__}"
    for prefix in ("", "?prefix=shop:", "?prefix=blog:"):
        assert (await acquire(server.url + prefix, key, kind)).remaining == 2
    with server.client() as client:
        assert sorted(client.keys(f"*{key}*gold")) == [
            f"{prefix}rate_limiter:{{{key}}}:gold" for prefix in ("blog:", "", "shop:")
        ]


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
async def test_a_user_with_few_rights_is_enough(server: RedisServer, kind: Any) -> None:
    url = server.url.replace("redis://", "redis://limits:secret@")
    assert (await acquire(f"{url}?prefix=shop:", f"acl-{kind.__name__}", kind)).remaining == 2


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
async def test_credentials_come_from_a_provider_for_each_connection(server: RedisServer, kind: Any) -> None:
    url = f"{server.url}?prefix=shop:&credentials={__name__}:next_login"
    logins[:] = [("limits", "secret"), ("limits", "old")]
    assert (await acquire(url, f"provider-{kind.__name__}", kind)).remaining == 2
    with pytest.raises(StoreRefused):
        await acquire(url, f"provider-{kind.__name__}", kind)
    # A provider that fails is an outage, which the plans decide; its error, which may hold a secret, is not shown.
    assert (await acquire(url, f"provider-{kind.__name__}", kind)).reason is Reason.FAIL_CLOSED


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("redis://h?protocol=3", "RESP3"),
        ("redis://h?prefix={a}", "braces"),
        ("redis://h?credentials=nowhere:f", "can't be imported"),
        ("redis://h?credentials=os:sep", "a function"),
        ("redis://h?credentials=os", "a function"),
        ("redis://u:p@h?credentials=os:getcwd", "one of them"),
        ("unix://run/redis.sock", "whole path"),
        ("unix:///run/redis.sock?db=x", "number of a database"),
        ("unix:///run/redis.sock?ssl_certfile=x", "no meaning"),
        ("redis://h?db=3", "unknown option"),
    ],
)
def test_what_can_not_work_is_refused(url: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        RedisUrl.parse(url)


def test_a_url_is_shown_without_its_secrets() -> None:
    assert str(RedisUrl.parse("unix://u:secret@/run/redis.sock?db=2")) == "unix:///run/redis.sock?db=2"
    assert RedisUrl.parse("redis://h?protocol=2").prefix == ""


async def test_a_socket_serves_many_callers_at_once(server: RedisServer, socket: Path) -> None:
    async with AsyncLimiter(f"unix://{socket}", plans=[Plan("many", "100/hour")]) as limiter:
        decisions = await asyncio.gather(*(limiter.acquire("many", "many") for _ in range(300)))
        assert sum(decision.allowed for decision in decisions) == 100
