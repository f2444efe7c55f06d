"""Operators see the downstreams of all programs, and stop and slow them down, over HTTP and on the command line."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from paceline import Downstream, RateLimitExceeded
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


def _command(directory: Path, *arguments: str) -> str:
    return run(directory, *arguments).stdout


def _no_field(name: str) -> str | None:
    return None
