"""SQLite's files and their connections: permissions, settings, the write-ahead log."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from typing import Any

from sqlalchemy.engine import Engine

POLLED_MS = 8
"""For so long SQLite itself waits for the write lock: it looks again after 1, 2 and 5 milliseconds."""


def create(_dialect: Any, _record: Any, arguments: Any, _options: Any) -> None:
    """Creates a new database that only its owner can read: it holds tokens' digests. SQLite gives its other
    files (-wal, -shm) the same permissions."""
    with contextlib.suppress(OSError):  # it exists, or SQLite reports the error
        os.close(os.open(arguments[0], os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def prepare(connection: Any, busy_seconds: int, synchronous: str) -> None:
    """Sets a new connection's options."""
    # The driver must not begin transactions by itself: it would begin them deferred, and a deferred transaction that
    # turns from reading to writing fails with SQLITE_BUSY_SNAPSHOT instead of waiting.
    connection.isolation_level = None
    for pragma in (f"busy_timeout={busy_seconds * 1000}", f"synchronous={synchronous}"):
        connection.execute(f"PRAGMA {pragma}").close()
    use_wal(connection, busy_seconds)


def use_wal(connection: Any, timeout: float) -> None:
    """Switches a new database to the write-ahead log. If several processes do so at once, all but one get "database is
    locked" without a wait; they retry for `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL").close()
        except sqlite3.OperationalError as error:
            is_locked = error.sqlite_errorcode in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
            if not is_locked or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def begin_write(connection: sqlite3.Connection, timeout: float) -> None:
    """Takes the write lock; waits up to `timeout` seconds for it. SQLite's own wait looks for the lock less and less
    often, up to 100 ms apart, and would miss the gap between two transactions of another process again and again."""
    deadline = time.monotonic() + timeout
    connection.execute(f"PRAGMA busy_timeout={POLLED_MS}")
    try:
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
            else:
                return
    finally:
        connection.execute(f"PRAGMA busy_timeout={int(timeout * 1000)}")


def watch_connection(engine: Engine) -> sqlite3.Connection:
    """A connection that the pool forgets, and that never waits for a lock."""
    connection = engine.raw_connection()
    opened = connection.driver_connection
    assert isinstance(opened, sqlite3.Connection)
    connection.detach()
    opened.execute("PRAGMA busy_timeout=0").close()
    return opened


def data_version(engine: Engine) -> tuple[int, int]:
    """Changes with every commit that is not of the pool's connection, and with that connection."""
    connection = engine.raw_connection()
    try:
        opened = connection.driver_connection
        assert isinstance(opened, sqlite3.Connection)
        return id(opened), opened.execute("PRAGMA data_version").fetchone()[0]
    finally:
        connection.close()
