"""Driver errors, translated to paceline's tree in one place."""

from __future__ import annotations

import re
import sqlite3

import sqlalchemy as sa

from paceline.errors import Conflict, LockTimeout, StoreError, StoreFull, StoreReadOnly, StoreRefused, StoreUnavailable

_RETRYABLE_STATES = {"40001", "40P01", "23505", "22012"}
"""PostgreSQL: serialization failure, deadlock, unique violation; division by zero, by which our
statements fail if they find fewer rows than were read."""
_OUTAGE_CLASSES = {"08", "53", "57", "58"}
"""PostgreSQL: connection lost, insufficient resources, operator intervention, system error."""

_LOCK_TIMEOUT_STATE = "55P03"
"""PostgreSQL: lock not available, in time."""

_SILENT_STATE = "25P03"
"""PostgreSQL: idle-in-transaction timeout. The session was ended, and nothing was committed."""

_READ_ONLY_STATE = "25006"
"""PostgreSQL: the server is a standby, or became one; or an operator made it read-only."""

_FULL_STATE = "53100"
"""PostgreSQL: no space left on the server's disk."""

_REFUSED_STATES = {"42501", "3D000"}
_REFUSED_CLASS = "28"
"""PostgreSQL: a missing privilege, no such database; a login that is not valid."""
_TURNED_AWAY = re.compile(
    r"password authentication failed|no password supplied|no pg_hba\.conf entry|(role|database) \".*\" does not exist"
)
"""The same as messages: an error while connecting has no SQLSTATE."""
_WITHOUT_FILE = {
    "unable to open database file": "unable to open database file {file}",
    "file is not a database": "{file} is not a database",
    "attempt to write a readonly database": "{file} is read-only",
    "database disk image is malformed": "{file} is malformed",
}
"""SQLite's messages that lack the file's name, and the same with it."""

_NO_WRITES: dict[str, type[StoreUnavailable]] = {
    "attempt to write a readonly database": StoreReadOnly,
    "database or disk is full": StoreFull,
}
"""SQLite's messages of a file that can be read and not written."""

_NONE_LEFT = "This connection is closed"
"""The message of SQLAlchemy's pool if every connection that it tried, new ones too, was invalid."""

DRIVER_ERRORS = (sa.exc.SQLAlchemyError, OSError, sqlite3.Error)
"""The errors of SQLAlchemy, drivers and timeouts. A `TimeoutError` is an `OSError`."""


def is_read_only(error: BaseException | None) -> bool:
    """Whether a driver reports that its server is read-only."""
    return getattr(error, "sqlstate", None) == _READ_ONLY_STATE


def translated(error: Exception, file: str | None = None) -> StoreError:
    """One of `DRIVER_ERRORS` as `StoreUnavailable`, `Conflict`, `StoreRefused` or `StoreError`. `file` is the
    database's, if it is in a file."""
    if isinstance(error, sqlite3.Error):
        # Raised to a store that uses the driver itself.
        error = sa.exc.DBAPIError.instance("", (), error, sqlite3.Error)
    if isinstance(error, sa.exc.DBAPIError):
        return _driver_error(error, file)
    if isinstance(error, sa.exc.TimeoutError):
        return StoreUnavailable("no database connection became free in time")
    if isinstance(error, TimeoutError):
        return StoreUnavailable("the database did not answer in time")
    if isinstance(error, sa.exc.InvalidRequestError) and str(error) == _NONE_LEFT:
        return StoreUnavailable("database unavailable: its connections were cut, one after another")
    if isinstance(error, OSError):
        return StoreUnavailable(f"database unreachable: {error.strerror or type(error).__name__}")
    return StoreError(f"database error: {type(error).__name__}")


def fault(state: str, message: str) -> StoreError:
    """The `StoreError` of a PostgreSQL error. `Conflict` means: roll back and retry."""
    summary = message.strip().partition("\n")[0][:200]
    if state in _RETRYABLE_STATES:
        return Conflict(f"conflicting write: {summary}")
    if state == _LOCK_TIMEOUT_STATE:
        return LockTimeout(f"database unavailable: {summary}")
    if state in _REFUSED_STATES or state[:2] == _REFUSED_CLASS:
        return StoreRefused("database_url", f"the database refuses: {summary}")
    if state == _READ_ONLY_STATE:
        return StoreReadOnly("database unavailable: the server takes no writes; it is a standby, or read-only")
    if state == _FULL_STATE:
        return StoreFull(f"database unavailable: its disk is full ({summary})")
    if state[:2] in _OUTAGE_CLASSES or state == _SILENT_STATE:
        return StoreUnavailable(f"database unavailable: {summary}")
    return StoreError(f"database error: {summary}")


def _driver_error(error: sa.exc.DBAPIError, file: str | None) -> StoreError:
    """The driver's text may hold values from the statement, so only its first line is kept."""
    state = getattr(error.orig, "sqlstate", None)
    if state:
        return fault(state, str(error.orig))
    summary = str(error.orig).strip().partition("\n")[0][:200]
    writes_fail = _NO_WRITES.get(summary)
    if file is not None and summary in _WITHOUT_FILE:
        summary = _WITHOUT_FILE[summary].format(file=file)
    if writes_fail is not None:
        return writes_fail(f"database unavailable: {summary}")
    if _TURNED_AWAY.search(summary):
        return StoreRefused("database_url", f"the database refuses: {summary}")
    if isinstance(error, sa.exc.IntegrityError):
        return Conflict(f"conflicting write: {summary}")
    if error.connection_invalidated or isinstance(error, sa.exc.OperationalError | sa.exc.InterfaceError):
        return StoreUnavailable(f"database unavailable: {summary}")
    return StoreError(f"database error: {summary}")
