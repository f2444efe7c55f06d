"""A real Redis Cluster of the packaged server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from paceline.testing.servers.group import ServerGroup
from paceline.testing.servers.ports import BUS_OFFSET, PortClaim
from paceline.testing.servers.redis import RedisServer
from paceline.testing.servers.server import HOST

SLOTS = 16_384


class RedisClusterNode(RedisServer):
    """One node; it has port and data of its own and can be broken by itself."""

    def claim_ports(self) -> list[PortClaim]:
        return [PortClaim(offsets=[BUS_OFFSET])]


@dataclass(frozen=True)
class RedisClusterAddress:
    """Where a cluster is; all this needs is the ports, so any process can use it."""

    ports: tuple[int, ...]

    @property
    def nodes(self) -> list[tuple[str, int]]:
        return [(HOST, port) for port in self.ports]

    @property
    def url(self) -> str:
        """`redis+cluster://host:port,host:port,…`"""
        return "redis+cluster://" + ",".join(f"{host}:{port}" for host, port in self.nodes)


class RedisCluster(ServerGroup):
    """A Redis Cluster: `masters` nodes share the slots; each has `replicas` followers that take over within seconds."""

    name = "redis cluster"

    def __init__(self, *, masters: int = 3, replicas: int = 0, durable: bool = True) -> None:
        super().__init__()
        settings = {"cluster-enabled": "yes", "cluster-node-timeout": "2000", "databases": "1"}
        self.masters = [RedisClusterNode(durable=durable, settings=settings) for _ in range(masters)]
        self.replicas = [RedisClusterNode(durable=durable, settings=settings) for _ in range(masters * replicas)]

    def members(self) -> Sequence[RedisServer]:
        return [*self.masters, *self.replicas]

    def form(self) -> None:
        for index, node in enumerate(self.masters):
            first, end = (SLOTS * at // len(self.masters) for at in (index, index + 1))
            self._cluster(node, "SET-CONFIG-EPOCH", index + 1)
            self._cluster(node, "ADDSLOTS", *range(first, end))
        for newcomer in self.members()[1:]:
            self._cluster(newcomer, "MEET", HOST, self.masters[0].port)
        for index, replica in enumerate(self.replicas):
            master = self._cluster(self.masters[index % len(self.masters)], "MYID")
            self.wait_until(partial(self._knows, replica, master), "nodes did not meet")
            self._cluster(replica, "REPLICATE", master)

    @staticmethod
    def _cluster(node: RedisServer, *words: str | int) -> str:
        with node.client() as client:
            return str(client.execute_command("CLUSTER", *words))

    def _knows(self, node: RedisServer, identity: str) -> bool:
        return identity in self._cluster(node, "NODES")

    def is_whole(self) -> bool:
        return all(self._sees_all(node) for node in self.members())

    def _sees_all(self, node: RedisServer) -> bool:
        info = self._cluster(node, "INFO").split()
        with node.client() as client:
            link = client.info("replication").get("master_link_status", "up")
        return {"cluster_state:ok", f"cluster_known_nodes:{len(self.members())}"} <= set(info) and link == "up"

    @property
    def location(self) -> RedisClusterAddress:
        return RedisClusterAddress(tuple(node.port for node in self.members()))

    @property
    def url(self) -> str:
        return self.location.url
