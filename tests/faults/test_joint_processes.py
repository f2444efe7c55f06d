"""Eight service processes on one PostgreSQL: bookings under one and several configs, cancels, re-plans, raised and
lowered limits and other window sizes at once, and one process killed. No window of any config is above its limit,
nothing is lost, no re-plan makes anything later, and the database sees no deadlock.

`PACELINE_TEST_JOINT_SECONDS` sets how long; a few seconds by default. `make joint-processes` takes a minute.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from paceline.durations import to_ms
from paceline.slots.stores.other_windows import parse_other_windows
from paceline.testing.load import KeepAlive
from paceline.testing.servers.postgres import PostgresDatabases
from tests.effort import is_thorough
from tests.faults.test_slot_processes import Service

PROCESSES = 8
CALLERS = 2
"""Connections to each process."""
SECONDS = float(os.environ.get("PACELINE_TEST_JOINT_SECONDS", "5" if is_thorough() else "2"))
INSTANTS = ["2031-05-01T16:00:00Z", "2031-05-01T16:00:01.500Z", "2031-05-01T17:00:00Z"]
LIMITS = {"bank": [40, 60, 25], "Scheme": [30, 20, 35], "merchant-*": [5, 7]}
"""What the limits are set to, again and again. The names are in no order that all collations agree on."""
SIZES = {"bank": 4000, "Scheme": 7000, "merchant-*": 10_000}
RESIZED = ["PT2S", "PT5S", "PT30S"]
MERCHANTS = 40
SETS = [
    ["bank"],
    ["resized"],
    ["merchant-{}"],
    ["bank", "merchant-{}"],
    ["merchant-{}", "bank"],
    ["Scheme", "bank", "resized"],
    ["resized", "merchant-{}", "Scheme", "bank"],
]
"""What events are booked under; a merchant is drawn for each."""


@pytest.fixture
def database_url(postgres_server: PostgresDatabases) -> Iterator[str]:
    yield postgres_server.create("joint_processes")
    postgres_server.drop("joint_processes")


@pytest.fixture
def services(database_url: str) -> Iterator[list[Service]]:
    started = [Service(database_url) for _ in range(PROCESSES)]
    try:
        for service in started:
            service.wait_until_up()
        yield started
    finally:
        for service in started:
            service.stop()


class Callers:
    """Callers of all processes. If its process dies, a caller continues with the next one."""

    def __init__(self, services: list[Service], seconds: float) -> None:
        self.services = services
        self.ends = time.monotonic() + seconds
        self.answers: dict[str, dict[str, Any]] = {}
        self.cancelled: set[str] = set()
        self.changes = self.replans = self.moved = 0

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.ends

    async def book(self, home: int, number: int) -> None:
        chance, turn = random.Random(1000 * home + number), 0
        connection = Connection(self.services, home)
        while not self.is_over:
            turn += 1
            ids = [f"{home}-{number}-{turn}-{part}" for part in range(1 if turn % 2 else 20)]
            names = [name.format(chance.randrange(MERCHANTS)) for name in chance.choice(SETS)]
            events = [{"eventId": event_id, "requestedTime": chance.choice(INSTANTS)} for event_id in ids]
            if len(events) == 1:
                body = {**events[0], "configNames": names}
                self.answers[ids[0]] = await connection.call("POST", "/api/v1/slots", body)
            else:
                batch = {"events": events, "configNames": names}
                results = (await connection.call("POST", "/api/v1/slots/batch", batch))["results"]
                self.answers.update(zip(ids, results, strict=True))
                gone = chance.choice(ids)
                self.cancelled.add(gone)
                await connection.call("DELETE", f"/api/v1/slots/{quote(gone, safe='')}", None)
        await connection.close()

    async def change(self, home: int) -> None:
        connection, turn = Connection(self.services, home), 0
        while not self.is_over:
            turn += 1
            for name, limits in LIMITS.items():
                body = {"configName": name, "maxPerWindow": limits[turn % len(limits)]}
                await connection.call("POST", "/admin/rate-limit/config", body)
            body = {"configName": "resized", "windowSize": RESIZED[turn % len(RESIZED)]}
            await connection.call("POST", "/admin/rate-limit/config", body)
            self.changes += 4
        await connection.close()

    async def replan(self, home: int, names: Sequence[str]) -> None:
        connection = Connection(self.services, home)
        while not self.is_over:
            for name in names:
                result = await connection.call("POST", "/api/v1/slots/replan", {"configName": name})
                self.moved += result["moved"]
            self.replans += 1
        await connection.close()

    async def kill_one(self, victim: int) -> None:
        await asyncio.sleep(SECONDS / 2)  # not to let time pass: the others work meanwhile
        self.services[victim].kill()


class Connection:
    """A connection to one process, and to the next one when that dies. Calls are idempotent and made again, also after
    a 503: on a machine with fewer cores than processes, a caller that waits for a lock may reach the database's
    deadline."""

    def __init__(self, services: list[Service], home: int) -> None:
        self._services = services
        self._home = home
        self._link = KeepAlive(services[home].port)

    async def call(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        for attempt in range(10 * PROCESSES):
            try:
                content = b"" if body is None else json.dumps(body).encode()
                status, answer = await self._link.request(method, path, content)
            except OSError:
                await self._link.close()
                self._home = (self._home + 1) % PROCESSES
                self._link = KeepAlive(self._services[self._home].port)
                continue
            if status == 503:
                continue
            if method == "DELETE" and status == 404 and attempt:
                return {}
            assert status == 200, (method, path, body, answer)
            value: dict[str, Any] = json.loads(answer)
            return value
        raise AssertionError(f"no process took {path}")

    async def close(self) -> None:
        await self._link.close()


@pytest.mark.timeout(600)
async def test_overlapping_sets_of_configs_hold_every_limit_while_limits_change(
    services: list[Service], database_url: str
) -> None:
    setup = Connection(services, 0)
    for name, limits in LIMITS.items():
        await setup.call("POST", "/admin/rate-limit/config", _config(name, limits[0], SIZES[name]))
    await setup.call("POST", "/admin/rate-limit/config", _config("resized", 10, 2000))
    for merchant in range(2):  # makes the configs that are planned again
        first = {"eventId": f"first-{merchant}", "requestedTime": INSTANTS[0], "configName": f"merchant-{merchant}"}
        await setup.call("POST", "/api/v1/slots", first)
    await setup.close()
    load = Callers(services, SECONDS)
    callers = [load.book(home, number) for home in range(PROCESSES) for number in range(CALLERS)]
    changers = load.change(1), load.change(2)
    # Short plans that are often overtaken by a change of a limit, beside long ones.
    replans = [load.replan(home, ["merchant-0", "merchant-1", "bank"]) for home in (0, 6, 7)]
    replans += [load.replan(home, ["bank", "Scheme", "merchant-0", "resized"]) for home in (4, 5)]
    await asyncio.gather(*callers, *changers, *replans, load.kill_one(3))
    assert load.changes
    assert load.answers
    slots = check(database_url, load)
    counts = f"{len(load.answers)} answers, {slots} slots, {len(load.cancelled)} cancelled, {load.changes} changes"
    counts += f", {load.replans} rounds of re-plans moved {load.moved}"
    logging.getLogger(__name__).info(counts)


def _config(name: str, limit: int, size_ms: int) -> dict[str, Any]:
    return {"configName": name, "maxPerWindow": limit, "windowSizeSecs": size_ms / 1000}


def check(database_url: str, load: Callers) -> int:
    """Compares what was answered, what is booked and what is counted. Returns how many slots there are."""
    with psycopg.connect(database_url) as connection:
        rows = connection.execute(
            "SELECT event_id, config_name, config_version, scheduled_at, window_start, other_windows FROM paceline_slot"
        ).fetchall()
        policies = connection.execute("SELECT name, version, policy FROM paceline_slot_policy").fetchall()
        windows = connection.execute("SELECT config_name, window_start, taken FROM paceline_slot_window").fetchall()
        active: dict[str, int] = {}
        active.update(connection.execute("SELECT name, version FROM paceline_slot_config").fetchall())
        deadlocks = connection.execute(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone()
    assert deadlocks == (0,)
    limit_of = {(name, version): json.loads(policy) for name, version, policy in policies}
    kept = {row[0]: row for row in rows}
    expected = load.answers.keys() - load.cancelled
    assert expected <= kept.keys(), "nothing that was answered is lost"
    assert not load.cancelled & kept.keys()
    charged: Counter[tuple[str, int]] = Counter()
    versions: dict[tuple[str, int], list[int]] = {}
    for event_id, name, version, scheduled, start, others in rows:
        places = [(name, version, to_ms(start)), *parse_other_windows(others)]
        if event_id in load.answers:
            answer = load.answers[event_id]
            assert to_ms(scheduled) <= to_ms(datetime.fromisoformat(answer["scheduledTime"])), "never later"
            assert [one["configName"] for one in answer["windows"]] == [place[0] for place in places]
        for config, booked_version, window_ms in places:
            size = _size_ms(limit_of[config, active[config]])
            charged[config, to_ms(scheduled) // size * size] += 1
            if config != "resized":
                assert window_ms == to_ms(scheduled) // size * size
                versions.setdefault((config, window_ms), []).append(booked_version)
    assert {(name, to_ms(start)): taken for name, start, taken in windows if taken} == charged
    # A window held less than the limit when a slot came into it, and versions only go up: so all that came by the
    # time of a version's last slot fit into that version's limit.
    for (config, _), booked in versions.items():
        for version in set(booked):
            most = limit_of[config, version]["maxPerWindow"]
            assert sum(one <= version for one in booked) <= most, (config, version)
    return len(rows)


def _size_ms(policy: dict[str, Any]) -> int:
    return round(float(policy["windowSize"].removeprefix("PT").removesuffix("S")) * 1000)
