"""`paceline slots list, explain, reconcile` and careful changes by `paceline config set`."""

from __future__ import annotations

import http.server
import json
import threading
from pathlib import Path

import pytest

from paceline.server.cli import main
from tests.unit.server.cli.command import Paceline, paceline

__all__ = ["paceline"]

AT = "2030-09-01T00:00:00.000Z"


def test_slots_are_listed_explained_and_cancelled_with_a_reason(paceline: Paceline) -> None:
    paceline("config", "set", "c", "--max", "1", "--window", "PT4S")
    for n in range(3):
        paceline("slots", "assign", "--config", "c", "--at", AT, "--event", f"e{n}")
    explained = json.loads(paceline("slots", "explain", "e2", "--json"))
    assert [step["reason"] for step in explained["steps"]] == ["full", "full"]
    assert "full" in paceline("slots", "explain", "e2")
    paceline("slots", "cancel", "e1", "--reason", "customer left")
    page = json.loads(paceline("slots", "list", "--config", "c", "--limit", "2", "--json"))
    rest = json.loads(paceline("slots", "list", "--config", "c", "--cursor", page["next"], "--json"))
    assert [slot["eventId"] for slot in page["slots"] + rest["slots"]] == ["e0", "e1", "e2"]
    assert rest["next"] is None
    (gone,) = json.loads(paceline("slots", "list", "--status", "CANCELLED", "--json"))["slots"]
    assert gone["reason"] == "customer left"
    assert gone["actor"].startswith("cli:")
    assert "customer left" in paceline("slots", "list")
    assert "--status" in paceline("slots", "list", "--status", "gone", status=2)
    assert "no slot named" in paceline("slots", "explain", "e1", status=1)


def test_each_line_of_a_file_has_its_result(paceline: Paceline, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        '{"eventId": "e1"}',
        "not json",
        "",
        '{"requestedTime": "2030-09-01T00:00:00Z"}',
        '{"eventId": "e5", "requestedTime": "2030-09-01"}',
        '{"eventId": "e6", "configName": "nowhere"}',
        '{"eventId": "e7", "requestedTime": null, "configName": null}',
        '{"eventId": "e\\u001b8", "requestedTime": 9}',
    ]
    Path("events.jsonl").write_text("\n".join(lines))
    with pytest.raises(SystemExit) as ended:
        main(["slots", "assign", "--file", "events.jsonl", "--at", AT, "--json"])
    assert ended.value.code == 1
    out, err = capsys.readouterr()
    shown = [json.loads(line) for line in out.splitlines()]
    assert [(line.get("eventId"), line.get("line")) for line in shown] == [
        ("e1", None),
        (None, 2),
        (None, 4),
        ("e5", 5),
        ("e6", 6),
        ("e7", None),
        (None, 8),
    ]
    assert shown[1] == {"line": 2, "error": "line: is not valid JSON"}
    assert [line["error"].partition(":")[0] for line in shown[2:4]] == ["eventId", "requestedTime"]
    assert err == "2 booked, 0 had their slot already, 5 failed\n"
    in_words = paceline("slots", "assign", "--file", "events.jsonl", "--at", AT, status=1).splitlines()
    assert [line.partition(":")[0] for line in in_words[:-1]] == ["line 2", "line 4", "line 5", "line 6", "line 8"]
    assert in_words[2].startswith("line 5: e5: requestedTime")
    assert in_words[-1] == "0 booked, 2 had their slot already, 5 failed"


def test_a_config_is_changed_only_at_the_version_that_was_seen(paceline: Paceline) -> None:
    paceline("config", "set", "c", "--max", "4", "--window", "PT4S", "--if-version", "0")
    assert "is at version 1" in paceline("config", "set", "c", "--max", "5", "--if-version", "0", status=1)
    changed = json.loads(paceline("config", "set", "c", "--max", "5", "--if-version", "1", "--json"))
    assert (changed["version"], changed["maxPerWindow"]) == (2, 5)
    assert "is at version 2" in paceline("config", "set", "c", "--max", "6", "--if-version", "1", status=1)
    whole = json.loads(paceline("config", "set", "c", "--first-window", "whole", "--json"))
    assert whole["firstWindow"] == "whole"
    assert "--first-window" in paceline("config", "set", "c", "--first-window", "half", status=2)


