"""Driver errors, translated to headgate's tree in one place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from headgate.errors import Conflict, StoreError, StoreRefused, StoreUnavailable

_RETRYABLE_STATES = {"40001", "40P01", "55P03", "23505"}
"""PostgreSQL: serialization failure, deadlock, lock not available, unique violation."""
_OUTAGE_CLASSES = {"08", "53", "57", "58"}
"""PostgreSQL: connection lost, no resources, shut down by an operator, system error."""

_REFUSED_STATES = {"42501", "3D000"}
_REFUSED_CLASS = "28"
"""PostgreSQL: a missing privilege, no such database; a login that is not valid."""
_TURNED_AWAY = re.compile(
    r"password authentication failed|no password supplied|no pg_hba\.conf entry|(role|database) \".*\" does not exist"
)
"""What says so when a connection can't even be made: then the driver tells no state."""
_NOT_OPENED = "unable to open database file"
"""SQLite: no such folder, a folder instead of a file, or no right to write. It does not name the file."""


@contextmanager
def translated(file: str | None = None) -> Iterator[None]:
    """Raises `StoreUnavailable`, `Conflict` or `StoreError` instead of what SQLAlchemy or a driver raised. `file` is
    the database's, where it is one."""
    try:
        yield
    except sa.exc.DBAPIError as error:
        raise _translation(error, file) from error
    except sa.exc.TimeoutError as error:
        raise StoreUnavailable("no database connection became free in time") from error
    except sa.exc.SQLAlchemyError as error:
        raise StoreError(f"database error: {type(error).__name__}") from error
    except TimeoutError as error:
        raise StoreUnavailable("the database did not answer in time") from error
    except OSError as error:
        raise StoreUnavailable(f"database unreachable: {error.strerror or type(error).__name__}") from error


def fault(state: str, message: str) -> StoreError:
    """What a PostgreSQL error is to headgate. `Conflict` means: roll back, try again."""
    summary = message.strip().partition("\n")[0][:200]
    if state in _RETRYABLE_STATES:
        return Conflict(f"conflicting write: {summary}")
    if state in _REFUSED_STATES or state[:2] == _REFUSED_CLASS:
        return StoreRefused("database_url", f"the database refuses: {summary}")
    if state[:2] in _OUTAGE_CLASSES:
        return StoreUnavailable(f"database unavailable: {summary}")
    return StoreError(f"database error: {summary}")


def _translation(error: sa.exc.DBAPIError, file: str | None) -> StoreError:
    """The driver's text may hold values from the statement, so only its first line is kept."""
    state = getattr(error.orig, "sqlstate", None)
    if state:
        return fault(state, str(error.orig))
    summary = str(error.orig).strip().partition("\n")[0][:200]
    if file is not None and summary == _NOT_OPENED:
        summary = f"unable to open database file {file}"
    if _TURNED_AWAY.search(summary):
        return StoreRefused("database_url", f"the database refuses: {summary}")
    if isinstance(error, sa.exc.IntegrityError):
        return Conflict(f"conflicting write: {summary}")
    if error.connection_invalidated or isinstance(error, sa.exc.OperationalError | sa.exc.InterfaceError):
        return StoreUnavailable(f"database unavailable: {summary}")
    return StoreError(f"database error: {summary}")
