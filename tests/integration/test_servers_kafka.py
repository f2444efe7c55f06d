"""The Kafka broker: one per run for everyone, and private ones that can be broken."""

from __future__ import annotations

import re
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer

from paceline.testing import KafkaServer, ServerUnavailable
from paceline.testing.availability import available, require
from paceline.testing.servers.kafka import first_start, jars


def produce(bootstrap: str, topic: str, *values: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
    for value in values:
        producer.produce(topic, value.encode())
    assert producer.flush(60) == 0


def consume(bootstrap: str, topic: str, count: int) -> list[str]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": str(uuid.uuid4()),
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    try:
        messages = consumer.consume(count, timeout=60)
    finally:
        consumer.close()
    if errors := [message.error() for message in messages if message.error()]:
        raise KafkaException(errors[0])
    return [(message.value() or b"").decode() for message in messages]


def test_the_shared_broker_carries_messages(kafka_bootstrap: str) -> None:
    topic = f"servers-{uuid.uuid4()}"
    produce(kafka_bootstrap, topic, "a", "b")
    assert consume(kafka_bootstrap, topic, 2) == ["a", "b"]


def test_messages_and_the_port_survive_stop_kill_and_restart(own_kafka: KafkaServer) -> None:
    bootstrap = own_kafka.bootstrap
    produce(bootstrap, "kept", "a")
    own_kafka.restart()
    produce(bootstrap, "kept", "b")
    own_kafka.kill()
    assert not own_kafka.running
    own_kafka.start()
    assert own_kafka.bootstrap == bootstrap
    assert consume(bootstrap, "kept", 2) == ["a", "b"]


def test_loaded_classes_are_kept_for_later_starts(kafka_bootstrap: str) -> None:
    kept = first_start.kept_files()
    assert kept is not None
    assert kept.classes is not None
    assert kept.classes.stat().st_size > 1_000_000


class PreparedKafka(KafkaServer):
    """A broker with storage, that does not run."""

    def _launch(self) -> None:
        pass

    def storage(self) -> dict[str, list[bytes]]:
        """By file: the names of its properties, or the features of a cluster with their levels."""
        parts = re.compile(rb"^[a-z.]+(?==)|[a-z.]{5,}\x00.", re.MULTILINE)
        return {path.name: sorted(parts.findall(path.read_bytes())) for path in self.data.iterdir()}


def test_storage_without_a_run_of_java_is_as_kafka_formats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with available("kafka"), PreparedKafka() as server:
        copied = server.storage()
    monkeypatch.setattr(first_start, "kept_files", lambda: None)
    with PreparedKafka() as server:
        assert server.storage() == copied
        assert len(copied["bootstrap.checkpoint"]) > 1


def test_where_nothing_can_be_kept_every_start_is_like_the_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    require("kafka")
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert first_start.kept_files.__wrapped__() is None


def test_without_java_it_is_unavailable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerUnavailable, match="no Java"):
        jars.installed_java.__wrapped__()


def test_an_old_java_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    old.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ServerUnavailable, match=r"(?s)Java 17 or newer is needed.*11\.0\.2"):
        jars.installed_java.__wrapped__()


def test_without_cache_and_maven_it_is_unavailable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerUnavailable, match="no Maven"):
        jars.check_obtainable()


def test_a_fetch_that_fails_leaves_no_half_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    maven = tmp_path / "mvn"
    maven.write_text("#!/bin/sh\nmkdir jars; touch jars/half.jar; echo 'no route to https://somewhere/x.jar'; exit 1\n")
    maven.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(ServerUnavailable, match=r"(?s)could not fetch.*no route to …"):
        jars.jar_directory()
    assert [path.name for path in (tmp_path / "paceline").iterdir()] == [f"{jars.cache_directory().name}.lock"]
