"""Every adapter of a port, as one parametrised fixture."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from headgate.limits.ports import AsyncLimitStore, LimitStore
from headgate.limits.stores import async_limit_store, limit_store
from headgate.limits.stores.memory import AsyncMemoryLimitStore, MemoryLimitStore
from headgate.slots.ports import SlotStore
from headgate.slots.stores import slot_store
from headgate.testing.availability import available
from headgate.testing.plugin import SHARED
from headgate.testing.servers.postgres import PostgresDatabases
from headgate.testing.servers.redis_cluster import RedisClusterAddress

if TYPE_CHECKING:
    from headgate.testing.servers.redis_sentinel import RedisSentinel

SLOT_STORES = ["memory", "sqlite", "postgresql", "oracle"]


def slot_store_url(kind: str, request: pytest.FixtureRequest) -> str:
    """Where a fresh slot store of a kind is to be had."""
    if kind == "memory":
        return "memory://"
    if kind == "sqlite":
        return f"sqlite:///{request.getfixturevalue('tmp_path') / 'slots.db'}"
    if kind == "postgresql":
        return str(request.getfixturevalue("postgres_url"))
    url = os.environ.get("HEADGATE_TEST_ORACLE_URL")
    if not url:
        pytest.skip("no Oracle: set HEADGATE_TEST_ORACLE_URL to run the suite on one")
    return url


@pytest.fixture(params=SLOT_STORES)
async def slots(request: pytest.FixtureRequest) -> AsyncIterator[SlotStore]:
    store = await slot_store(slot_store_url(request.param, request))
    yield store
    await store.close()


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    """The event loop that awaited stores of a module live on."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def redis_location(pytestconfig: pytest.Config) -> Iterator[str]:
    """A database in the shared Redis, for all tests of a module; they keep apart by their keys."""
    shared = pytestconfig.stash[SHARED]
    with available("redis"):
        port = shared.locate("redis")
    number = shared.lend_database()
    yield f"redis://127.0.0.1:{port}/{number}"
    shared.return_database(number)


@pytest.fixture(scope="session")
def sentinel_group() -> Iterator[RedisSentinel]:
    """A set of sentinels for all tests that do not break it."""
    with available("redis"):
        from headgate.testing.servers.redis_sentinel import RedisSentinel

        with RedisSentinel(durable=False) as group:
            yield group


@pytest.fixture(scope="module")
def sentinel_location(sentinel_group: RedisSentinel) -> str:
    return sentinel_group.url


@pytest.fixture(scope="module")
def postgres_location(postgres_server: PostgresDatabases) -> Iterator[str]:
    """A database in the shared PostgreSQL, for all tests of a module."""
    name = f"limits_{uuid4().hex[:16]}"
    yield postgres_server.create(name)
    postgres_server.drop(name)


@pytest.fixture(scope="module")
def sqlite_location(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('limits') / 'limits.db'}"


def _opened(url: str) -> Iterator[LimitStore]:
    store = limit_store(url, deadline=30)
    yield store
    store.close()


def _awaited(url: str, runner: asyncio.Runner) -> Iterator[AsyncLimitStore]:
    store = async_limit_store(url, deadline=30)
    yield store
    runner.run(store.close())


@pytest.fixture(scope="module")
def memory_limit_store() -> MemoryLimitStore:
    return MemoryLimitStore()


@pytest.fixture(scope="module")
def async_memory_limit_store() -> AsyncMemoryLimitStore:
    return AsyncMemoryLimitStore()


@pytest.fixture(scope="module")
def redis_limit_store(redis_location: str) -> Iterator[LimitStore]:
    yield from _opened(redis_location)


@pytest.fixture(scope="module")
def async_redis_limit_store(redis_location: str, runner: asyncio.Runner) -> Iterator[AsyncLimitStore]:
    yield from _awaited(redis_location, runner)


@pytest.fixture(scope="module")
def redis_cluster_limit_store(redis_cluster: RedisClusterAddress) -> Iterator[LimitStore]:
    yield from _opened(redis_cluster.url)


@pytest.fixture(scope="module")
def async_redis_cluster_limit_store(
    redis_cluster: RedisClusterAddress, runner: asyncio.Runner
) -> Iterator[AsyncLimitStore]:
    yield from _awaited(redis_cluster.url, runner)


@pytest.fixture(scope="module")
def redis_sentinel_limit_store(sentinel_location: str) -> Iterator[LimitStore]:
    yield from _opened(sentinel_location)


@pytest.fixture(scope="module")
def async_redis_sentinel_limit_store(sentinel_location: str, runner: asyncio.Runner) -> Iterator[AsyncLimitStore]:
    yield from _awaited(sentinel_location, runner)


@pytest.fixture(scope="module")
def sqlite_limit_store(sqlite_location: str) -> Iterator[LimitStore]:
    yield from _opened(sqlite_location)


@pytest.fixture(scope="module")
def async_sqlite_limit_store(sqlite_location: str, runner: asyncio.Runner) -> Iterator[AsyncLimitStore]:
    yield from _awaited(sqlite_location, runner)


@pytest.fixture(scope="module")
def postgres_limit_store(postgres_location: str) -> Iterator[LimitStore]:
    yield from _opened(postgres_location)


@pytest.fixture(scope="module")
def async_postgres_limit_store(postgres_location: str, runner: asyncio.Runner) -> Iterator[AsyncLimitStore]:
    yield from _awaited(postgres_location, runner)
