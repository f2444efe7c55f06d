"""`paceline plans` and `paceline limits`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.server.cli import main

Paceline = Callable[..., str]


@pytest.fixture
def paceline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Paceline:
    """Runs a command in an empty directory; what it wrote, if it ended as expected."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, status: int = 0) -> str:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        written = capsys.readouterr()
        assert ended.value.code == status, written.err
        return written.out if status in (0, 1) and written.out else written.err

    return run


def test_plans_are_made_changed_and_deleted(paceline: Paceline) -> None:
    assert paceline("plans", "list", "--json") == "[]\n"
    paceline("plans", "set", "gold", "--capacity", "2", "--per-second", "0.5", "--on-error", "closed")
    paceline("plans", "set", "day", "--algorithm", "fixed_window", "--limit", "5", "--window", "P1D", "--shadow")
    assert json.loads(paceline("plans", "list", "--json")) == [
        {"name": "day", "algorithm": "fixed_window", "limit": 5, "window": "P1D", "shadow": True},
        {"name": "gold", "algorithm": "token_bucket", "capacity": 2, "perSecond": 0.5, "onError": "closed"},
    ]
    assert "gold\ttoken_bucket\t2 burst, 1/2/s\tclosed\tno\t0\n" in paceline("plans", "list")

    # What is not given stays as it is.
    vip = {"algorithm": "fixed_window", "limit": 9, "window": "P1D"}
    changed = paceline("plans", "set", "day", "--limit", "6", "--override", 'vip={"limit":9,"window":"P1D"}', "--json")
    day = {"name": "day", "algorithm": "fixed_window", "limit": 6, "window": "P1D", "shadow": True}
    assert json.loads(changed) == day | {"overrides": {"vip": vip}}
    changed = paceline("plans", "set", "day", "--override", "vip=", "--no-shadow", "--json")
    assert json.loads(changed) == {key: value for key, value in day.items() if key != "shadow"}
    changed = paceline("plans", "set", "gold", "--capacity", "3", "--on-error", "none", "--json")
    assert json.loads(changed) == {"name": "gold", "algorithm": "token_bucket", "capacity": 3, "perSecond": 0.5}

    assert "capacity: 3" in paceline("plans", "delete", "gold")
    assert paceline("plans", "delete", "gold", status=1) == "paceline: no plan named 'gold'\n"


def test_a_plan_may_be_a_rate(paceline: Paceline) -> None:
    made = json.loads(paceline("plans", "set", "free", "2/hour;3/day", "--override", "vip=9/minute", "--json"))
    hour = {"algorithm": "fixed_window", "limit": 2, "window": "PT1H"}
    day = {"algorithm": "fixed_window", "limit": 3, "window": "P1D"}
    vip = {"algorithm": "fixed_window", "limit": 9, "window": "PT1M"}
    assert made == {"name": "free", "algorithm": "several", "limits": [hour, day], "overrides": {"vip": vip}}
    assert "free\tseveral\t2 per PT1H; 3 per P1D\t-\tno\t1\n" in paceline("plans", "list")
    # What is not given stays as it is.
    assert json.loads(paceline("plans", "set", "free", "--shadow", "--json")) == made | {"shadow": True}
    changed = json.loads(paceline("plans", "set", "free", "--rate", "10/minute burst 20", "--no-shadow", "--json"))
    assert (changed["algorithm"], changed["capacity"], changed["overrides"]) == ("token_bucket", 20, {"vip": vip})
    assert json.loads(paceline("limits", "acquire", "u", "--plan", "1/hour", "--json"))["remaining"] == 0


