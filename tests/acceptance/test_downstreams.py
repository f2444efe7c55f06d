"""Operators see the downstreams of all programs, and stop and slow them down, over HTTP and on the command line."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from paceline import Downstream, RateLimitExceeded
from paceline.durations import parse_instant
from tests.acceptance.service import Service, run, until


async def test_operators_see_pause_and_slow_down_what_programs_call(tmp_path: Path) -> None:
    with Service(tmp_path) as service:
        bank = Downstream("bank", f"sqlite:///{tmp_path / 'paceline.db'}", rate="50/second", call_timeout=1)
        with service.client() as client:
            async with bank.call() as call:
                await call.responded(503, _no_field)
            await bank._observations.flush()
            (shown,) = client.get("/admin/downstreams").json()["downstreams"]
            assert (shown["name"], shown["rate"], shown["effectiveRate"]) == ("bank", "50/second", 50)
            assert (shown["calls"], shown["failed"], shown["throttled"], shown["unknown"]) == (1, 1, 0, 0)

            paused = client.patch("/admin/downstreams/bank", json={"paused": True, "rate": "10/second"})
            assert (paused.status_code, paused.json()["effectiveRate"]) == (200, 10)
            assert (await bank.state()).paused is not None
            with pytest.raises(RateLimitExceeded):
                async with bank.call(timeout=0.2):
                    raise AssertionError
            listed = await asyncio.to_thread(_command, tmp_path, "downstreams", "--json")
            assert [(each["name"], each["paused"]) for each in json.loads(listed)] == [("bank", "by an operator")]
            await asyncio.to_thread(_command, tmp_path, "downstreams", "bank", "--resume", "--rate", "own")
            async with bank.call(timeout=5):
                pass
            assert (await bank.state()).effective == 50

            for name, body, status, words in (
                ("bank", {"rate": "51/second"}, 400, "above the program's own rate 50/second"),
                ("bank", {"rate": "often"}, 400, "rate"),
                ("bank", {"paused": "yes"}, 400, "paused"),
                ("bank", {}, 400, "paused"),
                ("nobody", {"paused": True}, 404, "nobody"),
            ):
                refused = client.patch(f"/admin/downstreams/{name}", json=body)
                assert (refused.status_code, words in refused.text) == (status, True), refused.text
            await bank.close()
            measured = 'downstream_rate{downstream="bank"} 50'
            until(lambda: measured in client.get("/metrics").text)


async def test_what_waits_in_other_processes_is_seen_and_a_store_that_is_away_is_named(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'paceline.db'}"
    async with Downstream("bank", url, rate="50/second") as bank, Downstream("bank", url, rate="50/second") as other:
        await other.pause()
        waiting = [asyncio.create_task(bank.call(timeout=None).enter()) for _ in range(3)]
        async with asyncio.timeout(20):
            while (await other.state()).waiting < len(waiting):
                await bank._observations.flush()
        listed = await asyncio.to_thread(run, tmp_path, "downstreams", PACELINE_REDIS_URL="redis://127.0.0.1:1")
        assert listed.stderr.splitlines()[-1] == "the Redis can't be reached: its downstreams are missing"
        titles, row = (line.split() for line in listed.stdout.splitlines())
        assert row[titles.index("waiting")] == "3", listed.stdout
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        await bank._observations.flush()
        assert (await other.state()).waiting == 0
        await other.resume()


def test_payments_are_calls_of_a_downstream_that_operators_pause(tmp_path: Path) -> None:
    party = {"name": "A", "iban": "DE89370400440532013000"}
    payment = {"amount": "1.00", "currency": "EUR", "payer": party, "payee": party | {"iban": "GB29NWBK60161331926819"}}
    with Service(tmp_path, PACELINE_SLOTS_DEFAULT_WINDOW="PT0.1S") as service, service.client() as client:

        def bank() -> dict[str, Any]:
            shown = client.get("/admin/downstreams").json()["downstreams"]
            return next((each for each in shown if each["name"] == "payments"), {"calls": 0})

        def pay(name: str) -> datetime:
            body = {"paymentId": name, "executeAt": datetime.now(UTC).isoformat(), **payment}
            accepted = client.post("/api/v1/payments", json=body)
            assert accepted.status_code == 202, accepted.text
            return parse_instant(accepted.json()["scheduledTime"])

        pay("pay-1")
        until(lambda: bank()["calls"] == 1)
        assert (bank()["rate"], bank()["throttled"], bank()["unknown"]) == ("50/second", 0, 0)
        assert client.patch("/admin/downstreams/payments", json={"paused": True}).status_code == 200
        due = pay("pay-2")
        until(lambda: datetime.now(UTC) > due + timedelta(seconds=2))
        assert bank()["calls"] == 1, "it waits"
        assert client.patch("/admin/downstreams/payments", json={"paused": False}).status_code == 200
        until(lambda: bank()["calls"] == 2)


def _command(directory: Path, *arguments: str) -> str:
    return run(directory, *arguments).stdout


def _no_field(name: str) -> str | None:
    return None
