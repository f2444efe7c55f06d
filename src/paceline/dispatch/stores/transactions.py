"""Joins a caller's transaction: which connections are accepted, and how a store's work runs on them."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from types import ModuleType
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

from paceline.dispatch.model import EnqueueRequest
from paceline.dispatch.stores import groups
from paceline.dispatch.stores.groups import Steps
from paceline.dispatch.stores.identity import FIELD, NO_QUEUE, POSTGRES, Identity, Row
from paceline.errors import Conflict, InvalidInput, StoreError
from paceline.sql.errors import DRIVER_ERRORS, fault, translated

ACCEPTED = (
    "must be a SQLAlchemy Session, AsyncSession, Connection or AsyncConnection, a psycopg Connection or "
    "AsyncConnection, a sqlite3 Connection, or Django's connection"
)
NO_TRANSACTION = "has no transaction open and commits every statement by itself; begin a transaction first"
ASYNCPG = "asyncpg is not supported; use psycopg (in SQLAlchemy: postgresql+psycopg://)"

READ_TOO_EARLY = (
    "the transaction has read before, and another process has written since, so that it can't write any more; roll it "
    'back, and begin it with BEGIN IMMEDIATE (in Django: "OPTIONS": {"transaction_mode": "IMMEDIATE"})'
)

Keys = set[tuple[str, str]]
R = TypeVar("R")


async def enqueue(
    identity: Identity,
    dialect: str,
    statements: ModuleType,
    connection: Any,
    requests: Sequence[EnqueueRequest],
    now: datetime | None,
    hints: Sequence[str],
) -> Keys:
    """Queues the items in the caller's transaction; returns the new ones. Awaits only an asynchronous connection.

    Raises:
        InvalidInput: the connection is of no accepted kind, is to another database, or has no transaction.
    """

    def write(borrowed: sa.Connection) -> Keys:
        return statements.enqueue(borrowed, requests, now, hints)  # type: ignore[no-any-return]

    async def write_with_psycopg(raw: Any) -> Keys:
        rows = await _fetch_rows(raw, *statements.enqueue_call(requests, now, hints))
        return statements.new_keys(requests, rows)  # type: ignore[no-any-return]

    return await _run_within(identity, dialect, connection, write, write_with_psycopg)


async def run_steps(identity: Identity, dialect: str, connection: Any, steps: Steps) -> None:
    """Runs statements in the caller's transaction, as `enqueue` does.

    Raises:
        InvalidInput: the connection is of no accepted kind, is to another database, or has no transaction.
    """
    run, run_with_psycopg = partial(groups.run_steps, steps=steps), partial(_steps_with_psycopg, steps)
    await _run_within(identity, dialect, connection, run, run_with_psycopg)


async def _run_within(
    identity: Identity,
    dialect: str,
    connection: Any,
    work: Callable[[sa.Connection], R],
    with_psycopg: Callable[[Any], Awaitable[R]],
) -> R:
    """What `work` returns, or `with_psycopg` on a connection of that driver."""
    try:
        owner = await _unwrap(connection)
        if _is_of(owner, "psycopg", "Connection", "AsyncConnection"):
            _check(dialect, "postgresql", owner.autocommit and owner.info.transaction_status.name == "IDLE")
            return await _with_psycopg(identity, owner, with_psycopg)
        if isinstance(owner, sqlite3.Connection):
            _check(dialect, "sqlite", _autocommits(owner))
            with _borrow(owner) as borrowed:
                identity.check_file(borrowed)
                _begin_to_write(borrowed)
                return work(borrowed)
        if _is_of(owner, "sqlalchemy.ext.asyncio", "AsyncConnection"):
            await identity.check_server(*await owner.run_sync(_checked, dialect, identity))
            return await owner.run_sync(work)  # type: ignore[no-any-return]
        if isinstance(owner, sa.Connection):
            await identity.check_server(*_checked(owner, dialect, identity))
            return work(owner)
    except DRIVER_ERRORS as error:
        raise _explain_error(_translated(error)) from error
    module = type(connection).__module__
    raise InvalidInput(FIELD, ASYNCPG if module.partition(".")[0] == "asyncpg" else ACCEPTED)


async def _with_psycopg(identity: Identity, connection: Any, work: Callable[[Any], Awaitable[R]]) -> R:
    import psycopg

    try:
        if not identity.is_known(connection):
            (row,) = await _fetch_rows(connection, POSTGRES)
            await identity.check_server(connection, row)
        return await work(connection)
    except psycopg.Error as error:
        state = error.sqlstate or ("08000" if isinstance(error, psycopg.OperationalError) else "")
        raise _explain_error(fault(state, str(error))) from error


async def _steps_with_psycopg(steps: Steps, connection: Any) -> None:
    from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

    rows = None
    with suppress(StopIteration):
        while True:
            statement = steps.send(rows)
            compiled = statement.compile(  # type: ignore[attr-defined]
                dialect=PGDialect_psycopg(), compile_kwargs={"render_postcompile": True}
            )
            rows = await _fetch_rows(connection, compiled.string, compiled.params)


async def _unwrap(connection: Any) -> Any:
    """The connection inside a session, or inside Django's connection."""
    if _is_of(connection, "sqlalchemy.orm", "scoped_session") or _is_of(
        connection, "sqlalchemy.ext.asyncio", "async_scoped_session"
    ):
        connection = connection()
    if _is_of(connection, "sqlalchemy.orm", "Session"):
        return connection.connection()
    if _is_of(connection, "sqlalchemy.ext.asyncio", "AsyncSession"):
        return await connection.connection()
    if hasattr(connection, "in_atomic_block") and hasattr(connection, "vendor"):
        if not connection.in_atomic_block:
            raise InvalidInput(FIELD, "Django's connection has no transaction open; use transaction.atomic()")
        return connection.connection
    return connection


