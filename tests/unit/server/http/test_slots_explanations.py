"""Explanations of slots over HTTP and on the command line: under several configs, and after a config was evicted."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from paceline.durations import format_instant, to_ms
from paceline.server.cli import main
from paceline.slots.model import SlotRequest, WindowPolicy
from paceline.slots.scheduler import SlotScheduler
from paceline.slots.stores import slot_store
from tests.unit.server.http.test_app import opened

LONG_AGO = to_ms(datetime(2020, 1, 1, tzinfo=UTC))
AT = "2030-01-01T00:00:00.000Z"
GONE = {"configName": "merchant-1", "configVersion": 1, "configExists": False, "template": "merchant-*"}


@pytest.fixture
def database_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database with the events lone0, lone1 and both0 of merchant-1, which was evicted since."""
    url = f"sqlite:///{tmp_path / 'slots.db'}"
    monkeypatch.setattr("paceline.slots.stores.templates.MIN_IDLE_AGE", timedelta(minutes=-1))

    async def fill() -> None:
        store = await slot_store(url)
        await store.configure("bank", WindowPolicy(5, "PT4S"), now_ms=LONG_AGO)
        await store.configure("merchant-*", WindowPolicy(1, "PT4S"), now_ms=LONG_AGO)
        await store.make_from_template("merchant-1", 1)
        await store.book("merchant-1", [SlotRequest(f"lone{n}", LONG_AGO) for n in range(2)], now_ms=LONG_AGO)
        await store.book(("bank", "merchant-1"), [SlotRequest("both0", LONG_AGO)], now_ms=LONG_AGO)
        await SlotScheduler(store, template_configs=1).assign("evicting", "merchant-2", AT)
        await store.close()

    with ThreadPoolExecutor(1) as thread:  # the event loop of a test may run in this one
        thread.submit(asyncio.run, fill()).result()
    return url


async def explained(client: Any, event_id: str) -> dict[str, Any]:
    answer = await client.get(f"/api/v1/slots/{event_id}/explain")
    assert answer.status_code == 200, answer.text
    explanation: dict[str, Any] = answer.json()
    return explanation


async def test_an_evicted_config_is_said_to_be_gone(database_url: str) -> None:
    async with opened(database_url=database_url) as client:
        lone = await explained(client, "lone1")
        assert lone["removed"] == [GONE]
        assert (lone["configName"], lone["configVersion"], lone["activeVersion"]) == ("merchant-1", 1, 1)
        first = format_instant(datetime(2020, 1, 1, tzinfo=UTC))
        full = {"configName": "merchant-1", "windowStart": first, "reason": "full", "windows": 1}
        assert lone["steps"] == [full]
        assert lone["today"]["windowStart"] is not None
        both = await explained(client, "both0")
        assert (both["configName"], both["removed"]) == ("bank", [GONE])
        assert full in both["steps"]
        assert "removed" not in await explained(client, "evicting")


async def test_a_config_that_was_made_again_has_another_version(database_url: str) -> None:
    async with opened(database_url=database_url) as client:
        body = {"configName": "merchant-*", "maxPerWindow": 2, "windowSize": "PT1M"}
        assert (await client.post("/admin/rate-limit/config", json=body)).status_code == 200
        again = {"eventId": "again", "requestedTime": AT, "configName": "merchant-1"}
        assert (await client.post("/api/v1/slots", json=again)).status_code == 200
        for event_id in ("lone1", "both0"):
            assert (await explained(client, event_id))["removed"] == [GONE | {"configExists": True}]
        assert "removed" not in await explained(client, "again")


async def test_today_is_what_all_configs_would_admit() -> None:
    async with opened() as client:
        for name in ("a", "b"):
            body = {"configName": name, "maxPerWindow": 1, "windowSize": "PT4S"}
            assert (await client.post("/admin/rate-limit/config", json=body)).status_code == 200

        async def assign(event_id: str, second: int, *names: str) -> dict[str, Any]:
            requested = AT.replace("00.000Z", f"{second:02}.000Z")
            body = {"eventId": event_id, "requestedTime": requested, "configNames": names}
            slot: dict[str, Any] = (await client.post("/api/v1/slots", json=body)).json()
            return slot

        await assign("a0", 0, "a")
        for second in (4, 8, 12, 16):
            await assign(f"b{second}", second, "b")
        await assign("j", 0, "a", "b")
        today = (await explained(client, "j"))["today"]
        assert today["windowStart"] == (await assign("again", 0, "a", "b"))["windowStart"]


def test_the_command_says_that_a_config_is_gone(
    database_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_DATABASE_URL", database_url)
    monkeypatch.setattr("paceline.server.logs.configure", lambda settings: None)

    def explain(*arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["slots", "explain", *arguments])
        assert ended.value.code == 0
        return capsys.readouterr().out

    assert json.loads(explain("both0", "--json"))["removed"] == [GONE]
    shown = explain("lone1")
    assert "the config merchant-1 no longer exists" in shown
    assert "version 1 of merchant-* has its policy" in shown
    assert "full" in shown
    assert "no longer exists" not in explain("evicting")


async def test_an_id_may_end_like_the_path_of_an_explanation() -> None:
    async with opened() as client:
        for event_id in ("a", "a/explain"):
            request = {"eventId": event_id, "requestedTime": AT}
            assert (await client.post("/api/v1/slots", json=request)).status_code == 200
        assert (await client.get("/api/v1/slots/a%2Fexplain")).json()["eventId"] == "a/explain"
        assert (await client.get("/api/v1/slots/a/explain")).json()["eventId"] == "a"
        assert (await client.get("/api/v1/slots/a%2fexplain/explain")).json()["eventId"] == "a/explain"
        assert (await client.delete("/api/v1/slots/a%2Fexplain")).json()["eventId"] == "a/explain"
