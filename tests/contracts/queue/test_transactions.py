"""Queueing in a transaction of the caller's, on every kind of connection: it commits, rolls back and nests with it."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import django
import psycopg
import pytest
import sqlalchemy as sa
from django.conf import settings
from django.db import connections, transaction
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from paceline import BlockingDispatchQueue, Conflict, DispatchQueue, InvalidInput, NotFound
from paceline.sql.url import database_url
from paceline.testing.servers.postgres import PostgresDatabases
from tests.contracts.conftest import slot_store_url


class Caller:
    """A caller's connection, and what the caller does with it."""

    def __init__(self, connection: Any, execute: Callable[[str], Any], commit: Any, rollback: Any) -> None:
        self.connection = connection
        self._execute, self._commit, self._rollback = execute, commit, rollback

    async def execute(self, statement: str) -> None:
        await _awaited(self._execute(statement))

    async def commit(self) -> None:
        await _awaited(self._commit())

    async def rollback(self) -> None:
        await _awaited(self._rollback())


async def _awaited(result: Any) -> None:
    if asyncio.iscoroutine(result):
        await result


Open = Callable[[str], AbstractAsyncContextManager[Caller]]


@asynccontextmanager
async def sa_connection(url: str) -> AsyncIterator[Caller]:
    engine = sa.create_engine(database_url(url))
    with engine.connect() as own:
        yield Caller(own, lambda text: own.execute(sa.text(text)), own.commit, own.rollback)
    engine.dispose()


@asynccontextmanager
async def sa_session(url: str) -> AsyncIterator[Caller]:
    engine = sa.create_engine(database_url(url))
    with Session(engine) as own:
        yield Caller(own, lambda text: own.execute(sa.text(text)), own.commit, own.rollback)
    engine.dispose()


@asynccontextmanager
async def sa_scoped_session(url: str) -> AsyncIterator[Caller]:
    engine = sa.create_engine(database_url(url))
    own = scoped_session(sessionmaker(engine))
    yield Caller(own, lambda text: own.execute(sa.text(text)), own.commit, own.rollback)
    own.remove()
    engine.dispose()


@asynccontextmanager
async def sa_async_connection(url: str) -> AsyncIterator[Caller]:
    engine = create_async_engine(database_url(url))
    async with engine.connect() as own:
        yield Caller(own, lambda text: own.execute(sa.text(text)), own.commit, own.rollback)
    await engine.dispose()


@asynccontextmanager
async def sa_async_session(url: str) -> AsyncIterator[Caller]:
    engine = create_async_engine(database_url(url))
    async with AsyncSession(engine) as own:
        yield Caller(own, lambda text: own.execute(sa.text(text)), own.commit, own.rollback)
    await engine.dispose()


@asynccontextmanager
async def psycopg_connection(url: str) -> AsyncIterator[Caller]:
    with psycopg.connect(url, row_factory=dict_row) as own:
        yield Caller(own, lambda text: own.execute(text.encode()), own.commit, own.rollback)


@asynccontextmanager
async def psycopg_async_connection(url: str) -> AsyncIterator[Caller]:
    async with await psycopg.AsyncConnection.connect(url) as own:
        yield Caller(own, lambda text: own.execute(text.encode()), own.commit, own.rollback)


@asynccontextmanager
async def sqlite3_connection(url: str) -> AsyncIterator[Caller]:
    with contextlib.closing(sqlite3.connect(str(sa.make_url(url).database))) as own:
        yield Caller(own, own.execute, own.commit, own.rollback)


EVERYWHERE: list[Open] = [sa_connection, sa_session, sa_scoped_session]
ON_POSTGRESQL: list[Open] = [sa_async_connection, sa_async_session, psycopg_connection, psycopg_async_connection]
KINDS = [
    *(pytest.param("sqlite", kind, id=f"sqlite-{kind.__name__}") for kind in [*EVERYWHERE, sqlite3_connection]),
    *(pytest.param("postgresql", kind, id=f"postgresql-{kind.__name__}") for kind in [*EVERYWHERE, *ON_POSTGRESQL]),
]


