"""A new database file of SQLite's: its permissions and its write-ahead log."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from typing import Any


def create(_dialect: Any, _record: Any, arguments: Any, _options: Any) -> None:
    """Creates a new database so that only its owner reads it: it holds payments and tokens' digests. SQLite gives its
    other files (-wal, -shm) the same permissions."""
    with contextlib.suppress(OSError):  # it is there, or SQLite says what is wrong
        os.close(os.open(arguments[0], os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def use_wal(connection: Any, timeout: float) -> None:
    """Switches a new database to the write-ahead log. Of several who do so at once all but one get "database is
    locked" at once, without waiting; they try again for `timeout` seconds."""
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
