"""The pytest plugin: `-p paceline.testing.plugin` gives a test suite paceline's fixtures.

Shared servers (`postgres_url`, `redis_url`, …) start at their first use, once per run, also under pytest-xdist. Tests
that stop, kill or pause a server take one of their own (`own_postgres`, `own_redis`, …). A test is skipped, with the
reason, if its server is not available on this machine; `PACELINE_REQUIRE=all`, or a list of names with commas, makes
that a failure. Tests are marked with the servers their fixtures need: `-m "not kafka"`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

import paceline.testing
from paceline.testing.availability import available, check_requirements, require
from paceline.testing.shared import SharedServers, SharedServersClient

if TYPE_CHECKING:
    from paceline.testing.servers.postgres import PostgresDatabases
    from paceline.testing.servers.redis_cluster import RedisClusterAddress

SHARED = pytest.StashKey[SharedServers | SharedServersClient]()
SHARED_ADDRESS = "paceline_servers"

MARKERS = {
    "postgres": "needs a real PostgreSQL",
    "redis": "needs a real Redis",
    "temporal": "needs a real Temporal dev server",
    "kafka": "needs a real Kafka broker",
}
FIXTURES = {
    "postgres_server": "postgres",
    "own_postgres": "postgres",
    "redis_url": "redis",
    "redis_cluster": "redis",
    "redis_sentinel": "redis",
    "own_redis": "redis",
    "temporal_address": "temporal",
    "own_temporal": "temporal",
    "kafka_bootstrap": "kafka",
    "own_kafka": "kafka",
}


def pytest_configure(config: pytest.Config) -> None:
    for name, meaning in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")
    check_requirements()
    workerinput: dict[str, Any] = getattr(config, "workerinput", {})
    config.stash[SHARED] = (
        SharedServersClient(*workerinput[SHARED_ADDRESS]) if SHARED_ADDRESS in workerinput else SharedServers()
    )


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """In the xdist controller, before a worker starts."""
    shared = node.config.stash[SHARED]
    node.workerinput[SHARED_ADDRESS] = tuple(shared.listen())


def pytest_unconfigure(config: pytest.Config) -> None:
    if shared := config.stash.get(SHARED, None):
        shared.close()


@pytest.hookimpl(tryfirst=True)  # so that other hooks, as that of `-m`, see the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for fixture in getattr(item, "fixturenames", ()):
            if fixture in FIXTURES:
                item.add_marker(FIXTURES[fixture])


@pytest.fixture(scope="session")
def postgres_server(pytestconfig: pytest.Config) -> PostgresDatabases:
    """The databases of the run's shared PostgreSQL."""
    with available("postgres"):
        from paceline.testing.servers.postgres import PostgresDatabases

        return PostgresDatabases(pytestconfig.stash[SHARED].locate("postgres"))


@pytest.fixture
def postgres_url(postgres_server: PostgresDatabases) -> Iterator[str]:
    """The URL of a fresh, empty database in the shared PostgreSQL; dropped afterwards."""
    name = f"test_{uuid.uuid4().hex[:16]}"
    yield postgres_server.create(name)
    postgres_server.drop(name)


@pytest.fixture
def redis_url(pytestconfig: pytest.Config) -> Iterator[str]:
    """The URL of an empty database in the shared Redis, this test's only."""
    shared = pytestconfig.stash[SHARED]
    with available("redis"):
        port = shared.locate("redis")
    import redis

    number = shared.lend_database()
    url = f"redis://127.0.0.1:{port}/{number}"
    with redis.Redis.from_url(url) as client:
        client.flushdb()
    yield url
    shared.return_database(number)


@pytest.fixture(scope="session")
def redis_cluster(pytestconfig: pytest.Config) -> RedisClusterAddress:
    """The address of the run's shared Redis Cluster of three masters; tests are isolated by their keys."""
    with available("redis"):
        location: RedisClusterAddress = pytestconfig.stash[SHARED].locate("redis_cluster")
        return location


@pytest.fixture(scope="session")
def temporal_address(pytestconfig: pytest.Config) -> str:
    """`host:port` of the run's shared Temporal, in memory; tests are isolated by workflow ids and task queues."""
    with available("temporal"):
        return str(pytestconfig.stash[SHARED].locate("temporal"))


@pytest.fixture(scope="session")
def kafka_bootstrap(pytestconfig: pytest.Config) -> str:
    """`host:port` of the run's shared Kafka broker; tests are isolated by topics and groups."""
    with available("kafka"):
        return str(pytestconfig.stash[SHARED].locate("kafka"))


def _own(server: str, name: str, doc: str) -> Any:
    """A fixture that runs the server of that name for one test."""

    def own() -> Iterator[Any]:
        require(server)
        with available(server), getattr(paceline.testing, name)() as running:
            yield running

    own.__doc__ = doc
    return pytest.fixture(own)


own_postgres = _own("postgres", "PostgresServer", "A PostgreSQL of the test's own, to kill, pause and restart.")
own_redis = _own("redis", "RedisServer", "A Redis of the test's own that keeps its data, to kill, pause and restart.")
redis_sentinel = _own(
    "redis", "RedisSentinel", "A master, a replica and three sentinels of the test's own, to `fail_over`."
)
own_temporal = _own(
    "temporal", "TemporalServer", "A Temporal of the test's own that keeps its workflows, to kill, pause and restart."
)
own_kafka = _own("kafka", "KafkaServer", "A Kafka broker of the test's own, to kill, pause and restart.")
