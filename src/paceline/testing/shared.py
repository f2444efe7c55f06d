"""One server of each kind for a whole test run, however many worker processes it has.

The process that runs the session starts them on first use, and stops them at the end. Under pytest-xdist that is
the controller; its workers ask it over a Unix socket. So a worker that crashes takes no server with it, and a run that
is killed leaves none behind.
"""

from __future__ import annotations

import contextlib
import queue
import secrets
import shutil
import threading
from collections.abc import Callable
from importlib import import_module
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from paceline.locks import Lock
from paceline.testing.servers.failures import ServerFailed, ServerUnavailable
from paceline.testing.servers.process_group import process_group

REDIS_DATABASES = 64
# Hundreds of small databases that live for a test each: there is nothing to vacuum, and no crash to recover from.
POSTGRES_SETTINGS = {
    "autovacuum": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "1h",
    "jit": "off",
}


class Closable(Protocol):
    def close(self) -> None: ...


class Kind(NamedTuple):
    """How a shared server is started, and what locates it. The location is sent between processes."""

    module: str
    start: Callable[[Any], Closable]
    locate: Callable[[Any], Any]


KINDS = {
    "postgres": Kind(
        "postgres", lambda m: m.PostgresServer(settings=POSTGRES_SETTINGS).start(), lambda server: server.port
    ),
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
        self._locks = {name: Lock() for name in KINDS}
        self._servers: dict[str, Closable] = {}
        self._databases: queue.SimpleQueue[int] = queue.SimpleQueue()
        for number in range(REDIS_DATABASES):
            self._databases.put(number)
        self._listener: Listener | None = None
        self._authkey = secrets.token_bytes(16)
        self._closing = False
        self._answers: dict[str, Callable[..., Any]] = {
            "locate": self.locate,
            "lend_database": self.lend_database,
            "return_database": self.return_database,
        }

    def locate(self, name: str) -> Any:
        """Where the server is; it is started now if it was not."""
        kind = KINDS[name]
        with self._locks[name]:
            if self._closing:
                raise ServerFailed("the test run is over")
            if name not in self._servers:
                module = import_module(f"paceline.testing.servers.{kind.module}")
                self._servers[name] = kind.start(module)
            return kind.locate(self._servers[name])

    def lend_database(self) -> int:
        """The number of a database in the shared Redis that no other test has now; the longest unused one."""
        try:
            return self._databases.get_nowait()
        except queue.Empty:
            raise ServerFailed("every database of the shared Redis is in use") from None

    def return_database(self, number: int) -> None:
        self._databases.put(number)

    def listen(self) -> SharedServersClient:
        """Opens the socket, once, and says how a worker reaches it."""
        if self._listener is None:
            address = process_group.directory("paceline-run-") / "socket"
            self._listener = Listener(str(address), family="AF_UNIX", authkey=self._authkey, backlog=64)
            threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()
        return SharedServersClient(str(self._listener.address), self._authkey.hex())

    def _accept(self, listener: Listener) -> None:
        while not self._closing:
            try:
                connection = listener.accept()
            except (OSError, EOFError, AuthenticationError):
                continue  # closed by us, or a worker that died while calling
            # A thread each: a worker that waits for Kafka must not keep another from Redis.
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: Connection) -> None:
        with connection, contextlib.suppress(OSError, EOFError):  # the worker may die before it has its answer
            question, *arguments = connection.recv()
            try:
                answer = self._answers[question](*arguments)
            except ServerUnavailable as failure:
                connection.send(("unavailable", str(failure)))
            except Exception as failure:
                connection.send(("failed", f"{type(failure).__name__}: {failure}"))
            else:
                connection.send((None, answer))

    def close(self) -> None:
        """Stops whatever runs."""
        self._closing = True
        if self._listener is not None:
            socket_directory = Path(str(self._listener.address)).parent
            self._listener.close()
            shutil.rmtree(socket_directory, ignore_errors=True)
        for name, lock in self._locks.items():
            with lock:
                if server := self._servers.pop(name, None):
                    server.close()


class SharedServersClient(NamedTuple):
    """How a worker reaches the run's shared servers; answers as `SharedServers` does."""

    address: str
    authkey: str

    def locate(self, name: str) -> Any:
        return self._ask("locate", name)

    def lend_database(self) -> int:
        return int(self._ask("lend_database"))

    def return_database(self, number: int) -> None:
        self._ask("return_database", number)

    def _ask(self, *question: Any) -> Any:
        with Client(self.address, family="AF_UNIX", authkey=bytes.fromhex(self.authkey)) as connection:
            connection.send(question)
            problem, answer = connection.recv()
        if problem == "unavailable":
            raise ServerUnavailable(answer)
        if problem == "failed":
            raise ServerFailed(answer)
        return answer

    def close(self) -> None:
        """Nothing: the servers belong to the controller."""
