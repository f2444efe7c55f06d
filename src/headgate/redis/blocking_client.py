"""Redis for threads: each call has a connection to itself while it lasts; idle ones are kept for the next.

Nothing is ever sent twice, except after an answer that says it was not run (`remedies.py`). Finding the server,
connecting to it and hearing its answer may take the deadline each. Threads that have to find it at the same time wait
for one search and share what it finds, be it nothing.
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
from headgate.redis.discovery import Found, Places, Question, Search, master, slot_map
from headgate.redis.protocol import ASKING, Script, greeting
from headgate.redis.redirects import MOST_REMEDIES, SlotMap, Way, refusal, remedy, unreachable
from headgate.redis.url import Address, Login, RedisUrl, Shape

_NOTHING = object()
_MOST_IDLE = 128


class RedisConnection:
    """One socket to one server, ready by `due` (by the monotonic clock). Any trouble closes it and is
    `StoreUnavailable`."""

    __slots__ = ("_peers", "_reader", "_socket", "address", "timeout")

    def __init__(self, address: Address, url: RedisUrl, login: Login, due: float, database: int = 0) -> None:
        self.address = address
        self.timeout = url.timeout
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
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
            for command in greeting(login, database):
                reply = self.exchange_by(due, command)
                if isinstance(reply, hiredis.ReplyError):
                    raise refusal(reply, address, login.setting)
        except OSError as error:
            self.close()
            raise unreachable(address, url.timeout, error) from error
        except BaseException:
            self.close()
            raise
        self._socket.settimeout(url.timeout)
        self._peers = select.poll()
        self._peers.register(self._socket, select.POLLIN)

    def exchange_by(self, due: float, command: bytes) -> Any:
        """`exchange`, with no more time than until `due`."""
        try:
            self._socket.settimeout(_left(due))
        except TimeoutError as error:
            raise unreachable(self.address, self.timeout, error) from error
        return self.exchange(command)

    def exchange(self, command: bytes) -> Any:
        """The answer to `command`: a value, or an error as a value."""
        gets = self._reader.gets
        try:
            self._socket.sendall(command)
            while (reply := gets()) is _NOTHING:
                data = self._socket.recv(65536)
                if not data:
                    raise ConnectionResetError("closed by the server")
                self._reader.feed(data)
        except (OSError, hiredis.ProtocolError) as error:
            self.close()
            raise unreachable(self.address, self.timeout, error) from error
        except BaseException:
            # Interrupted between question and answer: the next caller must not get this one's answer.
            self.close()
            raise
        return reply

    @property
    def is_dead(self) -> bool:
        """Whether the server has hung up: an idle connection has nothing to say, except that it ended."""
        return bool(self._peers.poll(0))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()


class RedisClient:
    """Takes commands to the server that can answer them."""

    def __init__(self, url: RedisUrl) -> None:
        self.url = url
        self._start_afresh()

    def _start_afresh(self) -> None:
        self._process = os.getpid()
        self._idle: dict[Address, list[RedisConnection]] = {}
        self._master = self.url.addresses[0] if self.url.shape is Shape.SINGLE else None
        self._slots: SlotMap | None = None
        self._places = Places(self.url.addresses)
        self._finding = threading.Lock()
        self._search: Future[Address | SlotMap] | None = None

    def execute(self, command: bytes, script: Script | None = None, slot: int = 0) -> Any:
        """The answer to `command`, after every remedy; `slot` says where in a cluster."""
        if self._process != os.getpid():
            # A forked child shares its parent's sockets; using them would mix up answers.
            self._start_afresh()
        address = self._master or self._owner(slot)
        reply = self._exchange(address, command)
        return self._remedied(reply, address, command, script, slot) if type(reply) is hiredis.ReplyError else reply

    def _remedied(self, reply: Any, asked: Address, command: bytes, script: Script | None, slot: int) -> Any:
        for _ in range(MOST_REMEDIES):
            way, address = remedy(reply, asked)
            if way is Way.WITH_SCRIPT and script is not None:
                command, address = script.whole(command), asked
            elif way is Way.MOVED:
                self._slots = None
            elif way is Way.NEW_MASTER and self.url.shape is Shape.SENTINEL:
                self._forget(asked)
                address = self._owner(slot)
            if address is None:
                self._forget(asked)
                break
            asked = address
            reply = self._exchange(address, command, asking=way is Way.ASK)
            if type(reply) is not hiredis.ReplyError:
                return reply
        raise refusal(reply, asked)

    def masters(self) -> tuple[Address, ...]:
        """Every server that takes writes."""
        if self.url.shape is Shape.CLUSTER:
            found = self._slots or self._found()
            return found.masters if isinstance(found, SlotMap) else (found,)
        return (self._master or self._owner(0),)

    def close(self) -> None:
        """Closes idle connections; those in use are closed by their users."""
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
        if len(idle) < _MOST_IDLE and self._idle.get(address) is idle:
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
        """Drops what is known of a server that failed, so that the next call looks where the data is now."""
        for connection in self._idle.pop(address, ()):
            connection.close()
        self._places.put_last(address)
        slots = self._slots
        if slots is not None:
            slots.doubt(address)
        if self.url.shape is Shape.SENTINEL and self._master == address:
            self._master = None

    def _due(self) -> float:
        return time.monotonic() + self.url.timeout

    def _owner(self, slot: int) -> Address:
        slots = self._slots
        known = self._master if slots is None else slots.known(slot)
        if known is not None:
            return known
        found = self._found()
        return found.owner(slot) if isinstance(found, SlotMap) else found

    def _found(self) -> Address | SlotMap:
        """Where the data is, from a search that everybody who asks meanwhile waits for together."""
        with self._finding:
            search, mine = self._search, self._search is None
            if search is None:
                search = self._search = Future()
        if not mine:
            return search.result()
        try:
            found: Address | SlotMap
            if self.url.shape is Shape.SENTINEL:
                found = self._master = self._find(master(self.url, self._places))
            else:
                found = self._slots = self._find(slot_map(self.url, self._places))
        except BaseException as error:
            self._search = None
            # What interrupts this thread is not for the others.
            search.set_exception(error if isinstance(error, StoreError) else StoreUnavailable("the search was ended"))
            raise
        self._search = None
        search.set_result(found)
        return found

    def _find(self, search: Search[Found]) -> Found:
        end = self._due()
        try:
            question = next(search)
            while True:
                try:
                    answer = self._ask(question, question.due(time.monotonic(), end))
                except StoreUnavailable as error:
                    question = search.throw(error)
                else:
                    question = search.send(answer)
        except StopIteration as ended:
            found: Found = ended.value
            return found

    def _ask(self, question: Question, due: float) -> Any:
        connection = RedisConnection(question.address, self.url, question.login, due)
        try:
            reply = connection.exchange_by(due, question.command)
        finally:
            connection.close()
        if isinstance(reply, hiredis.ReplyError):
            raise refusal(reply, question.address)
        return reply


def _left(due: float) -> float:
    left = due - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
