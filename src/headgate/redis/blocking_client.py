"""Redis for threads: a call has a connection to itself while it lasts; idle connections are kept.

A command is sent again only after a reply that says it was not run (`redirects.py`). Discovery, connecting and the
reply may take the deadline each. Threads that need a discovery at the same time share one and its result, also if it
fails.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from concurrent.futures import Future
from typing import Any

import hiredis

from headgate.errors import StoreError, StoreUnavailable
from headgate.redis.discovery import Candidates, Discovery, Query, Result, master, slot_map
from headgate.redis.protocol import ASKING, Script, handshake
from headgate.redis.redirects import MAX_REDIRECTS, Action, SlotMap, redirect_of, store_error, unreachable
from headgate.redis.url import Address, Login, RedisUrl, Topology

_INCOMPLETE = object()
_MAX_IDLE = 128


class RedisConnection:
    """One socket to one server, ready by `due` (by the monotonic clock). Any trouble closes it and is
    `StoreUnavailable`."""

    __slots__ = ("_poll", "_reader", "_socket", "address", "timeout")

    def __init__(self, address: Address, url: RedisUrl, login: Login, due: float, database: int = 0) -> None:
        self.address = address
        self.timeout = url.timeout
        self._reader = hiredis.Reader(notEnoughData=_INCOMPLETE)
        try:
            plain = socket.create_connection(address, _left(due))
        except OSError as error:
            raise unreachable(address, url.timeout, error) from error
        self._socket = plain
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if url.tls is not None:
                self._socket = url.tls.wrap_socket(plain, server_hostname=address.host)
            for command in handshake(login, database):
                reply = self.exchange_by(due, command)
                if isinstance(reply, hiredis.ReplyError):
                    raise store_error(reply, address, login.setting)
        except OSError as error:
            self.close()
            raise unreachable(address, url.timeout, error) from error
        except BaseException:
            self.close()
            raise
        self._socket.settimeout(url.timeout)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)

    def exchange_by(self, due: float, command: bytes) -> Any:
        """`exchange` that times out at `due`."""
        try:
            self._socket.settimeout(_left(due))
        except TimeoutError as error:
            raise unreachable(self.address, self.timeout, error) from error
        return self.exchange(command)

    def exchange(self, command: bytes) -> Any:
        """The reply to `command`: a value, or an error as a value."""
        gets = self._reader.gets
        try:
            self._socket.sendall(command)
            while (reply := gets()) is _INCOMPLETE:
                data = self._socket.recv(65536)
                if not data:
                    raise ConnectionResetError("closed by the server")
                self._reader.feed(data)
        except (OSError, hiredis.ProtocolError) as error:
            self.close()
            raise unreachable(self.address, self.timeout, error) from error
        except BaseException:
            # Interrupted between command and reply: the next caller must not get this one's reply.
            self.close()
            raise
        return reply

    @property
    def is_dead(self) -> bool:
        """Whether the server has closed the connection: an idle one receives nothing else."""
        return bool(self._poll.poll(0))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()


class RedisClient:
    """Sends commands to the server that has their keys."""

    def __init__(self, url: RedisUrl) -> None:
        self.url = url
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._idle: dict[Address, list[RedisConnection]] = {}
        self._master = self.url.addresses[0] if self.url.topology is Topology.SINGLE else None
        self._slots: SlotMap | None = None
        self._candidates = Candidates(self.url.addresses)
        self._discovery_lock = threading.Lock()
        self._in_flight: Future[Address | SlotMap] | None = None

    def execute(self, command: bytes, script: Script | None = None, slot: int = 0) -> Any:
        """The reply to `command`, after all redirects; `slot` is its keys' slot in a cluster.

        Raises:
            StoreUnavailable: no server could be reached, or none replied in time.
            StoreError: Redis replied with an error.
        """
        if self._process != os.getpid():
            # A forked child shares its parent's sockets; using them would mix up replies.
            self._reset()
        address = self._master or self._owner(slot)
        reply = self._exchange(address, command)
        return (
            self._follow_redirects(reply, address, command, script, slot)
            if type(reply) is hiredis.ReplyError
            else reply
        )

    def _follow_redirects(self, reply: Any, server: Address, command: bytes, script: Script | None, slot: int) -> Any:
        for _ in range(MAX_REDIRECTS):
            action, address = redirect_of(reply, server)
            if action is Action.WITH_SCRIPT and script is not None:
                command, address = script.with_source(command), server
            elif action is Action.MOVED:
                self._slots = None
            elif action is Action.NEW_MASTER and self.url.topology is Topology.SENTINEL:
                self._forget(server)
                address = self._owner(slot)
            if address is None:
                self._forget(server)
                break
            server = address
            reply = self._exchange(address, command, asking=action is Action.ASK)
            if type(reply) is not hiredis.ReplyError:
                return reply
        raise store_error(reply, server)

    def masters(self) -> tuple[Address, ...]:
        """Every server that takes writes."""
        if self.url.topology is Topology.CLUSTER:
            result = self._slots or self._discover()
            return result.masters if isinstance(result, SlotMap) else (result,)
        return (self._master or self._owner(0),)

    def close(self) -> None:
        """Closes idle connections; one in use is closed after its call."""
        for address in list(self._idle):
            self._forget(address)

    def _exchange(self, address: Address, command: bytes, asking: bool = False) -> Any:
        idle = self._idle.get(address)
        if idle is None:
            idle = self._idle.setdefault(address, [])
        try:
            connection = idle.pop()
            while connection.is_dead:
                connection.close()
                connection = idle.pop()
        except IndexError:
            connection = self._connect(address)
        try:
            if asking:
                connection.exchange(ASKING)
            reply = connection.exchange(command)
        except StoreUnavailable:
            self._forget(address)
            raise
        if len(idle) < _MAX_IDLE and self._idle.get(address) is idle:
            idle.append(connection)
        else:
            connection.close()
        return reply

    def _connect(self, address: Address) -> RedisConnection:
        try:
            return RedisConnection(address, self.url, self.url.login, self._due(), self.url.database)
        except StoreUnavailable:
            self._forget(address)
            raise

    def _forget(self, address: Address) -> None:
        """Drops the connections to a server that failed, so that the next call runs a discovery."""
        for connection in self._idle.pop(address, ()):
            connection.close()
        self._candidates.put_last(address)
        slots = self._slots
        if slots is not None:
            slots.mark_stale(address)
        if self.url.topology is Topology.SENTINEL and self._master == address:
            self._master = None

    def _due(self) -> float:
        return time.monotonic() + self.url.timeout

    def _owner(self, slot: int) -> Address:
        slots = self._slots
        known = self._master if slots is None else slots.lookup(slot)
        if known is not None:
            return known
        result = self._discover()
        return result.owner(slot) if isinstance(result, SlotMap) else result

    def _discover(self) -> Address | SlotMap:
        """The server or slot map, from one discovery shared by all threads while it is in flight."""
        with self._discovery_lock:
            future, is_first = self._in_flight, self._in_flight is None
            if future is None:
                future = self._in_flight = Future()
        if not is_first:
            return future.result()
        try:
            result: Address | SlotMap
            if self.url.topology is Topology.SENTINEL:
                result = self._master = self._run_discovery(master(self.url, self._candidates))
            else:
                result = self._slots = self._run_discovery(slot_map(self.url, self._candidates))
        except BaseException as error:
            self._in_flight = None
            # An interrupt of this thread is not for the others.
            future.set_exception(
                error if isinstance(error, StoreError) else StoreUnavailable("the discovery was interrupted")
            )
            raise
        self._in_flight = None
        future.set_result(result)
        return result

    def _run_discovery(self, discovery: Discovery[Result]) -> Result:
        end = self._due()
        try:
            query = next(discovery)
            while True:
                try:
                    reply = self._send_query(query, query.due(time.monotonic(), end))
                except StoreUnavailable as error:
                    query = discovery.throw(error)
                else:
                    query = discovery.send(reply)
        except StopIteration as ended:
            result: Result = ended.value
            return result

    def _send_query(self, query: Query, due: float) -> Any:
        connection = RedisConnection(query.address, self.url, query.login, due)
        try:
            reply = connection.exchange_by(due, query.command)
        finally:
            connection.close()
        if isinstance(reply, hiredis.ReplyError):
            raise store_error(reply, query.address)
        return reply


def _left(due: float) -> float:
    left = due - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
