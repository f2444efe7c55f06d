"""Eight service processes on one PostgreSQL, thousands of events for one instant: nothing lost, doubled, over-full or
left empty; and the same with a process killed in the middle and its callers going elsewhere."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise

import psycopg
import pytest

from paceline.testing.load import KeepAlive
from tests.effort import is_thorough
from tests.migrated_postgres import MigratedDatabases

PROCESSES = 8
CALLERS = 24
"""Connections to each process."""
EVENTS = 16_000 if is_thorough() else 2_000
LIMIT, WINDOW_S = 100, 4


class Service:
    """A `paceline serve` of the test's own."""

    def __init__(self, database_url: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "paceline", "serve", "--port", "0"],
            env={**os.environ, "PACELINE_DATABASE_URL": database_url, "PACELINE_LOG_LEVEL": "error"},
            stdout=subprocess.PIPE,
            text=True,
        )

    def wait_until_up(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if "http://127.0.0.1:" in line:
                self.port = int(line.partition("http://127.0.0.1:")[2].split("/")[0].split()[0])
                return
        raise AssertionError("the service ended before it was up")

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=60)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(scope="module")
def database_url(migrated_postgres: MigratedDatabases) -> Iterator[str]:
    with migrated_postgres.lend() as url:
        yield url


@pytest.fixture(scope="module")
def services(database_url: str) -> Iterator[list[Service]]:
    started = [Service(database_url) for _ in range(PROCESSES)]
    try:
        for service in started:
            service.wait_until_up()
        yield started
    finally:
        for service in started:
            service.stop()


async def ask_all(services: list[Service], instant: str, prefix: str, on_progress: asyncio.Event) -> dict[str, str]:
    """Every event, from concurrent callers over all processes; a caller whose process dies retries with the next one.
    Returns the acknowledged times. `on_progress` is set once a third is done."""
    numbers = iter(range(EVENTS))
    answers: dict[str, str] = {}

    async def caller(home: int) -> None:
        async with at(home) as connection:
            for number in numbers:
                event_id = f"{prefix}-{number}"
                body = json.dumps({"eventId": event_id, "requestedTime": instant}).encode()
                for attempt in range(PROCESSES):
                    try:
                        status, answer = await connection[0].post("/api/v1/slots", body)
                    except OSError:
                        await connection[0].close()
                        connection[0] = KeepAlive(services[(home + attempt + 1) % PROCESSES].port)
                        continue
                    assert status == 200, answer
                    answers[event_id] = json.loads(answer)["scheduledTime"]
                    break
                else:
                    raise AssertionError(f"no process took {event_id}")
                if len(answers) == EVENTS // 3:
                    on_progress.set()

    @asynccontextmanager
    async def at(home: int) -> AsyncIterator[list[KeepAlive]]:
        connection = [KeepAlive(services[home].port)]
        try:
            yield connection
        finally:
            await connection[0].close()

    await asyncio.gather(*(caller(n % PROCESSES) for n in range(PROCESSES * CALLERS)))
    return answers


def check(database_url: str, instant: str, answers: dict[str, str]) -> None:
    """The acknowledged slots are the booked ones, and are packed without a gap."""
    with psycopg.connect(database_url) as connection:
        rows = connection.execute(
            "SELECT event_id, scheduled_at AT TIME ZONE 'UTC', window_start AT TIME ZONE 'UTC' FROM paceline_slot"
            " WHERE requested_at = %s",
            (instant,),
        ).fetchall()
        windows = connection.execute(
            "SELECT window_start AT TIME ZONE 'UTC', taken FROM paceline_slot_window WHERE window_start >= %s"
            " ORDER BY 1 LIMIT %s",
            (instant, EVENTS // LIMIT + 10),
        ).fetchall()
    booked = {event_id: f"{at.isoformat(timespec='milliseconds')}Z" for event_id, at, _ in rows}
    assert booked == answers
    held = Counter(window for _, _, window in rows)
    assert set(held.values()) == {LIMIT}, "every window is exactly full"
    starts = sorted(held)
    assert len(starts) == EVENTS // LIMIT
    assert {(after - before).total_seconds() for before, after in pairwise(starts)} == {WINDOW_S}
    assert {start: taken for start, taken in windows if start <= starts[-1]} == held


@pytest.mark.timeout(600)
async def test_eight_processes_pack_one_instant_exactly(services: list[Service], database_url: str) -> None:
    instant = "2031-05-01T16:00:00Z"
    answers = await ask_all(services, instant, "calm", asyncio.Event())
    assert len(answers) == EVENTS
    check(database_url, instant, answers)


@pytest.mark.timeout(600)
async def test_a_process_killed_in_the_middle_loses_and_doubles_nothing(
    services: list[Service], database_url: str
) -> None:
    instant = "2032-05-01T16:00:00Z"
    under_way = asyncio.Event()

    async def killer() -> None:
        await under_way.wait()
        services[3].kill()

    killing = asyncio.create_task(killer())
    answers = await ask_all(services, instant, "killed", under_way)
    await killing
    assert len(answers) == EVENTS
    check(database_url, instant, answers)
