"""Redis for event loops: callers share one connection per server, and calls of one turn share one packet.

Replies come in the order of the calls, so a call costs an entry in a queue and no task, timer or lock of its own.
A command is sent again only after a reply that says it was not run (`redirects.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, cast

import hiredis

from headgate.errors import StoreUnavailable
from headgate.redis.discovery import Candidates, Discovery, Query, Result, master, slot_map
from headgate.redis.protocol import ASKING, Script, handshake
from headgate.redis.redirects import MAX_REDIRECTS, Action, ErrorReply, SlotMap, redirect_of, store_error, unreachable
from headgate.redis.url import Address, Login, RedisUrl, Topology

MAX_PACKET_CALLS = 32
"""A packet of this many calls is sent at once, so that Redis works on it while the next one is built."""
_INCOMPLETE = object()


class AsyncRedisConnection(asyncio.Protocol):
    """One connection. Calls of one turn of the loop are sent together; each gets its reply or `StoreUnavailable`.

    If the oldest call waits longer than `timeout`, the connection is closed: the calls behind it would wait as long.
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
        self._reader = hiredis.Reader(notEnoughData=_INCOMPLETE)
        self._closing = False
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._outgoing: list[bytes] = []
        self._sent = self._answered = 0
        self._packets: deque[tuple[float, int]] = deque()
        """Per packet: when it was sent, and how many calls had been sent by then."""
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    async def open(cls, address: Address, url: RedisUrl, login: Login, database: int = 0) -> AsyncRedisConnection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(url.timeout):
                _, connection = await loop.create_connection(
                    lambda: cls(loop, address, url.timeout), address.host, address.port, ssl=url.tls
                )
        except OSError as error:
            raise unreachable(address, url.timeout, error) from error
        try:
            for reply in await asyncio.gather(*map(connection.call, handshake(login, database))):
                if isinstance(reply, ErrorReply):
                    raise store_error(*reply, login.setting)
        except BaseException:
            connection.close()
            raise
        return connection

    def call(self, command: bytes) -> asyncio.Future[Any]:
        """A future of the reply to `command`: a value, or `ErrorReply`."""
        future = self.loop.create_future()
        if self.closed:
            future.set_exception(unreachable(self.address, self.timeout, ConnectionResetError("connection closed")))
            return future
        outgoing = self._outgoing
        if not outgoing:
            self.loop.call_soon(self._flush)
        outgoing.append(command)
        self._waiting.append(future)
        if len(outgoing) >= MAX_PACKET_CALLS:
            self._flush()
        return future

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
                    future.set_result(ErrorReply(reply, self.address) if type(reply) is hiredis.ReplyError else reply)
        except (hiredis.ProtocolError, IndexError) as error:
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


