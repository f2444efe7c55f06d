"""Redis for event loops: everybody shares one connection to a server, and calls of one turn share one packet.

Answers come in the order of the calls, so a call costs an entry in a queue and no task, timer or lock of its own.
Nothing is ever sent twice, except after an answer that says it was not run (`remedies.py`).
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
from headgate.redis.discovery import Found, Places, Question, Search, master, slot_map
from headgate.redis.protocol import ASKING, Script, greeting
from headgate.redis.redirects import MOST_REMEDIES, Refused, SlotMap, Way, refusal, remedy, unreachable
from headgate.redis.url import Address, Login, RedisUrl, Shape

PACKET = 32
"""A packet leaves when it holds this many calls, so that Redis works on it while the next one is being made."""
_NOTHING = object()


class AsyncRedisConnection(asyncio.Protocol):
    """One connection. Calls of one turn of the loop leave together; each gets its answer or `StoreUnavailable`.

    If the oldest call waits longer than `timeout`, the connection is given up: whatever is stuck in front of it is
    stuck in front of everybody.
    """

    __slots__ = (
        "_answered",
        "_marks",
        "_outgoing",
        "_reader",
        "_retired",
        "_sent",
        "_transport",
        "_waiting",
        "_watch",
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
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self._retired = False
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._outgoing: list[bytes] = []
        self._sent = self._answered = 0
        self._marks: deque[tuple[float, int]] = deque()
        """When a packet left, and how many calls had been sent by then."""
        self._watch: asyncio.TimerHandle | None = None

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
            for reply in await asyncio.gather(*map(connection.call, greeting(login, database))):
                if isinstance(reply, Refused):
                    raise refusal(*reply, login.setting)
        except BaseException:
            connection.close()
            raise
        return connection

    def call(self, command: bytes) -> asyncio.Future[Any]:
        """The answer to `command`, to be awaited: a value, or `Refused`."""
        future = self.loop.create_future()
        if self.closed:
            future.set_exception(unreachable(self.address, self.timeout, ConnectionResetError("connection closed")))
            return future
        outgoing = self._outgoing
        if not outgoing:
            self.loop.call_soon(self._flush)
        outgoing.append(command)
        self._waiting.append(future)
        if len(outgoing) >= PACKET:
            self._flush()
        return future

    def close(self) -> None:
        self._end(ConnectionResetError("connection closed"))

    def retire(self) -> None:
        """Closes as soon as all calls made so far are answered."""
        self._retired = True
        if not self._waiting:
            self.close()

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        gets, waiting = self._reader.gets, self._waiting
        answered = 0
        try:
            self._reader.feed(data)
            while (reply := gets()) is not _NOTHING:
                future = waiting.popleft()
                answered += 1
                if not future.done():
                    future.set_result(Refused(reply, self.address) if type(reply) is hiredis.ReplyError else reply)
        except (hiredis.ProtocolError, IndexError) as error:
            self._end(error)
        self._answered += answered
        if self._retired and not waiting:
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
        marks = self._marks
        while marks and marks[0][1] <= self._answered:
            marks.popleft()
        marks.append((self.loop.time(), self._sent))
        if self._watch is None:
            self._watch = self.loop.call_later(self.timeout, self._look)

    def _look(self) -> None:
        """Gives up if the oldest call has waited too long; else looks again when it would have."""
        marks = self._marks
        while marks and marks[0][1] <= self._answered:
            marks.popleft()
        self._watch = None
        if not marks:
            return
        due = marks[0][0] + self.timeout
        if self.loop.time() >= due:
            self._end(TimeoutError())
        else:
            self._watch = self.loop.call_at(due, self._look)

    def _end(self, error: BaseException) -> None:
        if self.closed:
            return
        self.closed = True
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self._transport is not None:
            self._transport.abort()
        self._outgoing.clear()
        trouble = unreachable(self.address, self.timeout, error)
        trouble.__cause__ = error
        for future in self._waiting:
            if not future.done():
                future.set_exception(trouble)
        self._waiting.clear()


class AsyncRedisClient:
    """Takes commands to the server that can answer them."""

    def __init__(self, url: RedisUrl) -> None:
        self.url = url
        self._connections: dict[Address, AsyncRedisConnection] = {}
        self._underway: dict[Address | None, asyncio.Task[Any]] = {}
        """Connections being opened, by address; under `None` the search for the master or the slots' owners."""
        self._master = url.addresses[0] if url.shape is Shape.SINGLE else None
        self._slots: SlotMap | None = None
        self._places = Places(url.addresses)

    def call(self, command: bytes, slot: int = 0) -> asyncio.Future[Any] | None:
        """The answer to come, a value or `Refused`; `None` if the way to the server has to be found first."""
        address = self._master
        if address is None:
            slots = self._slots
            address = None if slots is None else slots.known(slot)
            if address is None:
                return None
        connection = self._connections.get(address)
        if connection is None or connection.closed or connection.loop is not asyncio.get_running_loop():
            return None
        return connection.call(command)

    async def execute(self, command: bytes, script: Script | None = None, slot: int = 0) -> Any:
        """The answer to `command`, after every remedy; `slot` says where in a cluster."""
        answer = self.call(command, slot)
        reply = await (self._found(command, slot) if answer is None else answer)
        return await self.remedied(reply, command, script, slot) if isinstance(reply, Refused) else reply

    async def remedied(self, refused: Refused, command: bytes, script: Script | None = None, slot: int = 0) -> Any:
        """The answer to a command that was refused, which means that it was not run."""
        async with self._deadline():
            for _ in range(MOST_REMEDIES):
                way, address = remedy(*refused)
                if way is Way.WITH_SCRIPT and script is not None:
                    command, address = script.whole(command), refused.by
                elif way is Way.MOVED:
                    self._slots = None
                elif way is Way.NEW_MASTER and self.url.shape is Shape.SENTINEL:
                    if self._master == refused.by:
                        self._lose(refused.by)
                    address = await self._owner(slot)
                if address is None:
                    self._lose(refused.by)
                    break
                connection = await self._connection(address)
                asked = [ASKING, command] if way is Way.ASK else [command]
                *_, reply = await asyncio.gather(*map(connection.call, asked))
                if not isinstance(reply, Refused):
                    return reply
                refused = reply
        raise refusal(*refused)

    async def _found(self, command: bytes, slot: int) -> Any:
        async with self._deadline():
            for address, connection in list(self._connections.items()):
                if connection.closed or connection.loop is not asyncio.get_running_loop():
                    self._lose(address)
            connection = await self._connection(await self._owner(slot))
            return await connection.call(command)

    @asynccontextmanager
    async def _deadline(self) -> AsyncIterator[None]:
        """For what takes several steps; an answer on an open connection has its own."""
        try:
            async with asyncio.timeout(self.url.timeout):
                yield
        except TimeoutError as error:
            raise StoreUnavailable(f"Redis at {self.url} did not answer within {self.url.timeout:g} s") from error

    async def close(self) -> None:
        """Ends every connection; calls underway fail."""
        for task in self._underway.values():
            task.cancel()
        for address in list(self._connections):
            self._connections.pop(address).close()

    def _lose(self, address: Address) -> None:
        """Drops what is known of a server that failed, so that the next call looks where the data is now."""
        connection = self._connections.pop(address, None)
        if connection is not None:
            # Of a loop that is closed nothing can be closed any more.
            with contextlib.suppress(RuntimeError):
                connection.retire()
        self._places.put_last(address)
        slots = self._slots
        if slots is not None:
            slots.doubt(address)
        if self.url.shape is Shape.SENTINEL:
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
            self._lose(address)
            raise
        self._connections[address] = connection
        return connection

    async def _owner(self, slot: int) -> Address:
        slots = self._slots
        known = self._master if slots is None else slots.known(slot)
        if known is not None:
            return known
        # What was found is used even if somebody has declared it outdated since.
        found = await self._shared(None, self._find)
        return found.owner(slot) if isinstance(found, SlotMap) else found

    async def _shared(self, name: Any, work: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        """The result of `work(name)`, which everybody who asks meanwhile awaits together."""
        loop = asyncio.get_running_loop()
        task = self._underway.get(name)
        if task is None or task.done() or task.get_loop() is not loop:
            task = self._underway[name] = loop.create_task(work(name))
            task.add_done_callback(_look_at)
        return await asyncio.shield(task)

    async def _find(self, _: None) -> Address | SlotMap:
        if self.url.shape is Shape.SENTINEL:
            self._master = await self._found_by(master(self.url, self._places))
            return self._master
        self._slots = slots = await self._found_by(slot_map(self.url, self._places))
        return slots

    async def _found_by(self, search: Search[Found]) -> Found:
        clock = asyncio.get_running_loop().time
        end = clock() + self.url.timeout
        try:
            question = next(search)
            while True:
                try:
                    async with asyncio.timeout_at(question.due(clock(), end)):
                        answer = await self._ask(question)
                except TimeoutError as error:
                    question = search.throw(unreachable(question.address, self.url.timeout, error))
                except StoreUnavailable as error:
                    question = search.throw(error)
                else:
                    question = search.send(answer)
        except StopIteration as ended:
            found: Found = ended.value
            return found

    async def _ask(self, question: Question) -> Any:
        connection = await AsyncRedisConnection.open(question.address, self.url, question.login)
        try:
            reply = await connection.call(question.command)
        finally:
            connection.close()
        if isinstance(reply, Refused):
            raise refusal(*reply)
        return reply


def _look_at(task: asyncio.Task[Any]) -> None:
    # If everybody who waited has gone, nobody else would look, and the loop would complain.
    if not task.cancelled():
        task.exception()
