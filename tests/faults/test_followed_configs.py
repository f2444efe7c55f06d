"""Booked slots follow a system whose capacity halves and recovers: seen over HTTP, by a service that nobody tells."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter, deque
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx2 as httpx

from paceline import Aimd, Downstream
from tests.acceptance.service import Service, run, until

FULL, HALF, AMPLE = 50, 25, 100
CALLERS = 12
BOOKED = 300
LATENCY = 0.005
"""Of the bank, in seconds."""


class Bank:
    """Takes so many calls in a second, and refuses the others."""

    def __init__(self) -> None:
        self.capacity = AMPLE
        self._taken: deque[float] = deque()

    def takes(self) -> bool:
        now = time.monotonic()
        while self._taken and self._taken[0] <= now - 1:
            self._taken.popleft()
        if len(self._taken) >= self.capacity:
            return False
        self._taken.append(now)
        return True


async def test_the_plan_follows_a_bank_whose_capacity_halves_and_recovers(tmp_path: Path) -> None:
    bank = Bank()
    adapt = Aimd(floor="5/second", ceiling=f"{AMPLE}/second", increase=0.2)
    url = f"sqlite:///{tmp_path / 'paceline.db'}"
    with Service(tmp_path, PACELINE_SLOTS_FOLLOW_AFTER="PT2S") as service, service.client() as client:
        options = ("--max", str(FULL), "--window", "PT1S", "--follow", "bank", "--json")
        shown = json.loads((await asyncio.to_thread(run, tmp_path, "config", "set", "bank", *options)).stdout)
        assert (shown["follow"], shown["maxPerWindow"], shown["fullMaxPerWindow"]) == ("bank", FULL, None)
        at = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
        events = [{"eventId": f"pay-{number}", "requestedTime": at} for number in range(BOOKED)]
        assert client.post("/api/v1/slots/batch", json={"configName": "bank", "events": events}).status_code == 200

        async with Downstream("bank", url, adapt=adapt, counted="departure", call_timeout=1) as downstream:

            async def caller() -> None:
                while True:
                    async with downstream.call(timeout=None) as call:
                        await asyncio.sleep(LATENCY)
                        if not bank.takes():
                            call.refused()

            callers = [asyncio.create_task(caller()) for _ in range(CALLERS)]
            try:
                await asyncio.to_thread(until, lambda: _calls(client) >= 4 * FULL)
                assert _limit(client) == (FULL, None)
                bank.capacity = HALF
                await asyncio.to_thread(until, lambda: HALF * 0.6 <= _limit(client)[0] <= HALF * 1.3)
                assert _limit(client)[1] == FULL
                await asyncio.to_thread(until, lambda: max(_windows(client).values()) <= _limit(client)[0])
                bank.capacity = AMPLE
                await asyncio.to_thread(until, lambda: _limit(client) == (FULL, None))
                await asyncio.to_thread(until, lambda: len(_windows(client)) <= BOOKED // FULL + 2)
            finally:
                for task in callers:
                    task.cancel()
                    with suppress(asyncio.CancelledError):
                        await task
        entries = client.get("/admin/audit").json()
        followed = [entry for entry in entries if entry["caller"] == "follow:bank"]
        assert len(followed) >= 2
        assert {(entry["path"], entry["status"]) for entry in followed} == {("config bank", 200)}
        assert "config bank follows downstream bank" in service.log


def _limit(client: httpx.Client) -> tuple[int, int | None]:
    config = client.get("/admin/rate-limit/config", params={"name": "bank"}).json()
    return config["maxPerWindow"], config["fullMaxPerWindow"]


def _calls(client: httpx.Client) -> int:
    return sum(each["calls"] for each in client.get("/admin/downstreams").json()["downstreams"])


def _windows(client: httpx.Client) -> Counter[str]:
    """How many slots lie in each window."""
    slots = client.get("/api/v1/slots", params={"configName": "bank", "limit": BOOKED}).json()["slots"]
    assert len(slots) == BOOKED
    return Counter(slot["windowStart"] for slot in slots)