def test_a_dry_run_warns_and_changes_nothing(paceline: Paceline, capsys: pytest.CaptureFixture[str]) -> None:
    paceline("config", "set", "c", "--max", "4", "--window", "PT4S")
    for n in range(3):
        paceline("slots", "assign", "--config", "c", "--at", AT, "--event", f"e{n}")
    tried = json.loads(paceline("config", "set", "c", "--max", "1", "--dry-run", "--json"))
    assert [(warning["code"], warning["slots"]) for warning in tried["warnings"]] == [("over-limit", 2)]
    assert (tried["active"], tried["dryRun"], tried["version"]) == (False, True, 2)
    harmless = json.loads(paceline("config", "set", "c", "--max", "9", "--dry-run", "--json"))
    assert (harmless["active"], harmless["dryRun"], harmless["warnings"]) == (False, True, [])
    capsys.readouterr()
    assert "nothing was changed" in paceline("config", "set", "c", "--max", "9", "--dry-run")
    assert "dryRun" not in json.loads(paceline("config", "set", "c", "--max", "4", "--json"))
    assert json.loads(paceline("config", "get", "c", "--json"))["maxPerWindow"] == 4
    with pytest.raises(SystemExit):
        main(["config", "set", "c", "--max", "1"])
    assert "warning: 2 booked slots are above the new limit" in capsys.readouterr().err
    assert json.loads(paceline("config", "get", "c", "--json"))["maxPerWindow"] == 1


def test_a_dry_run_of_a_template_warns_of_the_slots_of_its_configs(paceline: Paceline) -> None:
    paceline("config", "set", "t-*", "--max", "4", "--window", "PT4S")
    for n in range(3):
        paceline("slots", "assign", "--config", "t-7", "--at", AT, "--event", f"e{n}")
    tried = json.loads(paceline("config", "set", "t-*", "--max", "1", "--dry-run", "--json"))
    assert [(warning["code"], warning["slots"]) for warning in tried["warnings"]] == [("over-limit", 2)]


def test_slots_without_work_are_shown_first_and_freed_when_asked(paceline: Paceline) -> None:
    paceline("config", "set", "c", "--max", "100", "--window", "PT0.01S")
    for n in range(4):
        paceline("slots", "assign", "--config", "c", "--at", "2020-01-01T00:00:00Z", "--event", f"e{n}")
    Path("known.txt").write_text('e0\n\n{"eventId": "e2"}\n')
    reconcile = ("slots", "reconcile", "--before", "PT0S", "--known", "known.txt", "--json")
    # The last slot is up to a window ahead: poll until it is due.
    answers = (json.loads(paceline(*reconcile)) for _ in range(1000))
    shown = next(answer for answer in answers if answer["count"] > 1)
    assert (shown["freed"], shown["count"]) == (False, 2)
    assert sorted(slot["eventId"] for slot in shown["slots"]) == ["e1", "e3"]
    assert json.loads(paceline("slots", "list", "--json"))["slots"][0]["status"] == "BOOKED"
    assert json.loads(paceline(*reconcile, "--apply"))["freed"]
    assert json.loads(paceline(*reconcile, "--apply"))["count"] == 0
    gone = json.loads(paceline("slots", "list", "--status", "CANCELLED", "--json"))["slots"]
    assert {(slot["eventId"], slot["reason"]) for slot in gone} == {
        ("e1", "its work never began"),
        ("e3", "its work never began"),
    }
    assert json.loads(paceline("slots", "reconcile", "--before", "PT0S", "--known", "queue", "--json"))["count"] == 2
    assert json.loads(paceline("slots", "reconcile", "--before", "PT1H", "--known", "queue", "--json"))["count"] == 0
    Path("known.txt").write_text("e0\n{}\n")
    assert "line 2" in paceline(*reconcile, "--apply", status=2)
    assert "can't be read" in paceline(*reconcile[:4], "--known", "nowhere.txt", status=2)
    for before in ("soon", "x", "10 minutes", "P"):
        said = paceline("slots", "reconcile", "--before", before, "--known", "queue", status=2)
        assert f"--before: {before!r} is neither" in said
        assert "P30D" in said


