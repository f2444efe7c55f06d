"""The mock cluster that librdkafka brings along: brokers in this process that fail as they are told to.

Python's driver has no interface to it, so its functions are called in the driver's own library.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import POINTER, byref, c_char_p, c_int, c_int16, c_int32, c_size_t, c_void_p
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import Consumer

NOT_LEADER = 6
_PRODUCE = 0
_PRODUCER = 0
_ONLY_BROKER = 1


class MockCluster:
    """One broker, whose topics have one partition."""

    def __init__(self, library: ctypes.CDLL, cluster: c_void_p) -> None:
        self._library = library
        self._cluster = cluster
        self.bootstrap = library.rd_kafka_mock_cluster_bootstraps(cluster).decode()
        library.rd_kafka_mock_start_request_tracking(cluster)

    def create(self, *topics: str) -> None:
        for topic in topics:
            assert self._library.rd_kafka_mock_topic_create(self._cluster, topic.encode(), 1, 1) == 0

    def fail_produce(self, error: int, *, after_ms: int) -> None:
        """The next produce request is refused after a while; those behind it are answered after that."""
        self._library.rd_kafka_mock_broker_push_request_error_rtts(
            self._cluster, _ONLY_BROKER, _PRODUCE, 1, c_int(error), c_int(after_ms)
        )

    def produced(self) -> int:
        """How many produce requests have come."""
        count = c_size_t()
        requests = self._library.rd_kafka_mock_get_requests(self._cluster, byref(count))
        keys = [self._library.rd_kafka_mock_request_api_key(requests[number]) for number in range(count.value)]
        self._library.rd_kafka_mock_request_destroy_array(requests, count)
        return keys.count(_PRODUCE)

    def values(self, topic: str, *, within: float = 10.0) -> list[str]:
        """The records of a topic, once there is one."""
        settings = {"bootstrap.servers": self.bootstrap, "group.id": "test", "auto.offset.reset": "earliest"}
        consumer = Consumer({**settings, "enable.partition.eof": True})
        consumer.subscribe([topic])
        values: list[str] = []
        deadline = time.monotonic() + within
        while time.monotonic() < deadline:
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                values.append((message.value() or b"").decode())
            elif message is not None and values:
                break
        consumer.close()
        return values


@contextmanager
def mock_cluster() -> Iterator[MockCluster]:
    """A cluster of one broker on loopback."""
    library = _library()
    settings = c_void_p(library.rd_kafka_conf_new())
    library.rd_kafka_conf_set(settings, b"log_level", b"0", None, c_size_t(0))
    reason = ctypes.create_string_buffer(256)
    client = library.rd_kafka_new(_PRODUCER, settings, reason, len(reason))
    assert client, reason.value
    cluster = c_void_p(library.rd_kafka_mock_cluster_new(client, 1))
    try:
        yield MockCluster(library, cluster)
    finally:
        library.rd_kafka_mock_cluster_destroy(cluster)
        library.rd_kafka_destroy(c_void_p(client))


def _library() -> ctypes.CDLL:
    bundled = Path(confluent_kafka.__file__).parent.with_name("confluent_kafka.libs").glob("librdkafka-*.so*")
    path = next(bundled, None)
    if path is None:
        pytest.skip("the driver was not installed with a library of its own")
    library = ctypes.CDLL(str(path))
    for name, result, arguments in (
        ("rd_kafka_conf_new", c_void_p, []),
        ("rd_kafka_conf_set", c_int, [c_void_p, c_char_p, c_char_p, c_char_p, c_size_t]),
        ("rd_kafka_new", c_void_p, [c_int, c_void_p, c_char_p, c_size_t]),
        ("rd_kafka_destroy", None, [c_void_p]),
        ("rd_kafka_mock_cluster_new", c_void_p, [c_void_p, c_int]),
        ("rd_kafka_mock_cluster_destroy", None, [c_void_p]),
        ("rd_kafka_mock_cluster_bootstraps", c_char_p, [c_void_p]),
        ("rd_kafka_mock_topic_create", c_int, [c_void_p, c_char_p, c_int, c_int]),
        ("rd_kafka_mock_start_request_tracking", None, [c_void_p]),
        ("rd_kafka_mock_get_requests", POINTER(c_void_p), [c_void_p, POINTER(c_size_t)]),
        ("rd_kafka_mock_request_api_key", c_int16, [c_void_p]),
        ("rd_kafka_mock_request_destroy_array", None, [POINTER(c_void_p), c_size_t]),
        ("rd_kafka_mock_broker_push_request_error_rtts", c_int, [c_void_p, c_int32, c_int16, c_size_t]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
