"""One database, any of three dialects, from async code.

Stores are plain functions over a SQLAlchemy `Connection`. `Database.write` runs one of them in its own transaction,
`Database.read` in a read-only snapshot. On PostgreSQL they run on psycopg's async connection, each whole transaction in
one greenlet (`greenlet_spawn`, which `AsyncConnection` uses for every single step). On SQLite and Oracle they run on a
worker thread: one thread switch per transaction, where an async driver takes one per statement.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine
from sqlalchemy.util import greenlet_spawn

from paceline.errors import StoreReadOnly, StoreUnavailable
from paceline.sql import sqlite_file
from paceline.sql.deadlines import CUT_BEFORE, Use
from paceline.sql.errors import DRIVER_ERRORS, is_read_only, translated
from paceline.sql.hints import Hints
from paceline.sql.hosts import HostOrder
from paceline.sql.schema import sqlite_connection
from paceline.sql.url import database_url, has_several_hosts, listen_url, prepared_statements

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from paceline.sql.dedicated import DedicatedConnection
    from paceline.sql.pipeline import Calls, Rows

BUSY_SECONDS = 30
"""How long a writer waits for SQLite's one write lock."""
LONG_WRITE_SECONDS = 0.05
"""After a write transaction of this length on SQLite, …"""
GAP_SECONDS = 0.01
"""… the next one of this process waits for so long: writers of other processes look for the lock every 5 ms."""
SYNCHRONOUS = "FULL"
"""On SQLite, a commit survives a power failure too. Group commit shares its cost."""

OPENED_AT = "paceline_opened_at"
HINT_NAMES = "paceline_hint_names"
OWN_TRANSACTION = "paceline_own_transaction"
"""An option of connections whose caller begins and commits the transaction."""
MAX_LONG_READS = 2
"""The maximum of concurrent long reads."""
IDLE_TIMEOUT_SECONDS = 5
"""The idle timeout in a transaction on PostgreSQL. Callers that wait for its locks have a deadline of 10 seconds."""
DEADLINE = 10.0
"""The timeout of a transaction on a server, including the wait for a connection, …"""
FILE_DEADLINE = 30.0
"""… and on SQLite, where it includes the wait for the write lock."""
LAST_SECONDS = 0.25
"""… and in a process that shuts down, after a first timeout: further writes would time out too."""
SESSION_DEFAULTS = ("default_transaction_isolation = 'read committed'", "DateStyle = 'ISO, MDY'")
"""On PostgreSQL. Statements wait for the locks of others and then see what those wrote; times are read as ISO 8601."""

P = ParamSpec("P")
R = TypeVar("R")


