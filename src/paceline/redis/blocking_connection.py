"""Connections of threads: a call has a connection to itself while it lasts; idle connections are kept.

Discovery, connecting and the reply may take the timeout each.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Sequence
from typing import Any

from paceline.redis.protocol import handshake, introduction
from paceline.redis.redirects import ErrorReply, store_error, unreachable
from paceline.redis.replies import ErrorText, ProtocolError, new_reader
from paceline.redis.url import Address, Login, RedisUrl

_INCOMPLETE = object()
_MAX_IDLE = 128


class RedisConnection:
    """One socket to one server. Any trouble closes it and is `StoreUnavailable`."""

    __slots__ = ("_poll", "_reader", "_socket", "address", "timeout")

    @classmethod
    def open(cls, address: Address, url: RedisUrl, login: Login, due: float, database: int = 0) -> RedisConnection:
        """A connection that is ready by `due`, by the monotonic clock."""
        return cls(address, url, login, due, database)

    def __init__(self, address: Address, url: RedisUrl, login: Login, due: float, database: int) -> None:
        self.address = address
        self.timeout = url.timeout
        self._reader = new_reader(_INCOMPLETE)
        login = login.current()
        try:
            plain = _socket_to(address, _left(due))
        except OSError as error:
            raise unreachable(address, url.timeout, error) from error
        self._socket = plain
        try:
            if not address.is_socket:
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if url.tls is not None:
                self._socket = url.tls.wrap_socket(plain, server_hostname=address.host)
            for command in handshake(login, database):
                reply = self.exchange_by(due, command)
                if isinstance(reply, ErrorReply):
                    raise store_error(*reply, login.setting)
            self.exchange_all(introduction())
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
        """The reply to `command`: a value, or `ErrorReply`."""
        gets = self._reader.gets
        try:
            self._socket.sendall(command)
            while (reply := gets()) is _INCOMPLETE:
                data = self._socket.recv(65536)
                if not data:
                    raise ConnectionResetError("closed by the server")
                self._reader.feed(data)
        except (OSError, ProtocolError) as error:
            self.close()
            raise unreachable(self.address, self.timeout, error) from error
        except BaseException:
            # Interrupted between command and reply: the next caller must not get this one's reply.
            self.close()
            raise
        return ErrorReply(reply, self.address) if type(reply) is ErrorText else reply

    def exchange_all(self, commands: Sequence[bytes]) -> list[Any]:
        """The replies to `commands`, which are sent together."""
        gets = self._reader.gets
        replies: list[Any] = []
        try:
            self._socket.sendall(b"".join(commands))
            while len(replies) < len(commands):
                while (reply := gets()) is _INCOMPLETE:
                    data = self._socket.recv(65536)
                    if not data:
                        raise ConnectionResetError("closed by the server")
                    self._reader.feed(data)
                replies.append(ErrorReply(reply, self.address) if type(reply) is ErrorText else reply)
        except (OSError, ProtocolError) as error:
            self.close()
            raise unreachable(self.address, self.timeout, error) from error
        except BaseException:
            self.close()  # as above
            raise
        return replies

    @property
    def is_dead(self) -> bool:
        """Whether the server has closed the connection: an idle one receives nothing else."""
        return bool(self._poll.poll(0))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()


class Connections:
    """The idle connections of a client, by server."""

    def __init__(self, url: RedisUrl) -> None:
        self._url = url
        self._idle: dict[Address, list[RedisConnection]] = {}

    def send(self, address: Address, *commands: bytes) -> Any:
        """The reply to the last of `commands`: a value, or `ErrorReply`."""
        connection, idle = self._take(address)
        for command in commands:
            reply = connection.exchange(command)
        self._put_back(connection, idle)
        return reply

    def send_all(self, address: Address, commands: Sequence[bytes]) -> list[Any]:
        """The replies to `commands`, which are sent together: values, or `ErrorReply`."""
        connection, idle = self._take(address)
        replies = connection.exchange_all(commands)
        self._put_back(connection, idle)
        return replies

    def _take(self, address: Address) -> tuple[RedisConnection, list[RedisConnection]]:
        """A connection for one caller, and the list it goes back to."""
        idle = self._idle.get(address)
        if idle is None:
            idle = self._idle.setdefault(address, [])
        try:
            connection = idle.pop()
            while connection.is_dead:
                connection.close()
                connection = idle.pop()
        except IndexError:
            url = self._url
            connection = RedisConnection(address, url, url.login, time.monotonic() + url.timeout, url.database)
        return connection, idle

    def _put_back(self, connection: RedisConnection, idle: list[RedisConnection]) -> None:
        if len(idle) < _MAX_IDLE and self._idle.get(connection.address) is idle:
            idle.append(connection)
        else:
            connection.close()

    def drop(self, address: Address) -> None:
        """Closes the idle connections to a server; one in use is closed after its call."""
        for connection in self._idle.pop(address, ()):
            connection.close()

    def close(self) -> None:
        """Closes all idle connections; one in use is closed after its call."""
        for address in list(self._idle):
            self.drop(address)


def _socket_to(address: Address, timeout: float) -> socket.socket:
    if not address.is_socket:
        return socket.create_connection(address, timeout)
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(timeout)
        connection.connect(address.host)
    except BaseException:
        connection.close()
        raise
    return connection


def _left(due: float) -> float:
    left = due - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
