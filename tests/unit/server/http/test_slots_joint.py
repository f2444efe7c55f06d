"""Slots under several configs, over HTTP and on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.server.cli import main
from tests.unit.server.http.test_app import opened

AT = "2027-09-01T00:00:00Z"
SLOT = {"eventId": "e", "requestedTime": AT, "configNames": ["bank", "merchant-7"]}


async def configure(client: Any) -> None:
    for name, most, window in (("bank", 10, "PT4S"), ("merchant-*", 1, "PT1M")):
        body = {"configName": name, "maxPerWindow": most, "windowSize": window}
        assert (await client.post("/admin/rate-limit/config", json=body)).status_code == 200


async def test_a_slot_lists_a_window_of_each_config() -> None:
    async with opened() as client:
        await configure(client)
        first = (await client.post("/api/v1/slots", json=SLOT)).json()
        assert [window["configName"] for window in first["windows"]] == ["bank", "merchant-7"]
        assert first["windows"][1] == {"configName": "merchant-7", "configVersion": 1, "windowStart": f"{AT[:-1]}.000Z"}
        assert first["windowStart"] == first["windows"][0]["windowStart"]
        assert (first["configName"], first["configVersion"]) == ("bank", 1)
        second = (await client.post("/api/v1/slots", json=SLOT | {"eventId": "f"})).json()
        assert second["windows"][1]["windowStart"] == "2027-09-01T00:01:00.000Z"
        again = (await client.post("/api/v1/slots", json=SLOT | {"configNames": ["bank"]})).json()
        assert again == first | {"existing": True}
        assert (await client.get("/api/v1/slots/e")).json() == again
        assert (await client.delete("/api/v1/slots/e")).json() == again
        third = (await client.post("/api/v1/slots", json=SLOT | {"eventId": "g"})).json()
        assert third["windows"][1]["windowStart"] == f"{AT[:-1]}.000Z", "the cancel freed all"


async def test_one_name_in_a_list_is_one_config() -> None:
    async with opened() as client:
        await configure(client)
        slot = (await client.post("/api/v1/slots", json=SLOT | {"configNames": ["bank"]})).json()
        assert [window["configName"] for window in slot["windows"]] == ["bank"]
        alone = (await client.post("/api/v1/slots", json={"eventId": "x", "requestedTime": AT})).json()
        assert "windows" not in alone


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"configNames": []}, "configNames"),
        ({"configNames": "bank"}, "configNames"),
        ({"configNames": ["bank", "bank"]}, "configNames[1]"),
        ({"configNames": ["bank", 7]}, "configNames[1]"),
        ({"configNames": ["bank", ""]}, "configNames[1]"),
        ({"configNames": ["bank", None]}, "configNames[1]"),
        ({"configNames": ["x" * 129]}, "configNames[0]"),
        ({"configNames": [f"c{n}" for n in range(9)]}, "configNames"),
        ({"configNames": ["bank", "merchant-*"]}, "configNames[1]"),
        ({"configName": "bank"}, "configNames"),
        ({"configNames": {"a": 1}}, "configNames"),
        ({"configNames": None, "configName": "merchant-*"}, "configName"),
    ],
)
async def test_wrong_names_are_refused_by_their_path_and_nothing_is_booked(change: dict[str, Any], field: str) -> None:
    async with opened() as client:
        await configure(client)
        body = SLOT | change
        refused = await client.post("/api/v1/slots", json=body)
        assert (refused.status_code, refused.json()["field"]) == (400, field)
        configs = {name: value for name, value in body.items() if name.startswith("config")}
        batch = configs | {"events": [{"eventId": "e", "requestedTime": AT}]}
        refused = await client.post("/api/v1/slots/batch", json=batch)
        assert (refused.status_code, refused.json()["field"]) == (400, field)
        line = await client.post(
            "/api/v1/slots/batch", content=json.dumps(body), headers={"Content-Type": "application/x-ndjson"}
        )
        assert line.json()["error"]["status"] == 400
        assert (await client.get("/api/v1/slots/e")).status_code == 404


async def test_an_unknown_one_of_several_is_a_404_that_names_it() -> None:
    async with opened() as client:
        await configure(client)
        body = SLOT | {"configNames": ["bank", "nowhere"]}
        refused = await client.post("/api/v1/slots", json=body)
        assert refused.status_code == 404
        assert "nowhere" in refused.text
        batch = {"configNames": ["bank", "nowhere"], "events": [{"eventId": "e", "requestedTime": AT}]}
        assert (await client.post("/api/v1/slots/batch", json=batch)).status_code == 404


async def test_batches_and_streams_take_several_configs() -> None:
    events = [{"eventId": f"e{n}", "requestedTime": AT} for n in range(3)]
    async with opened() as client:
        await configure(client)
        results = (
            await client.post("/api/v1/slots/batch", json={"configNames": ["bank", "merchant-1"], "events": events})
        ).json()["results"]
        assert [slot["windows"][1]["windowStart"] for slot in results] == [
            f"2027-09-01T00:0{minute}:00.000Z" for minute in range(3)
        ]
        lines = [
            {"eventId": "a", "requestedTime": AT, "configNames": ["bank", "merchant-2"]},
            {"eventId": "b", "requestedTime": AT, "configName": "bank"},
            {"eventId": "c", "requestedTime": AT},
            {"eventId": "a", "requestedTime": AT},
        ]
        answer = await client.post(
            "/api/v1/slots/batch?configName=bank&configName=merchant-3",
            content="\n".join(map(json.dumps, lines)),
            headers={"Content-Type": "application/x-ndjson"},
        )
        slots = [json.loads(line) for line in answer.text.splitlines()]
        names = [[window["configName"] for window in slot.get("windows", ())] for slot in slots]
        assert names == [["bank", "merchant-2"], [], ["bank", "merchant-3"], ["bank", "merchant-2"]]
        refused = await client.post(
            "/api/v1/slots/batch?configName=bank&configName=nowhere",
            content=json.dumps(lines[0]),
            headers={"Content-Type": "application/x-ndjson"},
        )
        assert refused.status_code == 404


async def test_a_forecast_takes_several_configs() -> None:
    async with opened() as client:
        await configure(client)
        path = f"/api/v1/forecast?configName=bank&configName=merchant-9&events=3&at={AT}"
        shown = (await client.get(path)).json()
        assert (shown["configName"], shown["configNames"]) == ("bank", ["bank", "merchant-9"])
        assert [window["start"] for window in shown["windows"]] == [
            f"2027-09-01T00:0{minute}:00.000Z" for minute in range(3)
        ]
        alone = (await client.get(f"/api/v1/forecast?configName=bank&events=3&at={AT}")).json()
        assert "configNames" not in alone
        assert (await client.get("/api/v1/forecast?configName=bank&configName=nowhere")).status_code == 404
        for wrong in ("configName=bank&configName=bank", "configName=bank&configName=", f"{path}&maxPerWindow=5"):
            refused = await client.get(f"/api/v1/forecast?{wrong.partition('?')[2] or wrong}")
            assert refused.status_code == 400


def test_the_command_takes_several_configs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PACELINE_DATABASE_URL", f"sqlite:///{tmp_path / 'slots.db'}")

    def run(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        return int(str(ended.value.code)), capsys.readouterr().out

    assert run("config", "set", "bank", "--max", "10", "--window", "PT4S")[0] == 0
    assert run("config", "set", "merchant-*", "--max", "1", "--window", "PT1M")[0] == 0
    both = ("--config", "bank", "--config", "merchant-7")
    status, output = run("slots", "assign", *both, "--event", "e", "--at", AT, "--json")
    assert status == 0
    assert [window["configName"] for window in json.loads(output)["windows"]] == ["bank", "merchant-7"]
    (tmp_path / "events.jsonl").write_text(
        json.dumps({"eventId": "f", "configNames": ["merchant-7", "bank"]}) + "\n" + json.dumps({"eventId": "g"}) + "\n"
    )
    status, output = run("slots", "assign", *both, "--file", "events.jsonl", "--at", AT, "--json")
    assert status == 0
    slots = [json.loads(line) for line in output.splitlines()]
    assert [slot["configName"] for slot in slots] == ["merchant-7", "bank"]
    assert json.loads(run("slots", "show", "f", "--json")[1])["windows"] == slots[0]["windows"]
    assert json.loads(run("slots", "cancel", "f", "--json")[1])["windows"] == slots[0]["windows"]
    shown = json.loads(run("forecast", *both, "--events", "2", "--at", AT, "--json")[1])
    assert shown["configNames"] == ["bank", "merchant-7"]
    assert "under bank, merchant-7" in run("forecast", *both, "--at", AT)[1]
    assert run("slots", "assign", "--config", "bank", "--config", "bank", "--event", "h", "--at", AT)[0] == 2
