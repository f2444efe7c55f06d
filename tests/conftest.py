"""The order of the tests, and the effort of the property tests.

A test states its number of examples as `settings(max_examples=examples(500))`. So many are tried by `make test
PROFILE=thorough`, a tenth by `.ci/run` and a fiftieth by `make test`: other ones in each run.
"""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from hypothesis import settings

from paceline.sql import migrate
from tests import (
    compiled_statements,
    migrated,
    parsing,
    temporal_namespaces,
    trusted_certificates,
    warm_start,
    warm_workers,
)

if TYPE_CHECKING:
    from paceline.testing.servers.postgres import PostgresDatabases
    from tests.lent_databases import MigratedDatabases
    from tests.temporal_namespaces import TemporalNamespace

HERE = Path(__file__).parent
IN_MEMORY = "/dev/shm"
LONGEST = (
    "test_console_buttons.py",
    "test_schema.py",
    "test_temporal_outages.py",
    "test_payments_temporal.py",
    "test_secrets.py",
    "test_slot_processes.py",
    "test_wheel.py",
)
"""Files that take longer than the others. A worker that began one of them last would end last."""
AFTER_TYPES = ("test_document_programs.py", "test_types.py")
"""They check types, and need not check again what `make types` has until then."""
APART = {
    "test_dispatch_crashes.py",
    "test_envoy.py",
    "test_guides.py",
    "test_notifications_sender.py",
    "test_payments_answers.py",
    "test_payments_limit.py",
    "test_payments_matrix.py",
    "test_payments_switch.py",
    "test_payments_temporal.py",
    "test_schema.py",
    "test_secrets.py",
    "test_servers_lifetime.py",
    "test_sms_delivery.py",
    "test_sms_matrix.py",
    "test_temporal_outages.py",
}
"""Files whose tests share nothing that is expensive to make, so that several workers can share a file."""
LANES = {"acceptance": "acceptance", "faults": "faults", "gameday": "faults"}
"""Folders whose tests mostly wait for the processes that they start: `acceptance` for much that these compute, `faults`
for timeouts. If all workers took the one and then the other, the CPUs would be too few first and idle later."""
FIRST_HALF = "TESTS_FIRST_HALF"
"""The environment variable with the path of a file that is removed when half of the pieces have begun."""
PACE = {"faults": 0.7, "gameday": 0.7, "unit": 2}
"""Folders that come sooner than the others (below 1), so that no long wait is left for the end, or later."""

# No deadline for one example: on a busy machine any of them may take long.
settings.register_profile("thorough", max_examples=100, deadline=None)
settings.register_profile("quick", max_examples=10, deadline=None)
settings.register_profile("light", max_examples=2, deadline=None)
settings.load_profile("quick")


def write_to_memory() -> None:
    """Temporary files (databases, logs, browsers' profiles) go where no disk is written, if there is room for them."""
    with suppress(OSError):
        if "TMPDIR" not in os.environ and shutil.disk_usage(IN_MEMORY).free > 8 * 2**30:
            os.environ["TMPDIR"] = IN_MEMORY
            tempfile.tempdir = None  # to be asked for again


write_to_memory()
parsing.take_turns()
migrated.quicken_sqlite()
compiled_statements.share()
trusted_certificates.share()


@pytest.fixture
def every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """New databases are migrated step by step."""
    monkeypatch.setattr(migrate, "_upgrade", migrated.take_every_step)


@pytest.fixture(scope="session")
def migrated_postgres(postgres_server: PostgresDatabases) -> Iterator[MigratedDatabases]:
    from tests.lent_databases import MigratedDatabases

    databases = MigratedDatabases.on(postgres_server)
    yield databases
    databases.close()


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


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """In the xdist controller, before the first worker starts: they inherit the environment."""
    warm_start.start_for_all_workers()
    warm_workers.start(config, specs)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is loaded by now stays: the garbage collector need not look through all of it again and again, nor after
    every seven hundred objects through the newest."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 20, 50)
        gc.enable()


def piece(nodeid: str) -> str:
    """What one worker runs in one go: a file, or a test that shares nothing with the others of its file."""
    file = nodeid.partition("::")[0]
    return nodeid if file.rpartition("/")[2] in APART else file


def lane(nodeid: str) -> str:
    """Which workers begin with this test: those of its folder, or those that compute."""
    return LANES.get(nodeid.split("/")[1], "computing")


def lane_of(worker: str) -> str:
    """One worker per core computes; of the others every second is for faults."""
    number = int(worker.removeprefix("gw"))
    return "computing" if number < (os.cpu_count() or 1) else ("acceptance", "faults")[number % 2]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    """As `--dist loadfile`, by the pieces, in lanes."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class LoadPieces(LoadFileScheduling):  # type: ignore[misc]  # it has no types of its own
        most = 0
        """The pieces that there were at first."""

        def _split_scope(self, nodeid: str) -> str:
            return piece(nodeid)

        def _assign_work_unit(self, node: Any) -> None:
            """Takes the first piece of the worker's lane, or of any where there is none left."""
            self.most = max(self.most, len(self.workqueue))
            if (marker := os.environ.get(FIRST_HALF)) and len(self.workqueue) < self.most / 2:
                Path(marker).unlink(missing_ok=True)
            own = lane_of(node.gateway.id)
            if (first := next((scope for scope in self.workqueue if lane(scope) == own), None)) is not None:
                self.workqueue.move_to_end(first, last=False)
            super()._assign_work_unit(node)

    return LoadPieces(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Piece by piece: the longest first, then of all folders in turn, those that wait sooner and those of `unit` later.

    The workers of a run then rarely all wait (faults do little else) or all compute at once; and what is left at the
    end is short and keeps every core busy.
    """
    pieces = [list(tests) for _, tests in groupby(items, key=lambda item: piece(item.nodeid))]
    folders = [item.path.relative_to(HERE).parts[0] for (item, *_) in pieces]
    seen = dict.fromkeys(folders, 0)
    order = []
    for folder, (item, *_) in zip(folders, pieces, strict=True):
        seen[folder] += 1
        long = LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST)
        late = item.path.name in AFTER_TYPES
        share = seen[folder] / folders.count(folder)
        order.append((long, late, share * PACE.get(folder, 1)))
    items[:] = [
        item for _, tests in sorted(zip(order, pieces, strict=True), key=lambda pair: pair[0]) for item in tests
    ]
