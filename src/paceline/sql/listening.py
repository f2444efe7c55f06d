"""A connection to PostgreSQL that listens for notifications.

By libpq's own calls: the driver's wait for notifications wakes up ten times per second, and its queries wait for the
server's answer to a cancellation, which one that hangs never sends.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from psycopg.pq import ExecStatus

TAG = "/* paceline hints */"
"""Begins its queries, so that an operator recognises the connection."""


class Listening:
    """Calls `hear` with the payload of each notification, until it is closed."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], hear: Callable[[str], object]) -> None:
        self._connection = connection
        self._pgconn = connection.pgconn
        self._hear = hear
        self.is_waiting = False
        """Whether a query is not answered yet."""
        self._row: list[str | None] = []
        self._error: psycopg.Error | None = None
        self._was_read = asyncio.Event()
        self._loop, self._socket = asyncio.get_running_loop(), self._pgconn.socket
        # For good: to add and to remove it with every wait takes longer than to read.
        self._loop.add_reader(self._socket, self._read)

    @classmethod
    async def open(cls, url: str, channel: str, hear: Callable[[str], object]) -> Listening:
        connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
        try:
            await connection.execute(f"LISTEN {channel}".encode())
        except BaseException:
            await connection.close()
            raise
        return cls(connection, hear)

    async def close(self) -> None:
        self._loop.remove_reader(self._socket)
        await self._connection.close()  # at once; `async with` would first wait for a rollback

    async def ask(self, values: Sequence[str], seconds: float) -> list[str | None] | None:
        """The values of these expressions, as text; None if the answer did not come within `seconds`: then the next
        call waits for the same answer. What was notified before the answer is heard by then."""
        if not self.is_waiting:
            columns = ", ".join(f"({value})::text" for value in values) or "1"
            self._pgconn.send_query(f"{TAG} SELECT {columns}".encode())
            self._pgconn.flush()
            self.is_waiting = True
        await self._wait(seconds, lambda: not self.is_waiting)
        return None if self.is_waiting else self._row

    async def listen(self, seconds: float) -> None:
        """Listens for so long."""
        await self._wait(seconds, lambda: False)

    async def _wait(self, seconds: float, is_done: Callable[[], bool]) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._error is None and not is_done():
                    self._was_read.clear()
                    await self._was_read.wait()
        if self._error is not None:
            raise self._error

    def _read(self) -> None:
        try:
            self._consume()
        except psycopg.Error as error:
            self._error = error
            self._loop.remove_reader(self._socket)  # a closed socket stays readable
        self._was_read.set()

    def _consume(self) -> None:
        self._pgconn.consume_input()
        while notice := self._pgconn.notifies():
            self._hear(notice.extra.decode())
        while self.is_waiting and not self._pgconn.is_busy():
            result = self._pgconn.get_result()
            if result is None:
                self.is_waiting = False
            elif result.status != ExecStatus.TUPLES_OK:
                raise psycopg.OperationalError(result.get_error_message())
            else:
                cells = (result.get_value(0, column) for column in range(result.nfields))
                self._row = [None if cell is None else cell.decode() for cell in cells]
