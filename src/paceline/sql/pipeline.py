"""Several PostgreSQL statements in one flush, for the few paths where round trips are the cost.

psycopg's own pipeline mode uses the socket after every statement, which on an event loop costs more than the statements
do. `execute_pipeline` passes all of them to libpq, flushes once, and wakes up when results arrive. Statements are
prepared once per connection; parameters and results are text.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary, WeakSet

import psycopg
from psycopg import AsyncConnection, pq
from sqlalchemy.engine import Connection

from paceline.errors import StoreError, StoreUnavailable
from paceline.sql.errors import fault

Raw = AsyncConnection[Any]
Rows = list[tuple[bytes | None, ...]]

DONE = {pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK}
NOT_PREPARED = b"26000"
CANCEL_SECONDS = 2.0
COPY_PIECE = 1 << 17
_prepared: WeakKeyDictionary[Raw, set[str]] = WeakKeyDictionary()
_unprepared: WeakSet[Raw] = WeakSet()
"""Connections whose statements are not prepared, because a pooler may change the session behind them."""
_rolled_back: WeakSet[Raw] = WeakSet()
"""Connections whose driver may have deallocated prepared statements."""


class Statement(NamedTuple):
    """SQL with $1-style parameters, and the name of its prepared statement."""

    name: str
    sql: str


Call = tuple[Statement, Sequence[str | None]]
"""A statement with its parameters."""
Calls = Sequence[Call]
"""Statements in the order in which they run."""

BEGIN = Statement("paceline_begin", "BEGIN")
COMMIT = Statement("paceline_commit", "COMMIT")
ROLLBACK = Statement("paceline_rollback", "ROLLBACK")
# Our statements are look-ups by key with a generic plan: planning each call would cost more than the look-up, and a
# plan made while a table was small must not keep scanning it when it is large.
PLAN_BY_KEY = "set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_seqscan', 'off', true)"
"""Columns that set this for the following statements of their transaction."""
BY_KEY = Statement("paceline_by_key", f"SELECT {PLAN_BY_KEY}")


def prepared_names(raw: Raw) -> set[str]:
    """The connection's own set of names of prepared statements."""
    return _prepared.setdefault(raw, set())


def leave_unprepared(raw: Raw) -> None:
    """Lets a connection send its statements whole, each time."""
    raw.prepare_threshold = None  # psycopg's own
    _unprepared.add(raw)


def is_unprepared(raw: Raw) -> bool:
    """Whether a connection's statements are sent whole, each time."""
    return raw in _unprepared


def note_rollback(raw: Raw) -> None:
    """Must be called when the driver rolls back: psycopg then deallocates every prepared statement of the session, if
    it has prepared any itself."""
    _rolled_back.add(raw)


async def _known_names(raw: Raw) -> set[str]:
    """`prepared_names`, checked with the server, but only inside a transaction: there, a missing statement would abort
    the transaction; before one, it is prepared again after its failure."""
    known = prepared_names(raw)
    if raw in _rolled_back and raw.pgconn.transaction_status == pq.TransactionStatus.INTRANS:
        cursor = await raw.execute("SELECT name FROM pg_prepared_statements", prepare=False)
        known.intersection_update([row[0] for row in await cursor.fetchall()])
        _rolled_back.discard(raw)
    return known


def run_async(connection: Connection, work: Callable[[Raw], Awaitable[Any]]) -> Any:
    """Awaits psycopg work on a connection's own driver connection, from synchronous code inside `greenlet_spawn`.

    A connection that the work closed is not returned to the pool.
    """
    adapted = cast(Any, connection.connection.dbapi_connection)
    try:
        return adapted.run_async(work)
    except BaseException:
        if adapted.driver_connection.closed:
            connection.invalidate()
        raise


def run_pipeline(connection: Connection, calls: Calls) -> list[Rows]:
    """`execute_pipeline` on the connection of a `Database`."""
    results: list[Rows] = run_async(connection, lambda raw: execute_pipeline(raw, calls))
    return results


async def execute_pipeline(raw: Raw, calls: Calls) -> list[Rows]:
    """Runs the statements in order and returns each one's rows. The first that fails raises; the rest are not run.

    If the caller is cancelled, the statement is cancelled at the server and the connection is closed: results in flight
    would be taken for those of later statements.
    """
    pgconn = raw.pgconn
    unprepared = is_unprepared(raw)
    known = prepared_names(raw) if unprepared else await _known_names(raw)
    idle = pgconn.transaction_status == pq.TransactionStatus.IDLE
    try:
        pgconn.enter_pipeline_mode()
        fresh = {} if unprepared else dict.fromkeys([each for each, _ in calls if each.name not in known])
        send_all(pgconn, fresh, calls, unprepared=unprepared)
        await _flush(pgconn)
        results = await _results(pgconn)
        pgconn.exit_pipeline_mode()
    except psycopg.Error as broken:
        raise await _close_broken(raw, broken) from broken
    except BaseException:
        await cancel_and_close(raw)
        raise
    # A statement stays prepared even if the transaction it came with fails.
    known.update(statement.name for statement, result in zip(fresh, results, strict=False) if result.status in DONE)
    for result in results:
        if result.status == pq.ExecStatus.FATAL_ERROR:
            if idle and len(fresh) < len(calls) and result.error_field(pq.DiagnosticField.SQLSTATE) == NOT_PREPARED:
                # psycopg sends DEALLOCATE ALL after a rollback, which removes our statements too. This happens between
                # transactions only, so nothing of this one has run yet; the statements that it prepared remain.
                known.intersection_update(statement.name for statement in fresh)
                return await execute_pipeline(raw, calls)
            raise statement_error(result)
    return [rows_of(result) for result in results[len(fresh) :]]


