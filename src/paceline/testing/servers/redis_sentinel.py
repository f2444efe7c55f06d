"""A real Redis Sentinel set of the packaged server: a master, its replicas, and sentinels that replace the master."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.testing.servers.group import ServerGroup
from paceline.testing.servers.redis import RedisServer
from paceline.testing.servers.server import HOST

MASTER_NAME = "mymaster"


class SentinelProcess(RedisServer):
    """One sentinel, watching `master`."""

    def __init__(self, master: RedisServer, quorum: int, down_after_ms: int) -> None:
        super().__init__()
        self._master, self._quorum, self._down_after_ms = master, quorum, down_after_ms

    def configuration(self) -> list[str]:
        return [
            f"sentinel monitor {MASTER_NAME} {HOST} {self._master.port} {self._quorum}",
            f"sentinel down-after-milliseconds {MASTER_NAME} {self._down_after_ms}",
            f"sentinel failover-timeout {MASTER_NAME} 6000",
        ]

    def command(self) -> Sequence[str]:
        return [*super().command(), "--sentinel"]

    def view(self) -> dict[str, Any]:
        """This sentinel's view of the master."""
        with self.client() as client:
            return dict(client.sentinel_master(MASTER_NAME))


class Replica(RedisServer):
    """A server that starts out as a follower of `master`."""

    def __init__(self, master: RedisServer, durable: bool) -> None:
        super().__init__(durable=durable)
        self._master = master

    def configuration(self) -> list[str]:
        return [*super().configuration(), f"replicaof {HOST} {self._master.port}"]


class RedisSentinel(ServerGroup):
    """A master with `replicas` followers, and `sentinels` that make a follower master when the master is down.

    `down_after_ms` is how long a master may be silent; on a busy machine a short time causes spurious failovers.
    """

    name = "redis sentinel"
    master_name = MASTER_NAME

    def __init__(
        self, *, replicas: int = 1, sentinels: int = 3, durable: bool = True, down_after_ms: int = 2000
    ) -> None:
        super().__init__()
        first = RedisServer(durable=durable)
        self.servers = [first, *(Replica(first, durable) for _ in range(replicas))]
        quorum = sentinels // 2 + 1
        self.sentinels = [SentinelProcess(first, quorum, down_after_ms) for _ in range(sentinels)]

    def members(self) -> Sequence[RedisServer]:
        return [*self.servers, *self.sentinels]

    def is_whole(self) -> bool:
        followers = [server for server in self.servers if server is not self.master]
        return all(self._sees_all(sentinel.view()) for sentinel in self.sentinels) and all(
            self._replication(server).get("master_link_status") == "up" for server in followers
        )

    def _sees_all(self, view: dict[str, Any]) -> bool:
        return (
            view["num-other-sentinels"] == len(self.sentinels) - 1
            and view["num-slaves"] == len(self.servers) - 1
            and not view["is_odown"]
            and not view["is_sdown"]
        )

    @staticmethod
    def _replication(server: RedisServer) -> dict[str, Any]:
        with server.client() as client:
            return dict(client.info("replication"))

    @property
    def master(self) -> RedisServer:
        """The server the first running sentinel calls the master now."""
        port = next(sentinel for sentinel in self.sentinels if sentinel.running).view()["port"]
        return next(server for server in self.servers if server.port == port)

    def fail_over(self, within: float = 60.0) -> RedisServer:
        """Kills the master and returns it, once every running sentinel and the new master itself agree on another.

        `start` of the returned server brings it back; the sentinels then make it a follower.
        """
        lost = self.master
        lost.kill()
        self.wait_until(lambda: self._has_replaced(lost), "no replica was promoted", within)
        return lost

    def _has_replaced(self, lost: RedisServer) -> bool:
        ports = {sentinel.view()["port"] for sentinel in self.sentinels if sentinel.running}
        return (
            len(ports) == 1
            and lost.port not in ports
            and self.master.running
            and self._replication(self.master)["role"] == "master"
        )

    @property
    def url(self) -> str:
        """`redis+sentinel://host:port,host:port,…/master_name`"""
        return "redis+sentinel://" + ",".join(sentinel.address for sentinel in self.sentinels) + f"/{MASTER_NAME}"
