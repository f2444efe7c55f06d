"""Kafka in KRaft mode: one process that is broker and controller, from jars on Java 17."""

from __future__ import annotations

import base64
import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

from confluent_kafka.admin import AdminClient

from paceline.testing.servers.failures import ServerFailed
from paceline.testing.servers.kafka.jars import check_obtainable, jar_directory, java
from paceline.testing.servers.ports import PortClaim
from paceline.testing.servers.server import HOST, Server

# One broker: nothing can be replicated, and no other member will join the group. A killed broker may come back only
# when its last session has expired.
SINGLE_BROKER = {
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "3000",
    "num.network.threads": "2",
    "num.io.threads": "4",
    # An idle controller writes empty records twice a second by default, for metrics alone.
    "metadata.max.idle.interval.ms": "5000",
    # 128 MB by default, which Java clears at each start.
    "log.cleaner.dedupe.buffer.size": "4194304",
}
QUICK_START = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-XX:-UsePerfData"]
IN_STORAGE = {"log.dir", "log.dirs", "metadata.log.dir", "unstable.feature.versions.enable"}
"""Settings that decide what formatted storage holds."""
SNAPSHOT = "bootstrap.checkpoint"


class KeptFiles(NamedTuple):
    """What the first start on this machine has left for later ones; `first_start` makes it."""

    snapshot: bytes
    """The features of a new cluster, as formatted storage has them."""
    classes: Path | None
    """An archive of loaded classes."""


class KafkaServer(Server):
    """A Kafka broker that keeps its topics over `stop`, `kill` and `start`.

    `settings` are lines of server.properties. The first start on a machine fetches the jars (about 45 MB) and keeps an
    archive of the classes that a broker loads.
    """

    name: ClassVar[str] = "kafka"
    ready_within: ClassVar[float] = 180.0  # two runs of Java on a busy machine

    def __init__(self, *, settings: Mapping[str, str] | None = None, heap: str = "256m") -> None:
        super().__init__()
        self._java = java()
        check_obtainable()
        self._heap = heap
        self._settings = dict(settings or {})
        self._cluster_id = new_id()
        self._node_id = 1
        self._kept: KeptFiles | None = None

    def claim_ports(self) -> list[PortClaim]:
        return [PortClaim(), PortClaim()]

    def voters(self) -> str:
        """The controllers of the cluster, as `controller.quorum.voters` names them."""
        return f"{self._node_id}@{HOST}:{self._claims[1].number}"

    def run_java(self, options: Sequence[str], main: str, *arguments: str) -> list[str]:
        """The command line of one of Kafka's programs."""
        options = [f"-Xmx{self._heap}", *QUICK_START, *options, "-Dlog4j2.level=WARN", "-cp", f"{jar_directory()}/*"]
        return [self._java, *options, main, *arguments]

    def prepare(self) -> None:
        from paceline.testing.servers.kafka.first_start import kept_files

        self._kept = kept_files()
        if self._kept is None or IN_STORAGE & self._settings.keys():
            self.format_storage()
        else:
            self._copy_storage(self._kept.snapshot)

    def format_storage(self) -> None:
        """With Kafka's own program."""
        arguments = ["format", "--cluster-id", self._cluster_id, "--config", self._write_configuration()]
        done = subprocess.run(
            self.run_java([], "kafka.tools.StorageTool", *arguments),
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=self.ready_within,
            check=False,
        )
        if done.returncode:
            raise ServerFailed(f"kafka: formatting its storage failed:\n{done.stdout}{done.stderr}")

    def _copy_storage(self, snapshot: bytes) -> None:
        """What `format_storage` writes, without a run of Java: all but this file is the same for every broker."""
        properties = {
            "version": "1",
            "cluster.id": self._cluster_id,
            "node.id": str(self._node_id),
            "directory.id": new_id(),
        }
        self.data.mkdir()
        write_properties(self.data / "meta.properties", properties)
        (self.data / SNAPSHOT).write_bytes(snapshot)

    @property
    def data(self) -> Path:
        return self.directory / "data"

    def _write_configuration(self) -> str:
        broker, controller = (f"{HOST}:{claim.number}" for claim in self._claims)
        settings = {
            "process.roles": "broker,controller",
            "node.id": str(self._node_id),
            "listeners": f"PLAINTEXT://{broker},CONTROLLER://{controller}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": self.voters(),
            "log.dirs": str(self.data),
            **SINGLE_BROKER,
            **self._settings,
        }
        path = self.directory / "server.properties"
        write_properties(path, settings)
        return str(path)

    def class_options(self) -> list[str]:
        """Java's options about the archive of loaded classes."""
        return [f"-XX:SharedArchiveFile={self._kept.classes}"] if self._kept and self._kept.classes else []

    def command(self) -> Sequence[str]:
        return self.run_java(self.class_options(), "kafka.Kafka", self._write_configuration())

    def answers(self) -> bool:
        with socket.create_connection((HOST, self.port), timeout=1):
            pass  # librdkafka would wait a second before it retries a refused connection
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        metadata = admin.list_topics(timeout=5)
        return metadata.cluster_id == self._cluster_id and bool(metadata.brokers)

    @property
    def bootstrap(self) -> str:
        """`host:port`, for `bootstrap.servers`."""
        return self.address


def new_id() -> str:
    """A random id as Kafka writes them."""
    return base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=").replace("-", "_")


def write_properties(path: Path, properties: Mapping[str, str]) -> None:
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
