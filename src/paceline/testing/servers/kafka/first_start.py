"""The first start of a broker on a machine: it leaves what lets later ones start in two fifths of the CPU time.

Java archives the classes that it has loaded when a process ends (class data sharing); later processes map them. A
broker's storage, once formatted, is the same for all brokers but for their ids.
"""

from __future__ import annotations

import subprocess
import uuid
from functools import cache
from pathlib import Path
from typing import ClassVar

from confluent_kafka import Consumer, KafkaException, Producer

from paceline.testing.servers.build_cache import obtain
from paceline.testing.servers.failures import ServerFailed
from paceline.testing.servers.kafka import SNAPSHOT, KafkaServer, KeptFiles
from paceline.testing.servers.kafka.jars import first_start_directory

CLASSES = "classes.jsa"


@cache
def kept_files() -> KeptFiles | None:
    """What the first start has left; starts a broker for it if need be. One process does, the others wait for it.

    None if it can't be made or kept: then every start is like the first.
    """
    try:
        directory = obtain(first_start_directory(), _start_first)
        classes = directory / CLASSES
        return KeptFiles((directory / SNAPSHOT).read_bytes(), classes if classes.is_file() else None)
    except (OSError, ServerFailed, KafkaException, subprocess.TimeoutExpired):
        return None


def _start_first(scratch: Path, kept: Path) -> None:
    archive = scratch / CLASSES
    with FirstBroker(archive) as broker:
        snapshot = (broker.data / SNAPSHOT).read_bytes()
        broker.serve_once()
        broker.stop()
    kept.mkdir()
    (kept / SNAPSHOT).write_bytes(snapshot)
    if archive.is_file():  # a Java may have no class data sharing
        archive.rename(kept / CLASSES)


class FirstBroker(KafkaServer):
    """A broker that archives its classes when it is stopped."""

    stop_within: ClassVar[float] = 180.0

    def __init__(self, archive: Path) -> None:
        super().__init__()
        self._archive = archive

    def prepare(self) -> None:
        self.format_storage()

    def class_options(self) -> list[str]:
        return [f"-XX:ArchiveClassesAtExit={self._archive}"]

    def serve_once(self) -> None:
        """Loads the classes of producing and consuming, too."""
        client = {"bootstrap.servers": self.bootstrap, "log_level": 0}
        producer = Producer({**client, "enable.idempotence": True})
        producer.produce("first", b"")
        producer.flush(60)
        consumer = Consumer({**client, "group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest"})
        consumer.subscribe(["first"])
        consumer.consume(1, timeout=60)
        consumer.close()
