"""Connections of an event loop: callers share one connection per server, and calls of one turn share one packet.

Replies come in the order of the calls, so a call costs an entry in a queue and no task, timer or lock of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from functools import partial
from typing import Any, Protocol, cast

from paceline.redis.protocol import handshake, introduction
from paceline.redis.redirects import ErrorReply, store_error, unreachable
from paceline.redis.replies import ErrorText, ProtocolError, new_reader
from paceline.redis.single_flight import AsyncSingleFlight
from paceline.redis.url import Address, Login, RedisUrl

MAX_PACKET_CALLS = 32
"""A packet of this many calls is sent at once, so that Redis works on it while the next one is built."""
_INCOMPLETE = object()


class Receiver(Protocol):
    """What a reply is given to: a future, or something cheaper."""

    def done(self) -> bool: ...

    def set_result(self, reply: Any, /) -> None: ...

    def set_exception(self, error: BaseException, /) -> None: ...


class AsyncRedisConnection(asyncio.Protocol):
    """One connection. Calls of one turn of the loop are sent together; each gets its reply or `StoreUnavailable`.

    If the oldest call times out, the connection is closed: the calls behind it would wait as long.
    """

    __slots__ = (
        "_answered",
        "_closing",
        "_outgoing",
        "_packets",
        "_reader",
        "_sent",
        "_timer",
        "_transport",
        "_waiting",
        "address",
        "closed",
        "loop",
        "timeout",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, address: Address, timeout: float) -> None:
        self.loop = loop
        self.address = address
        self.timeout = timeout
        self.closed = False
        self._transport: asyncio.Transport | None = None
        self._reader = new_reader(_INCOMPLETE)
        self._closing = False
        self._waiting: deque[Receiver] = deque()
        self._outgoing: list[bytes] = []
        self._sent = self._answered = 0
        self._packets: deque[tuple[float, int]] = deque()
        """Per packet: when it was sent, and how many calls had been sent by then."""
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    async def open(
        cls, address: Address, url: RedisUrl, login: Login, due: float, database: int = 0
    ) -> AsyncRedisConnection:
        """A connection that is ready by `due`, by the monotonic clock."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(due - time.monotonic()):
                if login.provider is not None:
                    login = await asyncio.to_thread(login.current)  # it may call a service
                if address.is_socket:
                    _, connection = await loop.create_unix_connection(
                        lambda: cls(loop, address, url.timeout), address.host
                    )
                else:
                    _, connection = await loop.create_connection(
                        lambda: cls(loop, address, url.timeout), address.host, address.port, ssl=url.tls
                    )
        except OSError as error:
            raise unreachable(address, url.timeout, error) from error
        try:
            commands = handshake(login, database)
            sent = [*commands, *introduction()]
            replies = await asyncio.gather(*(connection.exchange_by(due, command) for command in sent))
            for reply in replies[: len(commands)]:
                if isinstance(reply, ErrorReply):
                    raise store_error(*reply, login.setting)
        except BaseException:
            connection.close()
            raise
        return connection

    async def exchange_by(self, due: float, command: bytes) -> Any:
        """The reply to `command`, with a timeout at `due`."""
        try:
            async with asyncio.timeout(due - time.monotonic()):
                return await self.call(command)
        except TimeoutError as error:
            raise unreachable(self.address, self.timeout, error) from error

    def call(self, command: bytes) -> asyncio.Future[Any]:
        """A future of the reply to `command`: a value, or `ErrorReply`."""
        future = self.loop.create_future()
        self.send(command, future)
        return future

    def send(self, command: bytes, receiver: Receiver) -> None:
        """Sends a command, whose reply goes to `receiver`."""
        if self.closed:
            receiver.set_exception(unreachable(self.address, self.timeout, ConnectionResetError("connection closed")))
            return
        outgoing = self._outgoing
        if not outgoing:
            self.loop.call_soon(self._flush)
        outgoing.append(command)
        self._waiting.append(receiver)
        if len(outgoing) >= MAX_PACKET_CALLS:
            self._flush()

    def close(self) -> None:
        self._end(ConnectionResetError("connection closed"))

    def close_when_idle(self) -> None:
        """Closes the connection when all calls in flight are answered."""
        self._closing = True
        if not self._waiting:
            self.close()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        gets, waiting = self._reader.gets, self._waiting
        answered = 0
        try:
            self._reader.feed(data)
            while (reply := gets()) is not _INCOMPLETE:
                future = waiting.popleft()
                answered += 1
                if not future.done():
                    future.set_result(ErrorReply(reply, self.address) if type(reply) is ErrorText else reply)
        except (ProtocolError, IndexError) as error:
            self._end(error)
        self._answered += answered
        if self._closing and not waiting:
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._end(error or ConnectionResetError("closed by the server"))

    def _flush(self) -> None:
        outgoing = self._outgoing
        if self._transport is None or self.closed or not outgoing:
            return
        self._sent += len(outgoing)
        self._transport.write(b"".join(outgoing))
        outgoing.clear()
        packets = self._packets
        while packets and packets[0][1] <= self._answered:
            packets.popleft()
        packets.append((self.loop.time(), self._sent))
        if self._timer is None:
            self._timer = self.loop.call_later(self.timeout, self._check_timeout)

    def _check_timeout(self) -> None:
        """Closes the connection if the oldest call has timed out; else checks again when it would have."""
        packets = self._packets
        while packets and packets[0][1] <= self._answered:
            packets.popleft()
        self._timer = None
        if not packets:
            return
        due = packets[0][0] + self.timeout
        if self.loop.time() >= due:
            self._end(TimeoutError())
        else:
            self._timer = self.loop.call_at(due, self._check_timeout)

    def _end(self, error: BaseException) -> None:
        if self.closed:
            return
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()
        self._outgoing.clear()
        failure = unreachable(self.address, self.timeout, error)
        failure.__cause__ = error
        for future in self._waiting:
            if not future.done():
                future.set_exception(failure)
        self._waiting.clear()