def test_known_events_may_come_from_a_url(paceline: Paceline) -> None:
    class Known(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/known" else 404)
            self.end_headers()
            self.wfile.write(b"e0\n")

        def log_message(self, *_: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Known) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            for n in range(2):
                paceline("slots", "assign", "--at", "2020-01-01T00:00:00Z", "--event", f"e{n}")
            address = f"http://127.0.0.1:{server.server_port}"
            reconcile = ("slots", "reconcile", "--before", "2199-01-01T00:00:00Z", "--json", "--known")
            assert "--before" in paceline(*reconcile, f"{address}/known", status=2)
            # The slots lie up to four seconds ahead, so none is due yet: nothing is freed early.
            early = ("slots", "reconcile", "--before", "PT10M", "--json", "--known")
            assert json.loads(paceline(*early, f"{address}/known"))["count"] == 0
            assert "can't be read" in paceline(*early, f"{address}/gone", status=2)
        finally:
            server.shutdown()


def test_a_backlog_is_pulled_forward_after_a_raise(paceline: Paceline) -> None:
    paceline("config", "set", "c", "--max", "1", "--window", "PT4S")
    Path("events.jsonl").write_text("".join(f'{{"eventId": "e{n}"}}\n' for n in range(6)))
    paceline("slots", "assign", "--config", "c", "--at", AT, "--file", "events.jsonl")
    paceline("config", "set", "c", "--max", "3")
    replan = ("slots", "replan", "--config", "c")
    tried = json.loads(paceline(*replan, "--dry-run", "--plot", "replan.png", "--json"))
    assert (tried["dryRun"], tried["examined"]) == (True, 6)
    assert Path("replan.png").read_bytes().startswith(b"\x89PNG")
    done = json.loads(paceline(*replan, "--json"))
    assert set(done) >= {"examined", "moved", "savedMs", "lastBefore", "lastAfter", "dryRun"}
    assert done["lastAfter"] < "2030-09-01T00:00:08.000Z" < done["lastBefore"]
    assert "0 of 6 slots of c were moved" in paceline(*replan)
    paceline("config", "set", "c", "--max", "1", "--yes")
    spread = json.loads(paceline(*replan, "--direction", "spread", "--json"))
    assert spread["savedMs"] < 0
    listed = json.loads(paceline("slots", "list", "--config", "c", "--json"))["slots"]
    assert len({slot["windowStart"] for slot in listed}) == 6
    assert all("movedAt" in slot for slot in listed[1:])
    explained = json.loads(paceline("slots", "explain", listed[-1]["eventId"], "--json"))
    assert explained["movedAt"]
    assert "--direction" in paceline(*replan, "--direction", "sideways", status=2)
    assert "--plot" in paceline(*replan, "--plot", "x.png", status=2)
    assert "no config named" in paceline("slots", "replan", "--config", "nowhere", status=1)


def test_a_change_is_tried_before_it_is_made(paceline: Paceline) -> None:
    paceline("config", "set", "c", "--max", "10", "--window", "PT4S")
    forecast = ("forecast", "--config", "c", "--events", "100", "--at", AT, "--json")
    now = json.loads(paceline(*forecast, "--csv", "drain.csv"))
    assert (now["windowCount"], now["delays"]["maxMs"], now["delays"]["p50Ms"]) == (10, 40_000, 20_000)
    lines = Path("drain.csv").read_text().splitlines()
    assert (lines[0], lines[1]) == ("time,eventsLeft", f"{AT},100")
    assert lines[-1].endswith(",0")
    assert len(lines) == len(now["drain"]) + 1
    tried = json.loads(paceline(*forecast, "--max", "50", "--window", "PT1S"))
    assert (tried["windowCount"], tried["delays"]["maxMs"]) == (2, 2000)
    assert json.loads(paceline(*forecast, "--max-delay", "PT10S"))["refused"] == 75
    Path("hours.json").write_text('{"zone": "UTC", "open": [{"from": "09:00", "to": "10:00"}]}')
    deferred = json.loads(paceline(*forecast, "--calendar", "hours.json"))
    assert deferred["firstWindow"] == "2030-09-01T09:00:00.000Z"
    assert json.loads(paceline(*forecast))["windowCount"] == 10, "nothing was changed"
    assert "delay: half within 20s" in paceline(*forecast[:-1])
    assert "--window" in paceline(*forecast, "--window", "soon", status=2)
    assert "--csv" in paceline(*forecast, "--csv", "nowhere/x.csv", status=2)
    assert paceline(*forecast[:-1], "--csv", "-").splitlines() == lines
    assert not Path("-").exists()
    assert "--csv" in paceline(*forecast, "--csv", "-", status=2), "it would spoil the JSON"
