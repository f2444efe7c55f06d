"""TCP links that can be slow, silent or cut: a proxy on a port of its own, in this process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import deque
from typing import Any, Literal

from paceline.testing import eventually

HOST = "127.0.0.1"
RESET = struct.pack("ii", 1, 0)
"""Linger for no time: closing resets the connection."""
ESTABLISHED = 1

State = Literal["passing", "slow", "silent", "cut"]


class Link:
    """A port that leads to another.

    - `slow`: every piece of data takes `delay` seconds longer, in both directions.
    - `silent`: nothing passes, and no error is reported, as if the cable was pulled. What was sent meanwhile passes
      when the link heals, as TCP retransmits it. With `drops_late` a connection whose caller has left by then is
      dropped instead.
    - `cut`: callers are reset, and so are new ones. What is on its way to the server still arrives.
    """

    def __init__(self, name: str, *, drops_late: bool = False) -> None:
        self.name = name
        self.state: State = "passing"
        self.delay = 0.0
        self.upstream = 0
        """The port that it leads to."""
        self._drops_late = drops_late
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()
        self.passing = asyncio.Event()
        """Set unless it is silent."""
        self.passing.set()

    async def open(self, upstream: int = 0) -> Link:
        self.upstream = upstream
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self).caller, HOST, 0)
        return self

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    def slow(self, delay: float) -> None:
        self.state, self.delay = "slow", delay

    def silence(self) -> None:
        self.state = "silent"
        self.passing.clear()
        for connection in self._connections:
            connection.pause()

    def cut(self) -> None:
        self.state = "cut"
        for connection in list(self._connections):
            connection.cut()

    def heal(self) -> None:
        was, self.state, self.delay = self.state, "passing", 0.0
        self.passing.set()
        for connection in list(self._connections):
            if was == "silent" and self._drops_late and connection.caller_has_left:
                connection.cut()
            else:
                connection.resume()

    async def close(self) -> None:
        """Resets all connections, and returns when they are closed."""
        if self._server is not None:
            self._server.close()
        self.delay = 0.0
        self.passing.set()
        for connection in list(self._connections):
            connection.end()
        await eventually(lambda: not self._connections, every=0)


class _Connection:
    """A caller's connection, and the one to the server that belongs to it."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.caller, self.server = _Side(self), _Side(self)
        self.caller.other, self.server.other = self.server, self.caller
        self._connecting: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self.link._connections.add(self)
        if self.link.state == "cut":
            self.cut()
        else:
            self._connecting = asyncio.create_task(self._connect())

    async def _connect(self) -> None:
        self.caller.pause()
        await self.link.passing.wait()
        try:
            await asyncio.sleep(self.link.delay)
            await asyncio.get_running_loop().create_connection(lambda: self.server, HOST, self.link.upstream)
        except OSError:
            self.cut()
            return
        if self.caller.is_closed:
            self.server.close()
        elif self.link.state == "silent":
            self.pause()
        else:
            self.caller.resume()

    @property
    def caller_has_left(self) -> bool:
        return self.caller.is_closed or not self.caller.is_established

    def pause(self) -> None:
        self.caller.pause()
        self.server.pause()

    def resume(self) -> None:
        if self.server.transport is not None:
            self.caller.resume()
            self.server.resume()

    def cut(self) -> None:
        """Resets the caller; what is on its way to the server arrives, then that connection ends too."""
        self.caller.reset()
        self.caller.finish()

    def end(self) -> None:
        """Resets both sides."""
        if self._connecting is not None:
            self._connecting.cancel()
        self.caller.reset()
        self.server.reset()

    def forget(self) -> None:
        if self.caller.is_closed and (self.server.is_closed or self.server.transport is None):
            self.link._connections.discard(self)


class _Side(asyncio.Protocol):
    """One of the two connections. What it receives goes to the other, in order, when its time has come."""

    other: _Side

    def __init__(self, connection: _Connection) -> None:
        self.connection = connection
        self.transport: Any = None
        self.is_closed = False
        self._line: deque[tuple[float, bytes | None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self is self.connection.caller:
            self.connection.begin()

    def data_received(self, data: bytes) -> None:
        self._send(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closed = True
        self._send(None)
        self.connection.forget()

    @property
    def is_established(self) -> bool:
        with contextlib.suppress(OSError):
            information = self.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
            return bool(information[0] == ESTABLISHED)
        return False

    def pause(self) -> None:
        if self.transport is not None and not self.is_closed and self.transport.is_reading():
            self.transport.pause_reading()

    def resume(self) -> None:
        if not self.is_closed and not self.transport.is_closing() and not self.transport.is_reading():
            self.transport.resume_reading()

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()

    def reset(self) -> None:
        if self.transport is None or self.is_closed:
            return
        with contextlib.suppress(OSError):
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.transport.abort()

    def finish(self) -> None:
        """Ends the other side when all that is on its way has arrived there."""
        self._send(None)

    def _send(self, data: bytes | None) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + self.connection.link.delay
        self._line.append((max(due, self._line[-1][0]) if self._line else due, data))
        if self._timer is None:
            self._deliver()

    def _deliver(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        while self._line and self._line[0][0] <= loop.time():
            _, data = self._line.popleft()
            if self.other.transport is None or self.other.is_closed:
                continue
            if data is None:
                self.other.close()
            else:
                self.other.transport.write(data)
        if self._line:
            self._timer = loop.call_at(self._line[0][0], self._deliver)