@asynccontextmanager
async def opened(request: pytest.FixtureRequest, store: str, kind: Open) -> AsyncIterator[tuple[DispatchQueue, Caller]]:
    url = slot_store_url(store, request)
    async with DispatchQueue.open(url) as queue:
        await queue.configure("PAY")
        async with kind(url) as caller:
            await caller.execute("CREATE TABLE mine (n INTEGER)")
            await caller.commit()
            yield queue, caller


async def ids(queue: DispatchQueue) -> list[str]:
    return [item.item_id for item in await queue.list("PAY")]


@pytest.mark.parametrize(("store", "kind"), KINDS)
async def test_items_come_and_go_with_the_transaction(request: pytest.FixtureRequest, store: str, kind: Open) -> None:
    async with opened(request, store, kind) as (queue, caller):
        own = caller.connection
        await caller.execute("INSERT INTO mine VALUES (1)")
        assert not (await queue.enqueue("PAY", "kept", context={"a": "'ü %s"}, connection=own)).existing
        assert (await queue.enqueue("PAY", "kept", context={"a": 2}, connection=own)).existing
        if store == "postgresql":
            assert await ids(queue) == [], "nobody else sees it before the commit"
        await caller.execute("SAVEPOINT before")
        await queue.enqueue("PAY", "undone", connection=own)
        await caller.execute("ROLLBACK TO SAVEPOINT before")
        many = [("bulk-1", None, None), ("bulk-1", None, None), ("kept", None, None)]
        results = await queue.enqueue_many("PAY", many, connection=own)
        assert [result.existing for result in results] == [False, True, True]
        await caller.commit()
        await queue.enqueue("PAY", "gone", connection=own)
        await caller.rollback()
        assert await ids(queue) == ["bulk-1", "kept"]
        assert (await queue.show("PAY", "kept")).context == {"a": "'ü %s"}
        assert (await queue.enqueue("PAY", "kept", connection=own)).existing
        await caller.rollback()


@pytest.mark.parametrize(("store", "kind"), KINDS)
async def test_bad_input_leaves_the_transaction_usable(request: pytest.FixtureRequest, store: str, kind: Open) -> None:
    async with opened(request, store, kind) as (queue, caller):
        await caller.execute("INSERT INTO mine VALUES (1)")
        with pytest.raises(InvalidInput, match="item_id"):
            await queue.enqueue("PAY", "", connection=caller.connection)
        with pytest.raises(NotFound):
            await queue.enqueue("NOBODY", "a", connection=caller.connection)
        await queue.enqueue("PAY", "kept", connection=caller.connection)
        await caller.commit()
        assert await ids(queue) == ["kept"]


async def test_a_connection_that_commits_by_itself_is_refused(postgres_url: str) -> None:
    async with DispatchQueue.open(postgres_url) as queue:
        await queue.configure("PAY")
        with (
            psycopg.connect(postgres_url, autocommit=True) as own,
            pytest.raises(InvalidInput, match="connection: has no transaction"),
        ):
            await queue.enqueue("PAY", "a", connection=own)
        with psycopg.connect(postgres_url, autocommit=True) as own, own.transaction():
            await queue.enqueue("PAY", "within", connection=own)
        engine = sa.create_engine(database_url(postgres_url), isolation_level="AUTOCOMMIT")
        with engine.connect() as own_sa, pytest.raises(InvalidInput, match="connection: has no transaction"):
            await queue.enqueue("PAY", "a", connection=own_sa)
        engine.dispose()
        assert await ids(queue) == ["within"]