def test_calendars_and_pace(paceline: Paceline) -> None:
    calendar = ("--algorithm", "fixed_window", "--limit", "5", "--calendar", "month", "--zone", "Europe/Berlin")
    made = json.loads(paceline("plans", "set", "monthly", *calendar, "--json"))
    month = {"name": "monthly", "algorithm": "fixed_window", "limit": 5, "calendar": "month", "zone": "Europe/Berlin"}
    assert made == month
    assert json.loads(paceline("plans", "set", "monthly", "--limit", "6", "--json")) == month | {"limit": 6}
    changed = json.loads(paceline("plans", "set", "monthly", "--window", "P1D", "--json"))
    assert changed == {"name": "monthly", "algorithm": "fixed_window", "limit": 6, "window": "P1D"}
    paced = json.loads(paceline("plans", "set", "paced", "--algorithm", "gcra", "--rate", "1/hour", "--json"))
    assert paced == {"name": "paced", "algorithm": "gcra", "rate": "1/hour", "burst": 1}
    paceline("limits", "acquire", "u", "--plan", "paced")
    paceline("limits", "acquire", "u", "--plan", "paced", status=1)
    assert "fixed_window" in paceline("plans", "list")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["new", "--algorithm", "fixed_window", "--limit", "1", "--calendar", "year"], "--calendar"),
        (["new", "--algorithm", "fixed_window", "--limit", "1", "--calendar", "day", "--zone", "Mars"], "--zone"),
        (["new", "--algorithm", "gcra"], "RATE"),
        (["new", "--algorithm", "gcra", "--rate", "1/s", "--burst", "0"], "--burst"),
        (["new", "10/fortnight"], "RATE"),
        (["new", "10/minute", "--rate", "10/minute"], "RATE"),
        (["new", "10/minute", "--limit", "5"], "--limit"),
        (["new", "10/minute", "--override", "vip=1/fortnight"], "--override.vip"),
        (["new", "--limit", "3"], "--algorithm"),
        (["new", "--capacity", "3"], "--per-second"),
        (["new", "--capacity", "3", "--per-second", "0"], "--per-second"),
        (["new", "--capacity", "3", "--per-second", "fast"], "--per-second"),
        (["new", "--capacity", "0", "--per-second", "1"], "--capacity"),
        (["new", "--algorithm", "leaky", "--limit", "1", "--window", "PT1S"], "--algorithm"),
        (["new", "--algorithm", "sliding_log", "--limit", "1", "--window", "soon"], "--window"),
        (["new", "--capacity", "1", "--per-second", "1", "--on-error", "panic"], "--on-error"),
        (["new", "--capacity", "1", "--per-second", "1", "--override", "vip"], "--override"),
        (["new", "--capacity", "1", "--per-second", "1", "--override", "vip={"], "--override"),
        (["new", "--capacity", "1", "--per-second", "1", "--override", 'vip={"capacity": 0}'], "--override.vip"),
        (["", "--capacity", "1", "--per-second", "1"], "NAME"),
    ],
)
def test_a_plan_that_cant_work_is_a_usage_error(paceline: Paceline, arguments: list[str], named: str) -> None:
    assert named in paceline("plans", "set", *arguments, status=2)
    assert paceline("plans", "list", "--json") == "[]\n"


def test_the_exit_status_is_the_decision(paceline: Paceline) -> None:
    paceline("plans", "set", "gold", "--capacity", "2", "--per-second", "0.001")
    paceline("plans", "set", "day", "--algorithm", "fixed_window", "--limit", "5", "--window", "P1D")
    both = ("--plan", "gold", "--plan", "day")
    assert paceline("limits", "acquire", "k", *both, "--cost", "2") == "allowed: plan gold has 0 of 2 left\n"
    assert paceline("limits", "acquire", "k", *both, status=1).startswith("denied: plan gold has 0 of 2 left; retry")
    assert json.loads(paceline("limits", "peek", "k", "--plan", "day", "--json"))["remaining"] == 3
    assert json.loads(paceline("limits", "peek", "k", *both, "--json", status=1))["allowed"] is False
    assert paceline("limits", "refund", "k", "--plan", "gold") == "gave 1 back\n"
    paceline("limits", "acquire", "k", "--plan", "gold")
    paceline("limits", "acquire", "k", "--plan", "gold", status=1)
    assert paceline("limits", "reset", "k", "--plan", "gold") == "as new\n"
    paceline("limits", "acquire", "k", "--plan", "gold", "--cost", "2")


def test_wrong_questions_are_named(paceline: Paceline) -> None:
    paceline("plans", "set", "gold", "--capacity", "2", "--per-second", "1")
    assert "--cost" in paceline("limits", "acquire", "k", "--plan", "gold", "--cost", "3", status=2)
    assert "--cost" in paceline("limits", "acquire", "k", "--plan", "gold", "--cost", "0", status=2)
    assert "KEY" in paceline("limits", "acquire", "", "--plan", "gold", status=2)
    assert "--plan" in paceline("limits", "acquire", "k", "--plan", "gold", "--plan", "gold", status=2)
    assert "--plan" in paceline("limits", "acquire", "k", status=2)
    assert "no plan named 'silver'" in paceline("limits", "acquire", "k", "--plan", "silver", status=1)
    assert json.loads(paceline("limits", "peek", "k", "--plan", "gold", "--json"))["remaining"] == 2


def test_what_a_refund_and_a_reset_leave_is_shown_to_machines(paceline: Paceline) -> None:
    paceline("plans", "set", "day", "3/day")
    paceline("limits", "acquire", "key", "--plan", "day", "--cost", "3")
    refunded = json.loads(paceline("limits", "refund", "key", "--plan", "day", "--cost", "2", "--json"))
    assert (refunded["plan"], refunded["remaining"]) == ("day", 2)
    assert json.loads(paceline("limits", "reset", "key", "--plan", "day", "--json"))["remaining"] == 3


def test_a_plan_of_several_limits_is_shown_as_json(paceline: Paceline) -> None:
    shown = dict(line.split(": ", 1) for line in paceline("plans", "set", "free", "2/hour;3/day").splitlines())
    assert [limit["limit"] for limit in json.loads(shown["limits"])] == [2, 3]