class AsyncRedisClient:
    """Sends commands to the server that has their keys."""

    def __init__(self, url: RedisUrl) -> None:
        self.url = url
        self._connections: dict[Address, AsyncRedisConnection] = {}
        self._in_flight: dict[Address | None, asyncio.Task[Any]] = {}
        """Connections being opened, by address; under `None` the discovery in flight."""
        self._master = url.addresses[0] if url.topology is Topology.SINGLE else None
        self._slots: SlotMap | None = None
        self._candidates = Candidates(url.addresses)

    def call(self, command: bytes, slot: int = 0) -> asyncio.Future[Any] | None:
        """A future of the reply, a value or `ErrorReply`; `None` if there is no connection to the right server yet."""
        address = self._master
        if address is None:
            slots = self._slots
            address = None if slots is None else slots.lookup(slot)
            if address is None:
                return None
        connection = self._connections.get(address)
        if connection is None or connection.closed or connection.loop is not asyncio.get_running_loop():
            return None
        return connection.call(command)

    async def execute(self, command: bytes, script: Script | None = None, slot: int = 0) -> Any:
        """The reply to `command`, after all redirects; `slot` is its keys' slot in a cluster.

        Raises:
            StoreUnavailable: no server could be reached, or none replied in time.
            StoreError: Redis replied with an error.
        """
        future = self.call(command, slot)
        reply = await (self._discover_and_call(command, slot) if future is None else future)
        return await self.follow_redirects(reply, command, script, slot) if isinstance(reply, ErrorReply) else reply

    async def follow_redirects(
        self, error_reply: ErrorReply, command: bytes, script: Script | None = None, slot: int = 0
    ) -> Any:
        """The reply to a command that got an error reply, which means that it was not run."""
        async with self._deadline():
            for _ in range(MAX_REDIRECTS):
                action, address = redirect_of(*error_reply)
                if action is Action.WITH_SCRIPT and script is not None:
                    command, address = script.with_source(command), error_reply.server
                elif action is Action.MOVED:
                    self._slots = None
                elif action is Action.NEW_MASTER and self.url.topology is Topology.SENTINEL:
                    if self._master == error_reply.server:
                        self._forget(error_reply.server)
                    address = await self._owner(slot)
                if address is None:
                    self._forget(error_reply.server)
                    break
                connection = await self._connection(address)
                commands = [ASKING, command] if action is Action.ASK else [command]
                *_, reply = await asyncio.gather(*map(connection.call, commands))
                if not isinstance(reply, ErrorReply):
                    return reply
                error_reply = reply
        raise store_error(*error_reply)

    async def _discover_and_call(self, command: bytes, slot: int) -> Any:
        async with self._deadline():
            for address, connection in list(self._connections.items()):
                if connection.closed or connection.loop is not asyncio.get_running_loop():
                    self._forget(address)
            connection = await self._connection(await self._owner(slot))
            return await connection.call(command)

    @asynccontextmanager
    async def _deadline(self) -> AsyncIterator[None]:
        """A timeout for what takes several steps; a call on an open connection has its own."""
        try:
            async with asyncio.timeout(self.url.timeout):
                yield
        except TimeoutError as error:
            raise StoreUnavailable(f"Redis at {self.url} did not answer within {self.url.timeout:g} s") from error

    async def close(self) -> None:
        """Closes every connection; calls in flight fail."""
        for task in self._in_flight.values():
            task.cancel()
        for address in list(self._connections):
            self._connections.pop(address).close()

    def _forget(self, address: Address) -> None:
        """Drops the connection to a server that failed, so that the next call runs a discovery."""
        connection = self._connections.pop(address, None)
        if connection is not None:
            # The connections of a closed loop can't be closed.
            with contextlib.suppress(RuntimeError):
                connection.close_when_idle()
        self._candidates.put_last(address)
        slots = self._slots
        if slots is not None:
            slots.mark_stale(address)
        if self.url.topology is Topology.SENTINEL:
            self._master = None

    async def _connection(self, address: Address) -> AsyncRedisConnection:
        connection = self._connections.get(address)
        if connection is None or connection.closed or connection.loop is not asyncio.get_running_loop():
            connection = await self._shared(address, self._open)
        return connection

    async def _open(self, address: Address) -> AsyncRedisConnection:
        try:
            connection = await AsyncRedisConnection.open(address, self.url, self.url.login, self.url.database)
        except StoreUnavailable:
            self._forget(address)
            raise
        self._connections[address] = connection
        return connection

    async def _owner(self, slot: int) -> Address:
        slots = self._slots
        known = self._master if slots is None else slots.lookup(slot)
        if known is not None:
            return known
        # The result is used even if it was marked stale since.
        result = await self._shared(None, self._discover)
        return result.owner(slot) if isinstance(result, SlotMap) else result

    async def _shared(self, name: Any, work: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        """The result of `work(name)`, shared by all callers while it is in flight."""
        loop = asyncio.get_running_loop()
        task = self._in_flight.get(name)
        if task is None or task.done() or task.get_loop() is not loop:
            task = self._in_flight[name] = loop.create_task(work(name))
            task.add_done_callback(_retrieve_exception)
        return await asyncio.shield(task)

    async def _discover(self, _: None) -> Address | SlotMap:
        if self.url.topology is Topology.SENTINEL:
            self._master = await self._run_discovery(master(self.url, self._candidates))
            return self._master
        self._slots = slots = await self._run_discovery(slot_map(self.url, self._candidates))
        return slots

    async def _run_discovery(self, discovery: Discovery[Result]) -> Result:
        clock = asyncio.get_running_loop().time
        end = clock() + self.url.timeout
        try:
            query = next(discovery)
            while True:
                try:
                    async with asyncio.timeout_at(query.due(clock(), end)):
                        reply = await self._send_query(query)
                except TimeoutError as error:
                    query = discovery.throw(unreachable(query.address, self.url.timeout, error))
                except StoreUnavailable as error:
                    query = discovery.throw(error)
                else:
                    query = discovery.send(reply)
        except StopIteration as ended:
            result: Result = ended.value
            return result

    async def _send_query(self, query: Query) -> Any:
        connection = await AsyncRedisConnection.open(query.address, self.url, query.login)
        try:
            reply = await connection.call(query.command)
        finally:
            connection.close()
        if isinstance(reply, ErrorReply):
            raise store_error(*reply)
        return reply


def _retrieve_exception(task: asyncio.Task[Any]) -> None:
    # If every caller was cancelled, asyncio would log an exception that was never retrieved.
    if not task.cancelled():
        task.exception()
