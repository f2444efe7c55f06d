"""A PostgreSQL connection for transactions of a single flush, and for nothing else.

Its socket stays registered with the event loop, and it stays in pipeline mode: a transaction is one write, one wake-up
and one future. Taking a connection from SQLAlchemy's pool, in a greenlet, costs more than such a transaction does.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import psycopg
from psycopg import pq
from sqlalchemy.engine import Engine
from sqlalchemy.util import greenlet_spawn

from paceline.errors import StoreUnavailable
from paceline.sql.errors import DRIVER_ERRORS, translated
from paceline.sql.pipeline import (
    DONE,
    NOT_PREPARED,
    Calls,
    Raw,
    Rows,
    cancel_and_close,
    is_unprepared,
    prepared_names,
    rows_of,
    send_all,
    statement_error,
)

# Looked up once: an enumeration's member costs more to look up than a result's status to compare.
FAILED, SYNCED = pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.PIPELINE_SYNC


class DedicatedConnection:
    """Runs one pipeline at a time, on the event loop that opened it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = -1
        self._prepared: set[str] = set()
        self._results: list[pq.abc.PGresult] = []
        self._waiter: asyncio.Future[None] | None = None
        """For the results of the pipeline in flight."""
        self._opening: asyncio.Timeout | None = None
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.closed = False
        self.is_free = False
        """Whether it is open, with nothing in flight."""

    async def open(self, engine: Engine, seconds: float) -> None:
        """Connects as the engine does, within `seconds`.

        Raises:
            StoreError: no connection can be made.
        """
        try:
            async with asyncio.timeout(seconds) as self._opening:
                raw = await greenlet_spawn(_detached, engine)
        except DRIVER_ERRORS as error:
            self.closed = True
            raise translated(error) from error
        except BaseException:
            self.closed = True
            raise
        self._opening = None
        self._raw, self._socket = raw, raw.pgconn.socket
        self._prepared = prepared_names(raw)  # it comes from the pool, where it may have been used
        raw.pgconn.enter_pipeline_mode()
        self._loop.add_reader(self._socket, self._read)
        self.is_free = True

    async def execute(self, calls: Calls, seconds: float) -> list[Rows]:
        """Runs the statements as one transaction, and returns each one's rows when that is committed. If one fails,
        nothing is committed. After a timeout of `seconds`, or if the caller is cancelled, the statement is cancelled on
        the server and the connection is closed.

        Raises:
            TimeoutError: no results in time; the transaction may have been committed or not.
            StoreError: a statement failed, or the connection broke.
        """
        pgconn, self._results, self.is_free = self._raw.pgconn, [], False
        self._waiter = self._loop.create_future()
        self._end_at(self._loop.time() + seconds)
        unprepared = is_unprepared(self._raw)
        fresh = {} if unprepared else dict.fromkeys([each for each, _ in calls if each.name not in self._prepared])
        try:
            # No BEGIN, no COMMIT: all that comes before a sync is one transaction.
            send_all(pgconn, fresh, calls, unprepared=unprepared)
            if pgconn.flush():
                self._loop.add_writer(self._socket, self._write)
            await self._waiter
        except psycopg.Error as broken:
            self._lose(broken)
            raise StoreUnavailable(f"database unavailable: {str(broken).strip()[:200]}") from broken
        except BaseException:
            self._unregister()
            await cancel_and_close(self._raw)
            raise
        finally:
            self._waiter = None
        results = self._results
        for statement, result in zip(fresh, results, strict=False):
            if result.status in DONE:
                self._prepared.add(statement.name)
        if self.closed:
            self._lose()
        self.is_free = not self.closed
        for result in results:
            if result.status == FAILED:
                is_unknown = result.error_field(pq.DiagnosticField.SQLSTATE) == NOT_PREPARED
                if self.is_free and is_unknown and len(fresh) < len({statement for statement, _ in calls}):
                    # A pooler switched this session to another server, without our prepared statements; or psycopg
                    # deallocated them before the connection came here.
                    self._prepared.intersection_update({statement.name for statement in fresh})
                    return await self.execute(calls, seconds)
                error = statement_error(result)
                if isinstance(error, StoreUnavailable):
                    self._lose(error)
                raise error
        return [rows_of(result) for result in results[len(fresh) :]]

    def end_at(self, when: float) -> None:
        """Brings the deadline forward."""
        if self._opening is not None and (planned := self._opening.when()) is not None and planned > when:
            self._opening.reschedule(when)
        if self._waiter is not None and self._deadline > when:
            self._end_at(when)

    def close(self) -> None:
        """Closes the connection, after the transaction in flight, if any."""
        self.closed = True
        if self.is_free:
            self._lose()

    def _read(self) -> None:
        """Reads from the server, also between transactions: it may end the session."""
        pgconn, waiter = self._raw.pgconn, self._waiter
        is_end = False
        try:
            pgconn.consume_input()
            while waiter is not None and not pgconn.is_busy():
                result = pgconn.get_result()
                if result is None:
                    if is_end:
                        raise psycopg.OperationalError("the server sent fewer results than statements")
                    is_end = True  # of one statement's results
                    continue
                is_end = False
                if result.status == SYNCED:
                    if not waiter.done():
                        waiter.set_result(None)
                    return
                self._results.append(result)
        except psycopg.Error as broken:
            self._lose(broken)

    def _write(self) -> None:
        """Sends what the socket had no room for. Reading continues, or the server would stop reading too."""
        try:
            if not self._raw.pgconn.flush():
                self._loop.remove_writer(self._socket)
        except psycopg.Error as broken:
            self._lose(broken)

    def _end_at(self, when: float) -> None:
        """Sets the deadline. One timer serves many transactions: one per transaction would cost more."""
        self._deadline = when
        if self._timer is None or self._timer.when() > when:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(when, self._check_deadline)

    def _check_deadline(self) -> None:
        self._timer = None
        if self._waiter is not None:
            if self._loop.time() < self._deadline:
                self._end_at(self._deadline)
            else:
                self._fail(TimeoutError())

    def _fail(self, error: Exception) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)

    def _lose(self, error: Exception | None = None) -> None:
        self._unregister()
        self._raw.pgconn.finish()
        if error is not None:
            self._fail(error)

    def _unregister(self) -> None:
        self.closed, self.is_free = True, False
        if self._timer is not None:
            self._timer.cancel()
        if self._socket >= 0:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket = -1


def _detached(engine: Engine) -> Raw:
    """A connection detached from the engine's pool, which opens another one instead."""
    connection = engine.connect()
    try:
        raw: Raw = cast(Any, connection.connection.driver_connection)
        connection.detach()
    except BaseException:
        connection.invalidate()
        connection.close()
        raise
    return raw  # not closed: that would close the detached connection
