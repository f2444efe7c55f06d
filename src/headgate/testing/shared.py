"""One server of each kind for a whole test run, however many worker processes it has.

The process that runs the session starts them, when first asked, and stops them at the end. Under pytest-xdist that is
the controller; its workers ask it over a Unix socket. So a worker that crashes takes no server with it, and a run that
is killed leaves none behind.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from importlib import import_module
from multiprocessing.connection import Client, Connection, Listener
from typing import Any, NamedTuple, Protocol

from headgate.testing.servers.failures import ServerFailed, ServerUnavailable


class Closable(Protocol):
    def close(self) -> None: ...


class Kind(NamedTuple):
    """How a shared server is made and what the tests are told of it. The answer travels between processes."""

    module: str
    start: Callable[[Any], Closable]
    locate: Callable[[Any], Any]


KINDS = {
    "postgres": Kind("postgres", lambda m: m.PostgresServer().start(), lambda server: server.port),
    "redis": Kind("redis", lambda m: m.RedisServer(durable=False).start(), lambda server: server.port),
    "redis_cluster": Kind(
        "redis_cluster", lambda m: m.RedisCluster(durable=False).start(), lambda cluster: cluster.location
    ),
    "temporal": Kind("temporal", lambda m: m.TemporalServer(durable=False).start(), lambda server: server.address),
    "kafka": Kind("kafka", lambda m: m.KafkaServer().start(), lambda server: server.bootstrap),
}


class SharedServers:
    """Starts each server at most once; safe to ask from many threads and, after `listen`, many processes."""

    def __init__(self) -> None:
        self._locks = {name: threading.Lock() for name in KINDS}
        self._servers: dict[str, Closable] = {}
        self._listener: Listener | None = None
        self._closing = False

    def locate(self, name: str) -> Any:
        """Where the server is; it is started now if it was not."""
        kind = KINDS[name]
        with self._locks[name]:
            if self._closing:
                raise ServerFailed("the test run is over")
            if name not in self._servers:
                module = import_module(f"headgate.testing.servers.{kind.module}")
                self._servers[name] = kind.start(module)
            return kind.locate(self._servers[name])

    def listen(self) -> Invitation:
        """Opens the socket, once, and says how a worker reaches it."""
        if self._listener is None:
            self._authkey = secrets.token_bytes(16)
            self._listener = Listener(family="AF_UNIX", authkey=self._authkey)
            threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()
        return Invitation(str(self._listener.address), self._authkey.hex())

    def _accept(self, listener: Listener) -> None:
        while not self._closing:
            try:
                connection = listener.accept()
            except (OSError, EOFError):
                continue  # closed by us, or a worker that died while calling
            # A thread each: a worker that waits for Kafka must not keep another from Redis.
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: Connection) -> None:
        with connection:
            try:
                connection.send((None, self.locate(connection.recv())))
            except ServerUnavailable as failure:
                connection.send(("unavailable", str(failure)))
            except Exception as failure:
                connection.send(("failed", f"{type(failure).__name__}: {failure}"))

    def close(self) -> None:
        """Stops whatever runs."""
        self._closing = True
        if self._listener is not None:
            self._listener.close()
        for name, lock in self._locks.items():
            with lock:
                if server := self._servers.pop(name, None):
                    server.close()


class Invitation(NamedTuple):
    """How a worker reaches the run's shared servers."""

    address: str
    authkey: str

    def locate(self, name: str) -> Any:
        """As `SharedServers.locate`, from another process."""
        with Client(self.address, family="AF_UNIX", authkey=bytes.fromhex(self.authkey)) as connection:
            connection.send(name)
            problem, answer = connection.recv()
        if problem == "unavailable":
            raise ServerUnavailable(answer)
        if problem == "failed":
            raise ServerFailed(answer)
        return answer

    def close(self) -> None:
        """Nothing: the servers belong to the controller."""
