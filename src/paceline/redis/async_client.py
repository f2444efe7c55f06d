"""Redis for event loops: a command goes to the server that has its keys.

A command is retried only after a reply that says it was not run (`redirects.py`). Concurrent callers share one
discovery and its result, also if it fails.
`RedisClient`, the same for threads, is generated from this file: `scripts/generate_blocking.py`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

from paceline.errors import StoreUnavailable
from paceline.redis.async_connection import AsyncConnections, AsyncRedisConnection, Receiver
from paceline.redis.discovery import Candidates, Discovery, Query, Result, master, slot_map
from paceline.redis.protocol import ASKING, Script
from paceline.redis.redirects import (
    MAX_REDIRECTS,
    TRY_AGAIN_SECONDS,
    Action,
    ErrorReply,
    SlotMap,
    redirect_of,
    store_error,
)
from paceline.redis.single_flight import AsyncSingleFlight
from paceline.redis.url import Address, RedisUrl, Topology

T = TypeVar("T")  # async only


class AsyncRedisClient:
    """Sends commands to the server that has their keys."""

    def __init__(self, url: RedisUrl) -> None:
        self.url = url
        self._reset()

    def _reset(self) -> None:
        # blocking: self._process = os.getpid()
        self._connections = AsyncConnections(self.url)
        self._discovery = AsyncSingleFlight()
        self._master = self.url.addresses[0] if self.url.topology is Topology.SINGLE else None
        self._slots: SlotMap | None = None
        self._candidates = Candidates(self.url.addresses)

    # async only: begin
    @property
    def opened(self) -> int:
        """How many connections were opened: each may lead to a server that has been restarted, or to another one."""
        return self._connections.opened

    def call(self, command: bytes, slot: int = 0) -> asyncio.Future[Any] | None:
        """A future of the reply, a value or `ErrorReply`; `None` if there is no connection to the right server yet."""
        future = asyncio.get_running_loop().create_future()
        return future if self.send(command, slot, future) else None

    def send(self, command: bytes, slot: int, receiver: Receiver) -> bool:
        """Sends a command whose reply goes to `receiver`; false if there is no connection to the right server yet."""
        address = self._master
        if address is None:
            slots = self._slots
            address = None if slots is None else slots.lookup(slot)
            if address is None:
                return False
        connection = self._connections.find(address)
        if connection is None:
            return False
        connection.send(command, receiver)
        return True

    # async only: end
    async def execute(self, command: bytes, script: Script | None = None, slot: int = 0) -> Any:
        """The reply to `command`, after all redirects; `slot` is its keys' slot in a cluster.

        Raises:
            StoreUnavailable: no server could be reached, or none replied in time.
            StoreError: Redis replied with an error.
        """
        # async only: begin
        future = self.call(command, slot)
        reply = await (self._within_timeout(self._discover_and_send(command, slot)) if future is None else future)
        # async only: end
        # blocking: if self._process != os.getpid():
        # blocking:     # A forked child shares its parent's sockets; using them would mix up replies.
        # blocking:     self._reset()
        # blocking: reply = self._send(self._master or self._owner(slot), command)
        return await self.follow_redirects(reply, command, script, slot) if isinstance(reply, ErrorReply) else reply

    async def execute_many(self, calls: Sequence[tuple[bytes, int]], script: Script | None = None) -> list[Any]:
        """The replies to commands, each with its slot, that are sent together. Raises what `execute` does; then any of
        the commands may have been run."""
        # async only: begin
        sent = [self.call(command, slot) or self.execute(command, script, slot) for command, slot in calls]
        replies: list[Any] = list(await asyncio.gather(*sent))
        # async only: end
        # blocking: if self._process != os.getpid():
        # blocking:     self._reset()
        # blocking: replies = self._send_grouped(calls)
        for index, ((command, slot), reply) in enumerate(zip(calls, replies, strict=True)):
            if isinstance(reply, ErrorReply):
                replies[index] = await self.follow_redirects(reply, command, script, slot)
        return replies

    # blocking: def _send_grouped(self, calls: Sequence[tuple[bytes, int]]) -> list[Any]:
    # blocking:     groups: dict[Address, list[int]] = {}
    # blocking:     for index, (_, slot) in enumerate(calls):
    # blocking:         groups.setdefault(self._master or self._owner(slot), []).append(index)
    # blocking:     replies: list[Any] = [None] * len(calls)
    # blocking:     for address, indexes in groups.items():
    # blocking:         sent = [calls[index][0] for index in indexes]
    # blocking:         try:
    # blocking:             answered = self._connections.send_all(address, sent)
    # blocking:         except StoreUnavailable:
    # blocking:             self._forget(address)
    # blocking:             raise
    # blocking:         for index, reply in zip(indexes, answered, strict=True):
    # blocking:             replies[index] = reply
    # blocking:     return replies

    async def follow_redirects(
        self, error_reply: ErrorReply, command: bytes, script: Script | None = None, slot: int = 0
    ) -> Any:
        """The reply to a command that got an error reply, which means that it was not run."""
        return await self._within_timeout(self._follow_redirects(error_reply, command, script, slot))

    async def _follow_redirects(self, error_reply: ErrorReply, command: bytes, script: Script | None, slot: int) -> Any:
        redirects, asking = 0, False
        pauses, end = iter(TRY_AGAIN_SECONDS), time.monotonic() + self.url.timeout
        while redirects < MAX_REDIRECTS:
            action, address = redirect_of(*error_reply)
            redirects += 1
            if action is Action.WITH_SCRIPT and script is not None:
                command, address = script.with_source(command), error_reply.server
            elif action is Action.MOVED:
                self._slots = None
            elif action is Action.NEW_MASTER and self.url.topology is Topology.SENTINEL:
                self._forget(error_reply.server)
                address = await self._owner(slot)
            elif action is Action.TRY_AGAIN:
                pause = next(pauses, None)
                if pause is None or time.monotonic() + pause > end:
                    break
                await asyncio.sleep(pause)
                redirects, address = 0, await self._owner(slot)
            if address is None:
                self._forget(error_reply.server)
                break
            # A node that imports the slot, and lacks the script, needs ASKING again.
            asking = action is Action.ASK or (asking and action is Action.WITH_SCRIPT)
            reply = await self._send(address, *((ASKING, command) if asking else (command,)))
            if not isinstance(reply, ErrorReply):
                return reply
            error_reply = reply
        raise store_error(*error_reply)

    async def masters(self) -> tuple[Address, ...]:
        """Every server that takes writes."""
        if self.url.topology is Topology.CLUSTER:
            result = self._slots if self._slots is not None else await self._discovery.run(self._discover)
            return result.masters if isinstance(result, SlotMap) else (result,)
        return (self._master or await self._owner(0),)

    async def close(self) -> None:
        """Closes the connections; calls in flight on an event loop fail."""
        self._discovery.cancel()  # async only
        await self._connections.close()

    # async only: begin
    async def _discover_and_send(self, command: bytes, slot: int) -> Any:
        for address in self._connections.lost():
            self._forget(address)
        return await self._send(await self._owner(slot), command)

    async def _within_timeout(self, work: Awaitable[T]) -> T:
        """A timeout for what takes several steps; a call on an open connection has its own."""
        try:
            async with asyncio.timeout(self.url.timeout):
                return await work
        except TimeoutError as error:
            raise StoreUnavailable(f"Redis at {self.url} did not answer within {self.url.timeout:g} s") from error

    # async only: end
    async def _send(self, address: Address, *commands: bytes) -> Any:
        try:
            return await self._connections.send(address, *commands)
        except StoreUnavailable:
            self._forget(address)
            raise

    def _forget(self, address: Address) -> None:
        """Drops the connections to a server that failed, so that the next call runs a discovery."""
        self._connections.drop(address)
        self._candidates.put_last(address)
        slots = self._slots
        if slots is not None:
            slots.mark_stale(address)
        if self.url.topology is Topology.SENTINEL and self._master == address:
            self._master = None

    async def _owner(self, slot: int) -> Address:
        slots = self._slots
        known = self._master if slots is None else slots.lookup(slot)
        if known is not None:
            return known
        # The result is used even if it was marked stale since.
        result = await self._discovery.run(self._discover)
        return result.owner(slot) if isinstance(result, SlotMap) else result

    async def _discover(self) -> Address | SlotMap:
        if self.url.topology is Topology.SENTINEL:
            self._master = address = await self._run_discovery(master(self.url, self._candidates))
            return address
        self._slots = slots = await self._run_discovery(slot_map(self.url, self._candidates))
        return slots

    async def _run_discovery(self, discovery: Discovery[Result]) -> Result:
        end = time.monotonic() + self.url.timeout
        try:
            query = next(discovery)
            while True:
                try:
                    reply = await self._send_query(query, query.due(time.monotonic(), end))
                except StoreUnavailable as error:
                    query = discovery.throw(error)
                else:
                    query = discovery.send(reply)
        except StopIteration as ended:
            result: Result = ended.value
            return result

    async def _send_query(self, query: Query, due: float) -> Any:
        connection = await AsyncRedisConnection.open(query.address, self.url, query.login, due)
        try:
            reply = await connection.exchange_by(due, query.command)
        finally:
            connection.close()
        if isinstance(reply, ErrorReply):
            raise store_error(*reply)
        return reply