class Database:
    """A pool of connections to one database, shared between stores: each `share` needs a `close`."""

    def __init__(self, url: str, *, pool_size: int = 10, deadline: float | None = None) -> None:
        self.url, listen = listen_url(database_url(url))
        self.url, self._prepares = prepared_statements(self.url)
        self.listen_url = self.url if listen is None else database_url(listen)
        """Where to listen for notifications: not through a pooler, which does not pass them on."""
        self.dialect = self.url.get_backend_name()
        self._file = self.url.database if self.dialect == "sqlite" else None
        if deadline is None:
            deadline = FILE_DEADLINE if self.dialect == "sqlite" else DEADLINE
        self._deadline = deadline
        self._is_hastened = False
        self.prepared: set[str] = set()
        """Whose steps (`migrate.Steps.name`) it is known to have."""
        self._in_flight: set[Use | DedicatedConnection] = set()
        """Transactions in flight that have a deadline."""
        self.hints = Hints(self)
        self._holders = 1
        self._threads: ThreadPoolExecutor | None = None
        """Where transactions run; None for the event loop."""
        self._autocommit: Engine | None = None
        self._flushing: Engine | None = None
        self._aside: tuple[Engine, ThreadPoolExecutor] | None = None
        self._dedicated: DedicatedConnection | None = None
        self.is_pooled = False
        """Whether its connections go through a pooler, such as PgBouncer."""
        self._cut_at = float("-inf")
        self._began_write_at = self._next_write_at = float("-inf")
        """On SQLite: when the last write transaction took the lock, and when the next one may."""
        self._several_hosts = has_several_hosts(self.url)
        if self.dialect == "postgresql":
            # Not by `create_async_engine`: its package loads SQLAlchemy's ORM, 7 MiB.
            url_of_driver = self.url.set(drivername="postgresql+psycopg_async")
            self._engine: Engine = sa.create_engine(
                url_of_driver,
                pool_size=pool_size,
                max_overflow=0,
                pool_reset_on_return=None,
                use_native_hstore=False,  # else each pool's first connection looks for that type, in a transaction
            )
            self._autocommit = self._engine.execution_options(isolation_level="AUTOCOMMIT")
            # Not AUTOCOMMIT, which would be set and reset on the driver's connection with every use.
            self._flushing = self._engine.execution_options(**{OWN_TRANSACTION: True})
            sa.event.listen(self._engine, "connect", _note_opening)
            sa.event.listen(self._engine, "connect", self._prepare_session)
            sa.event.listen(self._engine, "reset", _end_transaction)
            sa.event.listen(self._engine, "checkout", self._refuse_older)
            sa.event.listen(self._engine, "handle_error", _leave_read_only_server)
            if self._several_hosts:
                HostOrder().listen(self._engine)
        else:
            # SQLite has one writer at a time; a second thread would only wait in its busy handler.
            width = 1 if self.dialect == "sqlite" else pool_size
            self._engine = _threaded_engine(self.url, width)
            self._threads = ThreadPoolExecutor(width, thread_name_prefix="paceline-sql")

    def beside(self) -> Database | None:
        """The same database, with one connection, for another event loop; None if it is in this process's memory."""
        if self.dialect == "sqlite" and self._file in (None, "", ":memory:"):
            return None
        another = Database(self.url.render_as_string(hide_password=False), pool_size=1, deadline=self._deadline)
        another.prepared = self.prepared
        return another

    @cached_property
    def async_engine(self) -> AsyncEngine | None:
        """The pool as applications use it; only PostgreSQL's is async."""
        if self.dialect != "postgresql":
            return None
        from sqlalchemy.ext.asyncio import AsyncEngine

        return AsyncEngine(self._engine)

    async def write(self, work: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs `work(connection, …)` in a transaction: committed when it returns, rolled back when it raises.

        Raises:
            Conflict: another writer was first; the transaction may be tried again.
            StoreUnavailable: no answer within the deadline; it may then have been committed or not.
        """
        return await self._run(self._engine, self._threads, self._deadline, False, work, args, kwargs)

    async def write_unhurried(
        self, work: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """`write` without a deadline: for migrations, whose duration grows with the tables."""
        return await self._run(self._engine, self._threads, None, False, work, args, kwargs)

    async def read(self, work: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs `work(connection, …)` without the write lock, with one snapshot per statement. On PostgreSQL it saves a
        transaction's round trips."""
        return await self._run(
            self._autocommit or self._engine, self._threads, self._deadline, True, work, args, kwargs
        )

    async def read_aside(self, work: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """`read` on a separate thread, for slow work: it blocks neither the event loop nor SQLite's one thread. A
        database in memory has one connection, so there this is `read`."""
        if isinstance(self._engine.pool, sa.pool.StaticPool):
            return await self.read(work, *args, **kwargs)
        if self._aside is None:
            engine = self._engine
            if self._threads is None:
                engine = sa.create_engine(self.url, pool_size=MAX_LONG_READS)
                sa.event.listen(engine, "connect", self._prepare_session)
            self._aside = engine, ThreadPoolExecutor(MAX_LONG_READS, thread_name_prefix="paceline-sql-aside")
        return await self._run(*self._aside, self._deadline, True, work, args, kwargs)

    async def once(self, work: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs `work(connection, …)`, which writes in one statement at most: on PostgreSQL that is atomic by itself,
        and saves a transaction's round trips; elsewhere this is `write`."""
        if self._autocommit is None:
            return await self.write(work, *args, **kwargs)
        return await self._run(self._autocommit, None, self._deadline, False, work, args, kwargs)

    async def flush(self, work: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs `work(connection, …)`, which on PostgreSQL is one pipeline that begins and commits its own transaction;
        elsewhere this is `write`."""
        return await self._run(self._flushing or self._engine, self._threads, self._deadline, False, work, args, kwargs)

    async def pipeline(self, calls: Calls) -> list[Rows]:
        """Runs statements of PostgreSQL, which neither begin nor commit, as one transaction in one flush; returns each
        one's rows. They use a dedicated connection, or, while that is busy, one of the pool.

        Raises:
            Conflict: another writer was first; the transaction may be tried again.
            StoreUnavailable: no answer within the deadline; it may then have been committed or not.
        """
        connection = self._dedicated
        if connection is None or not connection.is_free:
            # Imported here: the driver is an optional extra.
            from paceline.sql import dedicated, pipeline

            if connection is not None and not connection.closed:
                return await self.flush(pipeline.run_pipeline, calls)
            connection = self._dedicated = dedicated.DedicatedConnection()
            self._in_flight.add(connection)
            try:
                await connection.open(self._engine, self._deadline)
            finally:
                self._in_flight.discard(connection)
        self._in_flight.add(connection)
        try:
            return await connection.execute(calls, self._deadline)
        except (StoreUnavailable, TimeoutError) as error:
            self._note_cut(error)
            if isinstance(error, StoreUnavailable):
                raise
            if self._is_hastened:
                self._deadline = min(self._deadline, LAST_SECONDS)
            raise translated(error) from error
        finally:
            self._in_flight.discard(connection)

    @property
    def is_new_file(self) -> bool:
        """Whether this is an SQLite file that does not exist yet, or is empty."""
        name = self.url.database
        if self.dialect != "sqlite" or not name or name == ":memory:":
            return self.dialect == "sqlite"
        file = Path(name)
        return not file.exists() or file.stat().st_size == 0

    def hasten(self, seconds: float) -> None:
        """Shortens the timeout of transactions, also of those in flight: for a process that shuts down, while a server
        may hang. After the first timeout, it is `LAST_SECONDS`."""
        if self.dialect == "sqlite":
            return
        self._deadline = min(self._deadline, seconds)
        self._is_hastened = True
        end = asyncio.get_running_loop().time() + seconds
        for use in self._in_flight:
            use.end_at(end)

    @property
    def closed(self) -> bool:
        """Whether all holders have closed it."""
        return self._holders == 0

    def share(self) -> Database:
        """The same pool for one more holder."""
        self._holders += 1
        return self

    async def watch_connection(self) -> sqlite3.Connection | None:
        """A connection to an SQLite file that never waits for a lock; the caller closes it. None if this is no file."""
        if self._threads is None or self.dialect != "sqlite" or isinstance(self._engine.pool, sa.pool.StaticPool):
            return None
        opening = asyncio.get_running_loop().run_in_executor(self._threads, sqlite_file.watch_connection, self._engine)
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unclaimed)
            raise

    async def commits_of_others(self) -> object:
        """A value that changes with every commit to an SQLite file that is not of this pool."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, sqlite_file.data_version, self._engine)

    async def close(self) -> None:
        """The last holder's call closes all connections. Transactions in flight on worker threads finish first."""
        self._holders -= 1
        if self._holders:
            return
        await self.hints.close()
        if self._dedicated is not None:
            self._dedicated.close()
        if self._aside is not None:
            await asyncio.to_thread(self._aside[1].shutdown)
            self._aside[0].dispose()
        if self.dialect == "postgresql":
            # A connection that is still in use comes back to a pool that is disposed of already.
            sa.event.listen(self._engine, "checkin", _close_returned)
            await greenlet_spawn(self._engine.dispose)
        if self._threads is not None:
            await asyncio.to_thread(self._threads.shutdown)
            self._engine.dispose()

    async def _run(
        self,
        engine: Engine,
        threads: ThreadPoolExecutor | None,
        deadline: float | None,
        read_only: bool,
        work: Callable[..., R],
        args: Any,
        kwargs: Any,
    ) -> R:
        loop = asyncio.get_running_loop()
        use = Use(loop)
        try:
            async with asyncio.timeout(deadline) as use.timeout:
                if deadline is not None:
                    self._in_flight.add(use)
                    if self.dialect == "postgresql":
                        use.timer = loop.call_later(max(deadline - CUT_BEFORE, deadline / 2), use.cut)
                    elif self.dialect == "sqlite":
                        use.timer = loop.call_later(deadline, use.interrupt)
                if threads is None:
                    return await greenlet_spawn(self._on_loop, engine, use, deadline, work, args, kwargs)
                # If the caller is cancelled, the thread's transaction still ends properly.
                result: asyncio.Future[R] = loop.create_future()
                use.is_queued = True
                threads.submit(self._settle, loop, result, engine, use, read_only, work, args, kwargs)
                return await result
        except DRIVER_ERRORS as error:
            if self._is_hastened and (use.is_cut or isinstance(error, TimeoutError)):
                self._deadline = min(self._deadline, LAST_SECONDS)
            raise translated(TimeoutError() if use.is_cut else error, self._file) from error
        finally:
            self._in_flight.discard(use)
            if use.timer is not None and use.connection is None and not use.is_queued:
                use.timer.cancel()  # a thread that continues without its caller keeps its deadline

    def _on_loop(
        self, engine: Engine, use: Use, deadline: float | None, work: Callable[..., R], args: Any, kwargs: Any
    ) -> R:
        """`_on_thread` on psycopg's async connection. The first statement begins the transaction, and closing the
        connection without a commit rolls it back."""
        try:
            with engine.connect() as connection:
                hint_names = connection.info[HINT_NAMES] = set[str]()
                use.connection = connection
                try:
                    if self.is_pooled and engine is not self._autocommit:
                        self._set_within(connection)
                    if deadline is None:
                        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
                    result = work(connection, *args, **kwargs)
                except BaseException as error:
                    if isinstance(error, StoreReadOnly):
                        connection.invalidate()
                    if connection.invalidated:
                        self._note_cut(error)
                    else:
                        # Imported here: the driver is an optional extra.
                        from paceline.sql.pipeline import note_rollback

                        note_rollback(cast(Any, connection.connection.driver_connection))
                    raise
                _commit(connection)
        finally:
            # Not before it is closed: a rollback may time out too.
            use.connection = None
        if hint_names:
            self.hints.notify(hint_names)
        return result

    def _settle(self, loop: asyncio.AbstractEventLoop, result: asyncio.Future[R], *transaction: Any) -> None:
        """Runs a transaction on a thread; its outcome becomes the future's, unless that is cancelled."""
        set_outcome: Callable[[Any], None] = result.set_result
        try:
            outcome: Any = self._on_thread(loop, *transaction)
        except BaseException as error:
            set_outcome, outcome = result.set_exception, error
        with contextlib.suppress(RuntimeError):  # the loop is closed, so no caller waits
            loop.call_soon_threadsafe(_unless_done, result, set_outcome, outcome)

    def _on_thread(
        self,
        loop: asyncio.AbstractEventLoop,
        engine: Engine,
        use: Use,
        read_only: bool,
        work: Callable[..., R],
        args: Any,
        kwargs: Any,
    ) -> R:
        with engine.connect() as connection:
            hint_names = connection.info[HINT_NAMES] = set[str]()
            use.connection, use.is_queued = connection, False
            try:
                with connection.begin():
                    if self.dialect == "sqlite":
                        driver = sqlite_connection(connection)
                        if read_only:
                            driver.execute("BEGIN")
                        else:
                            self._begin_write(driver)
                        with use.interruptible(driver):
                            result = work(connection, *args, **kwargs)
                    else:
                        if self.is_pooled:
                            self._set_within(connection)
                        result = work(connection, *args, **kwargs)
            finally:
                use.connection = None
                if not read_only and time.monotonic() - self._began_write_at > LONG_WRITE_SECONDS:
                    self._next_write_at = time.monotonic() + GAP_SECONDS
        if hint_names:
            with contextlib.suppress(RuntimeError):  # the loop is closed, so no caller waits
                loop.call_soon_threadsafe(self.hints.notify, hint_names)
        return result

    def _begin_write(self, driver: sqlite3.Connection) -> None:
        """Takes SQLite's write lock, on its one thread. If the last transaction was long, leaves a gap after it."""
        if isinstance(self._engine.pool, sa.pool.StaticPool):  # in memory: there is no other process
            driver.execute("BEGIN IMMEDIATE")
            return
        gap = self._next_write_at - time.monotonic()
        if gap > 0:
            time.sleep(gap)
        sqlite_file.begin_write(driver, BUSY_SECONDS)
        self._began_write_at = time.monotonic()

    def _note_cut(self, error: BaseException) -> None:
        """Invalidates the pool after a pipeline's connection broke, as SQLAlchemy does after its own. With several
        hosts, also after a timeout: there may have been a failover."""
        if self._several_hosts or isinstance(error, StoreUnavailable):
            self._cut_at = time.monotonic()

    def _refuse_older(self, _connection: Any, record: Any, _proxy: Any) -> None:
        if record.info[OPENED_AT] < self._cut_at:
            raise sa.exc.DisconnectionError("others of its age were cut")

    def _prepare_session(self, connection: Any, _record: Any) -> None:
        """Lets PostgreSQL end a session that idles in a transaction: a frozen process with the lock of a config, or of
        items, would block all others. And a statement that outlives its caller's deadline: it would keep waiting for
        locks. Defaults of the database or the role on which statements rely are set, too. Not by the connection's
        options: poolers reject those. Behind a pooler, each transaction sets them for itself, as the session is
        everybody's, and statements are prepared only if the URL says so."""
        raw: Any = getattr(connection, "driver_connection", connection)
        cursor = connection.cursor()
        cursor.execute("SELECT pg_backend_pid()")
        # A pooler has its own process ids, with which it finds the session that a client wants to cancel.
        self.is_pooled = cursor.fetchone()[0] != raw.pgconn.backend_pid
        if not self.is_pooled:
            cursor.execute("; ".join(f"SET {setting}" for setting in self._settings()))
        cursor.close()
        connection.commit()
        if self._prepares is False or (self.is_pooled and self._prepares is None):
            # Imported here: the driver is an optional extra.
            from paceline.sql.pipeline import leave_unprepared

            leave_unprepared(raw)

    def _settings(self) -> list[str]:
        return [
            f"idle_in_transaction_session_timeout = '{IDLE_TIMEOUT_SECONDS}s'",
            f"statement_timeout = '{round(self._deadline * 1000)}ms'",
            *SESSION_DEFAULTS,
        ]

    def _set_within(self, connection: Connection) -> None:
        """Sets for a transaction behind a pooler what a session has otherwise."""
        local = [f"SET LOCAL {setting}" for setting in self._settings()]
        connection.exec_driver_sql("; ".join(["SET TRANSACTION ISOLATION LEVEL READ COMMITTED", *local]))


def _unless_done(future: asyncio.Future[Any], set_outcome: Callable[[Any], None], outcome: Any) -> None:
    if not future.done():
        set_outcome(outcome)


def _leave_read_only_server(context: Any) -> None:
    if is_read_only(context.original_exception):
        context.is_disconnect = True


def _commit(connection: Connection) -> None:
    """Commits the transaction, unless a pipeline has (IDLE is 0)."""
    if connection.in_transaction():
        connection.commit()
    elif cast(Any, connection.connection.driver_connection).pgconn.transaction_status:
        connection.begin().commit()


def _end_transaction(connection: Any, _record: Any, state: Any) -> None:
    """Rolls back a returned connection, as the pool does by default, but only in a transaction (IDLE is 0)."""
    if connection.driver_connection.pgconn.transaction_status and not state.terminate_only:
        connection.rollback()


def _close_unclaimed(opening: asyncio.Future[sqlite3.Connection]) -> None:
    """Closes a connection whose caller was cancelled."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


def _close_returned(_connection: Any, record: Any) -> None:
    record.invalidate()


def _note_opening(_connection: Any, record: Any) -> None:
    record.info[OPENED_AT] = time.monotonic()


def announce(connection: Connection, name: str) -> None:
    """Notifies the subscribers of a name (`Database.hints`) once the caller's transaction is committed."""
    hint_names: set[str] | None = connection.info.get(HINT_NAMES)
    if hint_names is not None:
        hint_names.add(name)


def _threaded_engine(url: URL, width: int) -> Engine:
    if url.get_backend_name() != "sqlite":
        engine = sa.create_engine(url, pool_size=width, max_overflow=0)
        sa.event.listen(engine, "connect", lambda *_: _use_numbers_for_booleans(engine))
        return engine
    is_file = url.database not in (None, "", ":memory:")
    engine = sa.create_engine(
        url,
        # Last in, first out: `commits_of_others` compares the versions of one connection.
        **{"poolclass": sa.pool.QueuePool, "pool_use_lifo": True} if is_file else {"poolclass": sa.pool.StaticPool},
        connect_args={"timeout": BUSY_SECONDS, "check_same_thread": False},
    )
    if url.database and not url.database.startswith(("file:", ":")):
        sa.event.listen(engine, "do_connect", sqlite_file.create)
    sa.event.listen(engine, "connect", _prepare_sqlite)
    return engine


def _use_numbers_for_booleans(oracle: Engine) -> None:
    """Oracle has BOOLEAN since 23 only; the tables are the same on every version."""
    oracle.dialect.supports_native_boolean = False


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    sqlite_file.prepare(connection, BUSY_SECONDS, SYNCHRONOUS)
