"""The tiers of the tests, the effort of the property tests, and what several folders' tests are lent.

`make test` runs the quick tier, `make test-rest` what is marked `full`: every test outside the folders `QUICK`, and
every one that needs a server, unless it is marked `quick`; and what is marked `full` by hand.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from hypothesis import settings

from tests import temporal_namespaces

if TYPE_CHECKING:
    from paceline.testing.servers.postgres import PostgresDatabases
    from tests.migrated_postgres import MigratedDatabases
    from tests.temporal_namespaces import TemporalNamespace

QUICK = {"unit", "contracts", "integration", "interleavings", "project", "simulation"}
"""Folders whose tests are in the quick tier if they need no server."""
SERVER = re.compile("postgres|oracle|redis|sentinel|temporal|kafka")
"""In a mark or in the name of a parameter: the test needs a server, or the slow stand-in for one."""
IN_MEMORY = "/dev/shm"

# No deadline for one example: on a busy machine any of them may take long.
settings.register_profile("thorough", max_examples=100, deadline=None)
settings.register_profile("quick", max_examples=10, deadline=None)
settings.load_profile("quick")


def write_to_memory() -> None:
    """Temporary files (databases, logs, browsers' profiles) go where no disk is written, if there is room for them."""
    with suppress(OSError):
        if "TMPDIR" not in os.environ and shutil.disk_usage(IN_MEMORY).free > 8 * 2**30:
            os.environ["TMPDIR"] = IN_MEMORY
            tempfile.tempdir = None  # to be asked for again


write_to_memory()


def is_quick(item: pytest.Item) -> bool:
    marks = {mark.name for mark in item.iter_markers()}
    if "quick" in marks or "full" in marks:
        return "quick" in marks
    parameters = getattr(item, "callspec", None)
    needs = [*marks, parameters.id if parameters else ""]
    return item.nodeid.split("/")[1] in QUICK and not any(map(SERVER.search, needs))


def pytest_sessionstart() -> None:
    """What this environment has of the applications is written down when they are installed."""
    found = {entry.name for entry in metadata.entry_points(group="paceline.apps")}
    if not found >= {"payments", "sms"}:
        pytest.exit("install the applications: .venv/bin/uv pip install --no-deps -e apps/payments -e apps/sms", 3)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what is not in the quick tier, before `-m` selects; tests have the marks of the servers that their fixtures
    need."""
    for item in items:
        if not is_quick(item):
            item.add_marker("full")


@pytest.fixture(scope="session")
def migrated_postgres(postgres_server: PostgresDatabases) -> MigratedDatabases:
    from tests.migrated_postgres import MigratedDatabases

    return MigratedDatabases(postgres_server)


@pytest.fixture
def postgres_url(migrated_postgres: MigratedDatabases) -> Iterator[str]:
    """The URL of a database at this version's schema, without rows, in the shared PostgreSQL."""
    with migrated_postgres.lend() as url:
        yield url


@pytest.fixture
def empty_postgres_url(postgres_server: PostgresDatabases) -> Iterator[str]:
    """The URL of a database with nothing in it, dropped afterwards."""
    name = f"empty_{uuid4().hex[:16]}"
    yield postgres_server.create(name)
    postgres_server.drop(name)


@pytest.fixture
def temporal_namespace(temporal_address: str) -> Iterator[TemporalNamespace]:
    """A namespace of the test's own in the shared Temporal: for installations, which all have the same task queues and
    Schedules."""
    with temporal_namespaces.lent(temporal_address) as namespace:
        yield namespace


@pytest.fixture
def host_url() -> Iterator[str]:
    """A `host://` of the test's own, whose files are removed afterwards."""
    name = uuid4().hex
    yield f"host://{name}"
    for folder in ("/dev/shm", "/tmp"):
        for path in Path(folder).glob(f"paceline-*-{name}*"):
            path.unlink()