def send_all(pgconn: pq.abc.PGconn, fresh: Iterable[Statement], calls: Calls, *, unprepared: bool = False) -> None:
    """Sends statements, then a sync; the `fresh` ones are prepared first, or none is."""
    for statement in fresh:
        pgconn.send_prepare(statement.name.encode(), statement.sql.encode())
    for statement, parameters in calls:
        values = [None if text is None else text.encode() for text in parameters]
        if unprepared:
            pgconn.send_query_params(statement.sql.encode(), values)
        else:
            pgconn.send_query_prepared(statement.name.encode(), values)
    pgconn.pipeline_sync()


async def copy(raw: Raw, statement: str, rows: str) -> None:
    """Runs `COPY … FROM STDIN`, which a pipeline can't contain, in the current transaction; it begins none. If the
    caller is cancelled, it acts as `execute_pipeline`.

    Not by psycopg's own `copy`: on cancellation, that tries to end the COPY, and raises the error of that instead.
    """
    pgconn = raw.pgconn
    data = rows.encode()
    try:
        pgconn.send_query(statement.encode())
        await _flush(pgconn)
        result = await _next_result(pgconn)
        if result is not None and result.status == pq.ExecStatus.COPY_IN:
            for start in range(0, len(data), COPY_PIECE):
                if not pgconn.put_copy_data(data[start : start + COPY_PIECE]):
                    raise psycopg.OperationalError("no memory for what is to be copied")
                await _flush(pgconn)
            pgconn.put_copy_end()
            await _flush(pgconn)
            result = await _next_result(pgconn)
        while result is not None and await _next_result(pgconn) is not None:
            pass
        if result is None or pgconn.status == pq.ConnStatus.BAD:
            raise psycopg.OperationalError("the server sent fewer results than statements")
    except psycopg.Error as broken:
        raise await _close_broken(raw, broken) from broken
    except BaseException:
        await cancel_and_close(raw)
        raise
    if result.status == pq.ExecStatus.FATAL_ERROR:
        raise statement_error(result)


def numbers(values: Iterable[int]) -> str:
    """A PostgreSQL array of integers."""
    return "{" + ",".join(map(str, values)) + "}"


def texts(values: Iterable[str]) -> str:
    """A PostgreSQL array of texts."""
    elements = list(values)
    if not elements:
        return "{}"
    # Quoted at once, then split at NUL, which PostgreSQL's texts can't contain.
    return "{" + quoted("\x00".join(elements)).replace("\x00", '","') + "}"


def whole_of(value: bytes | None) -> int:
    """A number of a row; the column holds no NULL."""
    assert value is not None
    return int(value)


def text_of(value: bytes | None) -> str:
    """A text of a row; the column holds no NULL."""
    assert value is not None
    return value.decode()


def quoted(text: str) -> str:
    """An element of a PostgreSQL array."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


async def _close_broken(raw: Raw, broken: psycopg.Error) -> StoreUnavailable:
    await raw.close()
    return StoreUnavailable(f"database unavailable: {str(broken).strip()[:200]}")


async def cancel_and_close(raw: Raw) -> None:
    """Cancels a connection's statement, and closes it."""
    # Otherwise the server would continue, and wait for locks, long after the connection is closed.
    try:
        with contextlib.suppress(Exception):
            await raw.cancel_safe(timeout=CANCEL_SECONDS)
    finally:
        await raw.close()  # at once, also if the caller is cancelled again meanwhile


async def _flush(pgconn: pq.abc.PGconn) -> None:
    while pgconn.flush():
        # Read as well: a server that can't send its results stops reading statements.
        await _socket_ready(pgconn.socket, writing=True)
        pgconn.consume_input()


async def _results(pgconn: pq.abc.PGconn) -> list[pq.abc.PGresult]:
    """Every statement's result, in order; those after the first error only report that they were not run."""
    results: list[pq.abc.PGresult] = []
    ended = False
    while True:
        while pgconn.is_busy():  # as `_next_result`, inlined: a coroutine per result costs more than the result
            await _socket_ready(pgconn.socket, writing=False)
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is None:
            if ended:
                raise psycopg.OperationalError("the server sent fewer results than statements")
            ended = True  # the end of one statement's results
            continue
        if result.status == pq.ExecStatus.PIPELINE_SYNC:
            return results
        results.append(result)
        ended = False


async def _next_result(pgconn: pq.abc.PGconn) -> pq.abc.PGresult | None:
    """The next result; `None` at the end of a statement's."""
    while pgconn.is_busy():
        await _socket_ready(pgconn.socket, writing=False)
        pgconn.consume_input()
    return pgconn.get_result()


def rows_of(result: pq.abc.PGresult) -> Rows:
    """The rows of a result, as text."""
    columns = range(result.nfields)
    return [tuple([result.get_value(row, column) for column in columns]) for row in range(result.ntuples)]


async def _socket_ready(socket: int, *, writing: bool) -> None:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not future.done():
            future.set_result(None)

    loop.add_reader(socket, wake)
    if writing:
        loop.add_writer(socket, wake)
    try:
        await future
    finally:
        loop.remove_reader(socket)
        if writing:
            loop.remove_writer(socket)


def statement_error(result: pq.abc.PGresult) -> StoreError:
    """The exception for a result that is an error."""
    state = result.error_field(pq.DiagnosticField.SQLSTATE) or b""
    message = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b""
    return fault(state.decode(), message.decode(errors="replace"))