def _checked(connection: sa.Connection, dialect: str, identity: Identity) -> tuple[Any, Row]:
    """The driver's connection inside, and PostgreSQL's identity; an empty row if that is known."""
    if connection.dialect.driver == "asyncpg":
        raise InvalidInput(FIELD, ASYNCPG)
    _check(dialect, connection.dialect.name, _autocommits(connection.connection.dbapi_connection))
    raw = connection.connection.driver_connection
    if dialect == "sqlite":
        identity.check_file(connection)
        _begin_to_write(connection)
    if dialect != "postgresql" or identity.is_known(raw):
        return raw, ()
    return raw, tuple(connection.exec_driver_sql(POSTGRES).one())


async def _fetch_rows(connection: Any, *call: Any) -> list[Row]:
    """The rows of a statement, as tuples: the caller's rows may be of any form."""
    import psycopg
    from psycopg.rows import tuple_row

    if isinstance(connection, psycopg.AsyncConnection):
        async with connection.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(*call)
            return await cursor.fetchall()
    with connection.cursor(row_factory=tuple_row) as blocking:
        rows: list[Row] = blocking.execute(*call).fetchall()
        return rows


def _check(dialect: str, given: str, autocommits: bool) -> None:
    if given != dialect:
        raise InvalidInput(FIELD, f"leads to {given}; the queue is in {dialect}")
    if autocommits:
        raise InvalidInput(FIELD, NO_TRANSACTION)


def _autocommits(raw: Any) -> bool:
    """Whether a driver's connection commits every statement by itself and is in no transaction."""
    if isinstance(raw, sqlite3.Connection):
        by_itself = raw.isolation_level is None or getattr(raw, "autocommit", False) is True
        return by_itself and not raw.in_transaction
    return getattr(raw, "autocommit", False) is True


def _begin_to_write(connection: sa.Connection) -> None:
    """Waits until the caller's transaction in SQLite may write. One that read first could not wait: it fails if
    another process has written since."""
    connection.exec_driver_sql("DELETE FROM paceline_dispatch_queue WHERE 0").close()


def _translated(error: Exception) -> StoreError:
    if getattr(getattr(error, "orig", error), "sqlite_errorname", None) == "SQLITE_BUSY_SNAPSHOT":
        return Conflict(READ_TOO_EARLY)
    return translated(error)


def _explain_error(error: StoreError) -> StoreError | InvalidInput:
    text = str(error)
    if "paceline_dispatch" in text and ("does not exist" in text or "no such table" in text):
        return InvalidInput(FIELD, NO_QUEUE)
    return error


class _CallersConnection(SQLiteDialect_pysqlite):
    """For a caller's connection, which is neither prepared nor committed or rolled back."""

    supports_statement_cache = True

    def do_rollback(self, dbapi_connection: Any) -> None:
        """The caller's to do."""

    def do_commit(self, dbapi_connection: Any) -> None:
        """The caller's to do."""


def _borrow(raw: sqlite3.Connection) -> sa.Connection:
    pool = sa.StaticPool(lambda: raw, reset_on_return=None)  # type: ignore[arg-type]
    return sa.Engine(pool, _CallersConnection(dbapi=sqlite3), sa.make_url("sqlite://")).connect()


def _is_of(value: object, module: str, *names: str) -> bool:
    """Whether it is an instance of one of the module's classes. If it is, the module is loaded; importing it here might
    need an extra that is not installed."""
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(value, tuple(getattr(loaded, name) for name in names))
