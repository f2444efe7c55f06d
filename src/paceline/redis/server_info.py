"""What a Redis server reports about itself. Reading it changes nothing."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Any, NamedTuple

from paceline.errors import StoreError
from paceline.redis.blocking_client import RedisClient
from paceline.redis.blocking_connection import RedisConnection
from paceline.redis.protocol import packed
from paceline.redis.redirects import ErrorReply, store_error
from paceline.redis.url import Address, RedisUrl

INFO = packed(b"INFO")
TIME = packed(b"TIME")
TRY = packed(b"EVAL", b"return 1", b"0")


class RedisInfo(NamedTuple):
    """One server: in a cluster one of its masters, with Sentinel the master."""

    address: str
    version: str
    role: str
    replicas: int
    maxmemory: int
    """Bytes; 0 for no limit."""
    eviction: str
    """What it evicts when memory is full; `noeviction`: nothing."""
    now: datetime
    requested: datetime
    answered: datetime
    """When, by our own clock, the TIME command was sent and its reply came."""
    scripts: str | None
    """Why scripts can't be run; None if they can."""


async def redis_info(url: str, *, timeout: float) -> list[RedisInfo]:
    """The info of every master.

    Raises:
        StoreError: a server does not answer.
    """
    return await asyncio.to_thread(_server_infos, RedisUrl.parse(url, timeout=timeout))


async def ping_redis(url: str, *, timeout: float) -> None:
    """Checks that every master answers.

    Raises:
        StoreError: a server does not answer.
    """
    await asyncio.to_thread(_ping, RedisUrl.parse(url, timeout=timeout))


def _ping(url: RedisUrl) -> None:
    client = RedisClient(url)
    try:
        for address in client.masters():
            # The handshake includes PING.
            RedisConnection(address, url, url.login, time.monotonic() + url.timeout, url.database).close()
    finally:
        client.close()


def _server_infos(url: RedisUrl) -> list[RedisInfo]:
    client = RedisClient(url)
    try:
        return [_server(address, url) for address in client.masters()]
    finally:
        client.close()


def _server(address: Address, url: RedisUrl) -> RedisInfo:
    connection = RedisConnection(address, url, url.login, time.monotonic() + url.timeout, url.database)
    try:
        info = _sections(_execute(connection, INFO))
        requested = datetime.now(UTC)
        seconds, us = _execute(connection, TIME)
        answered = datetime.now(UTC)
        try:
            _execute(connection, TRY)
            scripts = None
        except StoreError as error:
            scripts = str(error)
    finally:
        connection.close()
    return RedisInfo(
        address=str(address),
        version=info.get("redis_version", "?"),
        role=info.get("role", "?"),
        replicas=int(info.get("connected_slaves", 0)),
        maxmemory=int(info.get("maxmemory", 0)),
        eviction=info.get("maxmemory_policy", "?"),
        now=datetime.fromtimestamp(int(seconds) + int(us) / 1_000_000, UTC),
        requested=requested,
        answered=answered,
        scripts=scripts,
    )


def _execute(connection: RedisConnection, command: bytes) -> Any:
    reply = connection.exchange(command)
    if isinstance(reply, ErrorReply):
        raise store_error(*reply)
    return reply


def _sections(reply: bytes) -> dict[str, str]:
    sections = {}
    for line in reply.decode("utf-8", "replace").splitlines():
        name, _, value = line.partition(":")
        sections[name] = value
    return sections
