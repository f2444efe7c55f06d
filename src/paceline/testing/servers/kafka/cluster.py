"""Several Kafka brokers that are one cluster, each of them broker and controller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from confluent_kafka.admin import AdminClient

from paceline.testing.servers.group import ServerGroup
from paceline.testing.servers.kafka import SINGLE_BROKER, KafkaServer, new_id
from paceline.testing.servers.ports import PortClaim
from paceline.testing.servers.server import HOST

HEAP = "160m"


class KafkaNode(KafkaServer):
    """One broker of a cluster; it has ports and data of its own and can be broken by itself."""

    def __init__(self, cluster: KafkaCluster, number: int, settings: Mapping[str, str]) -> None:
        super().__init__(settings=settings, heap=HEAP)
        self._cluster = cluster
        self._cluster_id = cluster.cluster_id
        self._node_id = number

    def claim_ports(self) -> list[PortClaim]:
        return self._cluster.ports_of(self._node_id)

    def voters(self) -> str:
        return self._cluster.voters()


class KafkaCluster(ServerGroup):
    """A Kafka cluster: every topic has a replica on each of the `brokers`; `min_in_sync` of them must have a record
    before it is acknowledged. It detects a dead or frozen broker after three seconds."""

    name = "kafka cluster"

    def __init__(self, *, brokers: int = 3, min_in_sync: int = 2, settings: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.cluster_id = new_id()
        replicated = {
            name: str(min_in_sync) if name.endswith("min.isr") else str(brokers)
            for name in SINGLE_BROKER
            if name.endswith(("replication.factor", "min.isr"))
        }
        common = {
            **replicated,
            "default.replication.factor": str(brokers),
            "min.insync.replicas": str(min_in_sync),
            **(settings or {}),
        }
        self._ports: dict[int, list[PortClaim]] = {}
        self.brokers = [KafkaNode(self, number, common) for number in range(1, brokers + 1)]

    def members(self) -> Sequence[KafkaNode]:
        return self.brokers

    def ports_of(self, number: int) -> list[PortClaim]:
        """The ports of a node. They are claimed together: each node's configuration names the controllers of all."""
        if not self._ports:
            self._ports = {node: [PortClaim(), PortClaim()] for node in range(1, len(self.brokers) + 1)}
        return self._ports[number]

    def voters(self) -> str:
        return ",".join(f"{number}@{HOST}:{claims[1].number}" for number, claims in sorted(self._ports.items()))

    def start(self) -> Self:
        """Starts the brokers that do not run, all at once: one alone waits for a majority before it answers."""
        self.ports_of(1)
        stopped = [broker for broker in self.brokers if not broker.running]
        try:
            with ThreadPoolExecutor(len(self.brokers)) as threads:
                for started in [threads.submit(broker.start) for broker in stopped]:
                    started.result()
            self.wait_until(self.is_whole, "did not become whole")
        except BaseException:
            if not self._formed:
                self.close()
            raise
        self._formed = True
        return self

    def is_whole(self) -> bool:
        """Whether every broker is there, and every replica of every partition is in sync."""
        metadata = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0}).list_topics(timeout=5)
        partitions = [partition for topic in metadata.topics.values() for partition in topic.partitions.values()]
        return len(metadata.brokers) == len(self.brokers) and all(
            len(partition.isrs) == len(partition.replicas) for partition in partitions
        )

    def leader(self, topic: str, partition: int) -> KafkaNode:
        """The broker that leads a partition now."""
        metadata = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0}).list_topics(topic, timeout=10)
        return self.brokers[metadata.topics[topic].partitions[partition].leader - 1]

    def close(self) -> None:
        super().close()
        self._ports = {}

    @property
    def bootstrap(self) -> str:
        """`host:port,host:port,…`, for `bootstrap.servers`."""
        return ",".join(broker.address for broker in self.brokers)