async def test_a_connection_to_another_database_is_refused_with_a_word(
    postgres_url: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = psycopg.conninfo.make_conninfo(postgres_url, dbname="postgres")
    async with DispatchQueue.open(postgres_url) as queue:
        await queue.configure("PAY")
        with psycopg.connect(other) as own, pytest.raises(InvalidInput, match="connection: leads to a database that"):
            await queue.enqueue("PAY", "a", connection=own)
        with (
            contextlib.closing(sqlite3.connect(":memory:")) as here,
            pytest.raises(InvalidInput, match="leads to sqlite; the queue is in postgresql"),
        ):
            await queue.enqueue("PAY", "a", connection=here)
    path = tmp_path_factory.mktemp("queue") / "work.db"
    async with DispatchQueue.open(f"sqlite:///{path}") as queue:
        await queue.configure("PAY")
        with (
            contextlib.closing(sqlite3.connect(":memory:")) as here,
            pytest.raises(InvalidInput, match="connection: leads to a database that"),
        ):
            await queue.enqueue("PAY", "a", connection=here)
        with (
            contextlib.closing(sqlite3.connect(path, isolation_level=None)) as here,
            pytest.raises(InvalidInput, match="connection: has no transaction"),
        ):
            await queue.enqueue("PAY", "a", connection=here)


async def test_another_database_with_a_queue_of_its_own_is_refused_too(
    postgres_server: PostgresDatabases, postgres_url: str, tmp_path: Path
) -> None:
    """The statement would succeed there, and no worker would ever find the item."""
    name = f"other_{uuid4().hex[:16]}"
    own_file, other_file = tmp_path / "own.db", tmp_path / "other.db"
    pairs = [(postgres_url, postgres_server.create(name)), (f"sqlite:///{own_file}", f"sqlite:///{other_file}")]
    for own_url, other_url in pairs:
        kinds = [sa_connection, sa_async_connection, psycopg_connection, psycopg_async_connection]
        if own_url is not postgres_url:
            kinds = [sa_connection, sqlite3_connection]
        async with DispatchQueue.open(own_url) as queue, DispatchQueue.open(other_url) as other:
            await queue.configure("PAY")
            await other.configure("PAY")
            for opened in kinds:
                async with opened(other_url) as caller:
                    with pytest.raises(InvalidInput, match="leads to a database that is not the queue's own"):
                        await queue.enqueue("PAY", "a", connection=caller.connection)
                    await caller.commit()
            assert await ids(other) == []
    postgres_server.drop(name)


async def test_the_queues_own_file_by_another_name_is_accepted(tmp_path: Path) -> None:
    file, link = tmp_path / "own.db", tmp_path / "link.db"
    async with DispatchQueue.open(f"sqlite:///{file}") as queue:
        await queue.configure("PAY")
        link.symlink_to(file)
        with contextlib.closing(sqlite3.connect(link)) as here:
            await queue.enqueue("PAY", "a", connection=here)
            here.commit()
        assert await ids(queue) == ["a"]


async def test_in_sqlite_the_callers_transaction_begins_to_write_before_the_queue_reads(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"

    def another_process_writes(statement: str) -> None:
        if "FROM paceline_dispatch_queue" in statement:
            with contextlib.suppress(sqlite3.OperationalError):  # locked
                other.execute("INSERT INTO mine VALUES (1)")

    async with DispatchQueue.open(f"sqlite:///{path}") as queue:
        await queue.configure("PAY")
        with (
            contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as other,
            contextlib.closing(sqlite3.connect(path, isolation_level=None)) as own,
        ):
            other.execute("CREATE TABLE mine (n INTEGER)")
            own.execute("BEGIN")
            own.set_trace_callback(another_process_writes)
            await queue.enqueue("PAY", "1", connection=own)
            own.execute("COMMIT")
        assert await ids(queue) == ["1"]


async def test_in_sqlite_a_transaction_that_read_too_early_is_told_how_to_begin(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    async with DispatchQueue.open(f"sqlite:///{path}") as queue:
        await queue.configure("PAY")
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as own:
            own.execute("BEGIN")
            own.execute("SELECT count(*) FROM paceline_dispatch_queue").fetchall()
            await queue.enqueue("PAY", "of another process")
            with pytest.raises(Conflict, match="BEGIN IMMEDIATE"):
                await queue.enqueue("PAY", "1", connection=own)
            own.execute("ROLLBACK")
            own.execute("BEGIN IMMEDIATE")
            own.execute("SELECT count(*) FROM paceline_dispatch_queue").fetchall()
            await queue.enqueue("PAY", "1", connection=own)
            own.execute("COMMIT")
        assert sorted(await ids(queue)) == ["1", "of another process"]


async def test_asyncpg_and_strangers_are_refused_with_a_word() -> None:
    stranger = type("Connection", (), {"__module__": "asyncpg.connection"})()
    async with DispatchQueue.open("memory://") as queue:
        await queue.configure("PAY")
        with pytest.raises(InvalidInput, match="connection: asyncpg is not supported; use psycopg"):
            await queue.enqueue("PAY", "a", connection=stranger)
        with pytest.raises(InvalidInput, match="connection: must be a SQLAlchemy Session"):
            await queue.enqueue("PAY", "a", connection=object())


async def test_a_broken_transaction_is_an_error_and_the_next_one_works(postgres_url: str) -> None:
    async with DispatchQueue.open(postgres_url) as queue:
        await queue.configure("PAY")
        with psycopg.connect(postgres_url) as own:
            with pytest.raises(psycopg.errors.UndefinedTable):
                own.execute("SELECT 1 FROM nowhere")
            with pytest.raises(Exception, match="current transaction is aborted"):
                await queue.enqueue("PAY", "a", connection=own)
            own.rollback()
            await queue.enqueue("PAY", "b", connection=own)
        assert await ids(queue) == ["b"]


# -- without an event loop -------------------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    return slot_store_url(request.param, request)


@pytest.fixture
def django_connection(url: str) -> Iterator[Any]:
    if not settings.configured:
        settings.configure(SECRET_KEY="test")
        django.setup()

    parts = sa.make_url(url)
    alias = f"queue_{uuid4().hex}"
    engine = "sqlite3" if parts.get_backend_name() == "sqlite" else "postgresql"
    connections.databases[alias] = connections.configure_settings(
        {
            "default": {},
            alias: {
                "ENGINE": f"django.db.backends.{engine}",
                "NAME": parts.database,
                "USER": parts.username or "",
                "PASSWORD": parts.password or "",
                "HOST": parts.host or parts.query.get("host", ""),
                "PORT": str(parts.port or parts.query.get("port", "")),
            },
        }
    )[alias]
    yield connections[alias]
    connections[alias].close()
    del connections.databases[alias]


def test_djangos_connection_commits_rolls_back_and_nests(url: str, django_connection: Any) -> None:
    with BlockingDispatchQueue(url) as queue:
        queue.configure("PAY")
        alias = django_connection.alias
        with transaction.atomic(using=alias):
            assert not queue.enqueue("PAY", "kept", context={"a": 1}, connection=django_connection).existing
            assert queue.enqueue("PAY", "kept", connection=django_connection).existing
            with contextlib.suppress(ZeroDivisionError), transaction.atomic(using=alias):
                queue.enqueue("PAY", "undone", connection=django_connection)
                raise ZeroDivisionError
        with contextlib.suppress(ZeroDivisionError), transaction.atomic(using=alias):
            queue.enqueue_many("PAY", [("gone", None, None)], connection=django_connection)
            raise ZeroDivisionError
        with pytest.raises(InvalidInput, match=r"transaction\.atomic"):
            queue.enqueue("PAY", "alone", connection=django_connection)
        assert [item.item_id for item in queue.list("PAY")] == ["kept"]


def test_threads_share_a_blocking_queue_and_each_its_own_connection(url: str) -> None:
    engine = sa.create_engine(database_url(url))
    with BlockingDispatchQueue.open(url) as queue:
        queue.configure("PAY")

        def work(number: int) -> None:
            queue.enqueue("PAY", f"alone-{number}")
            with Session(engine) as session, session.begin():
                queue.enqueue("PAY", f"within-{number}", connection=session)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert queue.stats("PAY").depth == {"READY": 16}
        with pytest.raises(NotFound):
            queue.enqueue("NOBODY", "a")
        assert queue.discard("PAY", ["alone-0"]) == 1
    queue.close()
    assert queue.show("PAY", "alone-1").item.item_id == "alone-1", "a closed queue opens again"
    queue.close()
    engine.dispose()


def test_an_asynchronous_connection_is_refused_where_nobody_awaits(postgres_url: str) -> None:
    with BlockingDispatchQueue(postgres_url) as queue, asyncio.Runner() as runner:
        queue.configure("PAY")
        own = runner.run(psycopg.AsyncConnection.connect(postgres_url))
        with pytest.raises(InvalidInput, match="connection: is asynchronous"):
            queue.enqueue("PAY", "a", connection=own)
        runner.run(own.close())
