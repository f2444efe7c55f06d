"""What an idle worker costs its database, as that counts it: no more with a hundred task types than with one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest

from paceline.testing import eventually
from tests.migrated_postgres import MigratedDatabases

ROOT = Path(__file__).parents[2]
TRANSACTIONS = 60
"""Of the worker with one type; together with those of its start, they take about 20 seconds."""

pytestmark = [pytest.mark.postgres, pytest.mark.full]


class Usage(NamedTuple):
    transactions: int
    connections: int


@contextmanager
def idle_worker(url: str, types: int) -> Iterator[None]:
    command = [sys.executable, "-m", "tests.integration.types_process", url, str(types)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            yield
        finally:
            process.terminate()


def usage(observer: psycopg.Connection[tuple[int, ...]], url: str) -> Usage:
    """What a database has counted so far, seen from another one."""
    name = url.rpartition("/")[2].partition("?")[0]
    row = observer.execute(
        "SELECT xact_commit, numbackends FROM pg_stat_database WHERE datname = %s",
        [name],
    ).fetchone()
    assert row is not None
    return Usage(*row)


async def test_a_hundred_idle_task_types_cost_no_more_than_one(migrated_postgres: MigratedDatabases) -> None:
    with ExitStack() as stack:
        one, hundred = (stack.enter_context(migrated_postgres.lend()) for _ in range(2))
        observer = stack.enter_context(psycopg.connect(migrated_postgres.server.url(), autocommit=True))
        for url, types in ((one, 1), (hundred, 100)):
            stack.enter_context(idle_worker(url, types))

        counted = [0]

        def settled() -> bool:
            """The transactions in which a hundred types were declared are counted, some seconds later."""
            counted.append(usage(observer, hundred).transactions)
            return counted[-1] - counted[-2] < counted[-1] / 20

        await eventually(settled, within=60, every=3)
        before = usage(observer, one), usage(observer, hundred)

        def passed() -> bool:
            return usage(observer, one).transactions - before[0].transactions >= TRANSACTIONS

        await eventually(passed, within=120, every=0.5)
        after = usage(observer, one), usage(observer, hundred)
        of_one, of_hundred = (new.transactions - old.transactions for old, new in zip(before, after, strict=True))
        sys.stderr.write(f"transactions of one type: {of_one}, of a hundred: {of_hundred}; connections: {after}\n")
        assert of_hundred <= 1.2 * of_one
        assert after[1].connections <= 1.2 * after[0].connections