class AsyncConnections:
    """The connections of a client, one per server."""

    def __init__(self, url: RedisUrl) -> None:
        self._url = url
        self.by_address: dict[Address, AsyncRedisConnection] = {}
        self._opening = AsyncSingleFlight()
        self.opened = 0
        """How many were opened: each may lead to a server that has been restarted, or to another one."""

    def find(self, address: Address) -> AsyncRedisConnection | None:
        """The open connection to a server."""
        connection = self.by_address.get(address)
        if connection is None or connection.closed or connection.loop is not asyncio.get_running_loop():
            return None
        return connection

    async def send(self, address: Address, *commands: bytes) -> Any:
        """The reply to the last of `commands`: a value, or `ErrorReply`."""
        connection = self.find(address)
        if connection is None:
            connection = await self._opening.run(partial(self._open, address), address)
        *_, reply = await asyncio.gather(*map(connection.call, commands))
        return reply

    def lost(self) -> list[Address]:
        """The servers whose connections can't be used any more."""
        return [address for address in self.by_address if self.find(address) is None]

    def drop(self, address: Address) -> None:
        """Closes the connection to a server when its calls in flight are answered."""
        connection = self.by_address.pop(address, None)
        if connection is not None:
            # The connections of a closed loop can't be closed.
            with contextlib.suppress(RuntimeError):
                connection.close_when_idle()

    async def close(self) -> None:
        """Closes every connection; calls in flight fail."""
        self._opening.cancel()
        for address in list(self.by_address):
            self.by_address.pop(address).close()

    async def _open(self, address: Address) -> AsyncRedisConnection:
        url = self._url
        due = time.monotonic() + url.timeout
        connection = await AsyncRedisConnection.open(address, url, url.login, due, url.database)
        self.by_address[address] = connection
        self.opened += 1
        return connection
