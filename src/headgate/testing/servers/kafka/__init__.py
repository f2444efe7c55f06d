"""Kafka in KRaft mode: one process that is broker and controller, from jars on Java 17."""

from __future__ import annotations

import base64
import os
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from typing import ClassVar

from confluent_kafka.admin import AdminClient

from headgate.testing.servers.failures import ServerFailed
from headgate.testing.servers.kafka.jars import check_obtainable, class_archive, jar_directory, java
from headgate.testing.servers.ports import PortClaim
from headgate.testing.servers.server import HOST, Server

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
}
QUICK_START = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-XX:-UsePerfData"]
USE_ARCHIVE = "-XX:SharedArchiveFile="


class KafkaServer(Server):
    """A Kafka broker that keeps its topics over `stop`, `kill` and `start`.

    `settings` are lines of server.properties. The first start on a machine fetches the jars (about 45 MB).
    """

    name: ClassVar[str] = "kafka"
    ready_within: ClassVar[float] = 180.0  # two runs of Java on a busy machine

    def __init__(self, *, settings: Mapping[str, str] | None = None, heap: str = "256m") -> None:
        super().__init__()
        self._java = java()
        check_obtainable()
        self._heap = heap
        self._settings = dict(settings or {})
        self._cluster_id = new_cluster_id()
        self._node_id = 1

    def claim_ports(self) -> list[PortClaim]:
        return [PortClaim(), PortClaim()]

    def voters(self) -> str:
        """The controllers of the cluster, as `controller.quorum.voters` names them."""
        return f"{self._node_id}@{HOST}:{self._claims[1].number}"

    def _run(self, classes: str, main: str, *arguments: str) -> list[str]:
        options = [f"-Xmx{self._heap}", *QUICK_START, classes, "-Dlog4j2.level=WARN", "-cp", f"{jar_directory()}/*"]
        return [self._java, *options, main, *arguments]

    def prepare(self) -> None:
        format_storage = ["format", "--cluster-id", self._cluster_id, "--config", self._write_configuration()]
        # Class data sharing: the first start on this machine writes an archive of loaded classes, and later ones start
        # in half the time. It is renamed into place, as others may start meanwhile.
        archive, scratch = class_archive(), self.directory / "classes.jsa"
        classes = f"{USE_ARCHIVE}{archive}" if archive.is_file() else f"-XX:ArchiveClassesAtExit={scratch}"
        done = subprocess.run(
            self._run(classes, "kafka.tools.StorageTool", *format_storage),
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=self.ready_within,
            check=False,
        )
        if done.returncode:
            raise ServerFailed(f"kafka: formatting its storage failed:\n{done.stdout}{done.stderr}")
        if scratch.is_file():
            beside = archive.with_name(f"{archive.name}.{os.getpid()}")
            shutil.move(scratch, beside)
            beside.rename(archive)

    def _write_configuration(self) -> str:
        broker, controller = (f"{HOST}:{claim.number}" for claim in self._claims)
        settings = {
            "process.roles": "broker,controller",
            "node.id": str(self._node_id),
            "listeners": f"PLAINTEXT://{broker},CONTROLLER://{controller}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": self.voters(),
            "log.dirs": str(self.directory / "data"),
            **SINGLE_BROKER,
            **self._settings,
        }
        path = self.directory / "server.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return str(path)

    def command(self) -> Sequence[str]:
        return self._run(f"{USE_ARCHIVE}{class_archive()}", "kafka.Kafka", self._write_configuration())

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


def new_cluster_id() -> str:
    return base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=").replace("-", "_")
