"""How a transaction ends at its deadline: PostgreSQL's socket is shut down, SQLite's statement is interrupted."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sqlite3
from collections.abc import Iterator
from typing import Any

from sqlalchemy.engine import Connection

from paceline.locks import Lock

CUT_BEFORE = 0.25
"""A connection to PostgreSQL is shut down this long before the deadline: psycopg would spend up to ten seconds more on
cancelling the statement at a server that does not answer."""
_INTERRUPT_EVERY = 0.1
"""Seconds between interrupts on SQLite: one that falls between two statements of a transaction has no effect."""


class Use:
    """A transaction's connection, which is shut down or interrupted at its deadline."""

    __slots__ = ("_is_over", "_lock", "_running", "connection", "is_cut", "is_queued", "loop", "timeout", "timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.connection: Connection | None = None
        self.is_cut = False
        self.is_queued = False
        """Whether it waits for a thread."""
        self.timeout: asyncio.Timeout | None = None
        self.timer: asyncio.TimerHandle | None = None
        """Cuts the connection to PostgreSQL shortly before the timeout, or interrupts SQLite at it."""
        self._running: sqlite3.Connection | None = None
        self._is_over = False
        self._lock = Lock()
        """Held while `_running` is interrupted: after that, the connection may be another transaction's."""

    def end_at(self, when: float) -> None:
        """Brings the deadline forward."""
        if self.timeout is None or (planned := self.timeout.when()) is None or planned <= when:
            return
        with contextlib.suppress(RuntimeError):  # it is over already
            self.timeout.reschedule(when)
        if self.timer is not None:
            self.timer.cancel()
            self.timer = self.loop.call_at(max(when - CUT_BEFORE, (self.loop.time() + when) / 2), self.cut)

    def cut(self) -> None:
        """Ends the wait for a PostgreSQL that does not answer: shuts the socket down, so a reader gets end of file."""
        used = self.connection
        if used is None or used.invalidated or used.closed:
            return
        raw: Any = used.connection.driver_connection
        # A closed connection has no socket, for which the driver has its own error.
        with contextlib.suppress(Exception), socket.socket(fileno=os.dup(raw.pgconn.socket)) as end:
            self.is_cut = True
            end.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def interruptible(self, driver: sqlite3.Connection) -> Iterator[None]:
        """Lets `interrupt` end the statements inside, on another thread. Commit and rollback are outside.

        Raises:
            TimeoutError: The deadline was over before the thread was free.
        """
        with self._lock:
            if self._is_over:
                raise TimeoutError
            self._running = driver
        try:
            yield
        finally:
            with self._lock:
                self._running = None

    def interrupt(self) -> None:
        """Ends the statement on SQLite's one thread, which would block all other transactions, and those that the same
        transaction may begin after it."""
        with self._lock:
            self._is_over = True
            if self._running is None:
                return
            self._running.interrupt()
        self.timer = self.loop.call_later(_INTERRUPT_EVERY, self.interrupt)
