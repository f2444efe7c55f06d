"""Every adapter of a port, as one parametrised fixture."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from paceline.limits.ports import AsyncLimitStore, LimitStore
from paceline.limits.stores import async_limit_store, limit_store
from paceline.limits.stores.host import HostLimitStore
from paceline.limits.stores.memory import AsyncMemoryLimitStore, MemoryLimitStore
from paceline.slots.ports import SlotStore
from paceline.slots.stores import slot_store, slot_stores
from paceline.sql import url as database_urls
from paceline.sql.engine import Database
from paceline.testing import TemporalServer
from paceline.testing.availability import available
from paceline.testing.plugin import SHARED
from paceline.testing.servers.postgres import PostgresDatabases
from paceline.testing.servers.redis_cluster import RedisClusterAddress
from tests.acceptance.service import Service
from tests.contracts.replanned import Stores
from tests.contracts.task_engines import NAMESPACES, WITHOUT_SYSTEM_WORKERS, EngineTasks
from tests.effort import is_thorough
from tests.every_schema import upgrade

if TYPE_CHECKING:
    from paceline.dispatch.engines.temporal.client import TemporalConnection
    from paceline.testing.servers.redis_sentinel import RedisSentinel

SLOT_STORES = ["memory", "sqlite", "postgresql", "oracle"]

TASK_STORES = ["sqlite", "postgresql"]

MANY_ROWS = {
    "test_a_burst_of_twenty_thousand_and_one_finds_room",
    "test_all_dead_letters_of_one_type_are_requeued_and_nothing_else",
    "test_configs_that_want_the_same_events_at_once_agree",
    "test_many_are_cancelled_at_once_and_their_room_is_free",
    "test_matching_items_are_cancelled_in_batches_and_others_left_alone",
    "test_no_write_takes_a_step_the_table_does_not_know",
    "test_steady_overload_against_a_horizon_does_not_crowd_at_the_start_of_windows",
    "test_writers_of_overlapping_sets_and_changes_never_deadlock",
}
"""Tests that check the same for many rows, or many times."""


def slot_store_url(kind: str, request: pytest.FixtureRequest) -> str:
    """Where a fresh slot store of a kind is to be had."""
    if kind == "memory":
        return "memory://"
    if kind == "sqlite":
        return f"sqlite:///{request.getfixturevalue('tmp_path') / 'slots.db'}"
    if kind == "postgresql":
        return str(request.getfixturevalue("postgres_url"))
    if url := os.environ.get("PACELINE_TEST_ORACLE_URL"):
        return url
    if getattr(request.node, "originalname", "") in MANY_ROWS:
        pytest.skip(
            "no Oracle (PACELINE_TEST_ORACLE_URL), and its stand-in is slow: no statement is of this test alone"
        )
    return str(request.getfixturevalue("oracle_stand_in"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "tasks" not in metafunc.fixturenames or "tasks_url" not in metafunc.fixturenames:
        return
    if any(mark.args[0] == "tasks" for mark in metafunc.definition.iter_markers("parametrize")):
        metafunc.parametrize("tasks_url", TASK_STORES, indirect=True)
    else:
        metafunc.parametrize(("tasks", "tasks_url"), task_stacks(metafunc), indirect=True)


def task_stacks(metafunc: pytest.Metafunc) -> list[tuple[str, str]]:
    """All engines on all stores in the thorough profile; otherwise each engine and each store, the pairs of which
    take turns from test to test."""
    if is_thorough():
        return list(product(["in-process", "temporal"], TASK_STORES))
    if list(vars(metafunc.module)).index(metafunc.function.__name__) % 2:
        return [("in-process", "sqlite"), ("temporal", "postgresql")]
    return [("in-process", "sqlite"), ("in-process", "postgresql"), ("temporal", "sqlite")]


@pytest.fixture(scope="session")
def oracle_schema(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite file with this version's tables."""
    path = tmp_path_factory.mktemp("oracle") / "schema.db"

    async def create() -> None:
        database = Database(f"sqlite:///{path}")
        await upgrade(database)
        await database.close()

    with ThreadPoolExecutor(1) as thread:  # the event loop of an asynchronous fixture may run in this one
        thread.submit(asyncio.run, create()).result()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    return path


@pytest.fixture
def oracle_stand_in(oracle_schema: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a fresh stand-in for Oracle. Two grammars of Oracle's SQL parse what was sent to it."""
    from tests.models import oracle, oracle_grammars

    monkeypatch.setitem(database_urls._DRIVERS, "oracle", oracle.DRIVER)
    yield oracle.stand_in_url(oracle_schema, tmp_path / "oracle.db")
    while oracle.statements:
        oracle_grammars.check(oracle.statements.pop())


@pytest.fixture(params=SLOT_STORES)
async def slots(request: pytest.FixtureRequest) -> AsyncIterator[SlotStore]:
    store = await slot_store(slot_store_url(request.param, request))
    yield store
    await store.close()


@pytest.fixture(scope="session")
def task_namespaces() -> Iterator[Iterator[TemporalConnection]]:
    """Unused namespaces of this process's own Temporal."""
    from paceline.dispatch.engines.temporal.client import TemporalConnection

    with (
        available("temporal"),
        TemporalServer(durable=False, namespaces=NAMESPACES, dynamic_config=WITHOUT_SYSTEM_WORKERS) as server,
    ):
        yield (TemporalConnection(server.address, namespace) for namespace in NAMESPACES)


@pytest.fixture
def tasks_url(request: pytest.FixtureRequest) -> str:
    return slot_store_url(request.param, request)


@pytest.fixture
async def tasks(tasks_url: str, request: pytest.FixtureRequest) -> AsyncIterator[EngineTasks]:
    """On every store and engine: `task_stacks` has the combinations."""
    temporal = next(request.getfixturevalue("task_namespaces")) if request.param == "temporal" else None
    async with EngineTasks(tasks_url, temporal) as tasks:
        yield tasks


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


@pytest.fixture(scope="module")
def sentinel_group() -> Iterator[RedisSentinel]:
    """A set of sentinels for all tests of a module that do not break it. Its processes ask each other all the time."""
    with available("redis"):
        from paceline.testing.servers.redis_sentinel import RedisSentinel

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


@pytest.fixture(scope="module")
def host_location() -> Iterator[str]:
    name = f"test-{uuid4().hex}"
    yield f"host://{name}?megabytes=4"
    Path(HostLimitStore(name).path).unlink()


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
def host_limit_store(host_location: str) -> Iterator[LimitStore]:
    yield from _opened(host_location)


@pytest.fixture(scope="module")
def async_host_limit_store(host_location: str, runner: asyncio.Runner) -> Iterator[AsyncLimitStore]:
    yield from _awaited(host_location, runner)


@pytest.fixture(scope="module")
def service_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service that counts in memory: it needs no token of those who call it from this machine."""
    with Service(tmp_path_factory.mktemp("service"), PACELINE_LIMITS_STORE="memory") as service:
        yield service.url


@pytest.fixture(scope="module")
def service_limit_store(service_url: str) -> Iterator[LimitStore]:
    yield from _opened(service_url)


@pytest.fixture(scope="module")
def async_service_limit_store(service_url: str, runner: asyncio.Runner) -> Iterator[AsyncLimitStore]:
    yield from _awaited(service_url, runner)


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


@pytest.fixture(params=SLOT_STORES)
async def stores(request: pytest.FixtureRequest) -> AsyncIterator[Stores]:
    opened = await slot_stores(slot_store_url(request.param, request))
    yield opened
    await opened[0].close()
