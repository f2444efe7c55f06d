"""`headgate plans` and `headgate limits`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from headgate.server.cli import main

Headgate = Callable[..., str]


@pytest.fixture
def headgate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Headgate:
    """Runs a command in an empty directory; what it wrote, if it ended as expected."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, status: int = 0) -> str:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        written = capsys.readouterr()
        assert ended.value.code == status, written.err
        return written.out if status in (0, 1) and written.out else written.err

    return run


def test_plans_are_made_changed_and_deleted(headgate: Headgate) -> None:
    assert headgate("plans", "list", "--json") == "[]\n"
    headgate("plans", "set", "gold", "--capacity", "2", "--per-second", "0.5", "--on-error", "closed")
    headgate("plans", "set", "day", "--algorithm", "fixed_window", "--limit", "5", "--window", "P1D", "--shadow")
    assert json.loads(headgate("plans", "list", "--json")) == [
        {"name": "day", "algorithm": "fixed_window", "limit": 5, "window": "P1D", "shadow": True},
        {"name": "gold", "algorithm": "token_bucket", "capacity": 2, "perSecond": 0.5, "onError": "closed"},
    ]
    assert "gold\ttoken_bucket\t2 burst, 1/2/s\tclosed\tno\t0\n" in headgate("plans", "list")

    # What is not given stays as it is.
    vip = {"algorithm": "fixed_window", "limit": 9, "window": "P1D"}
    changed = headgate("plans", "set", "day", "--limit", "6", "--override", 'vip={"limit":9,"window":"P1D"}', "--json")
    day = {"name": "day", "algorithm": "fixed_window", "limit": 6, "window": "P1D", "shadow": True}
    assert json.loads(changed) == day | {"overrides": {"vip": vip}}
    changed = headgate("plans", "set", "day", "--override", "vip=", "--no-shadow", "--json")
    assert json.loads(changed) == {key: value for key, value in day.items() if key != "shadow"}
    changed = headgate("plans", "set", "gold", "--capacity", "3", "--on-error", "none", "--json")
    assert json.loads(changed) == {"name": "gold", "algorithm": "token_bucket", "capacity": 3, "perSecond": 0.5}

    assert "capacity: 3" in headgate("plans", "delete", "gold")
    assert headgate("plans", "delete", "gold", status=1) == "headgate: no plan named 'gold'\n"


def test_a_plan_may_be_a_rate(headgate: Headgate) -> None:
    made = json.loads(headgate("plans", "set", "free", "2/hour;3/day", "--override", "vip=9/minute", "--json"))
    hour = {"algorithm": "fixed_window", "limit": 2, "window": "PT1H"}
    day = {"algorithm": "fixed_window", "limit": 3, "window": "P1D"}
    vip = {"algorithm": "fixed_window", "limit": 9, "window": "PT1M"}
    assert made == {"name": "free", "algorithm": "several", "limits": [hour, day], "overrides": {"vip": vip}}
    assert "free\tseveral\t2 per PT1H; 3 per P1D\t-\tno\t1\n" in headgate("plans", "list")
    # What is not given stays as it is.
    assert json.loads(headgate("plans", "set", "free", "--shadow", "--json")) == made | {"shadow": True}
    changed = json.loads(headgate("plans", "set", "free", "--rate", "10/minute burst 20", "--no-shadow", "--json"))
    assert (changed["algorithm"], changed["capacity"], changed["overrides"]) == ("token_bucket", 20, {"vip": vip})
    assert json.loads(headgate("limits", "acquire", "u", "--plan", "1/hour", "--json"))["remaining"] == 0


def test_calendars_and_pace(headgate: Headgate) -> None:
    calendar = ("--algorithm", "fixed_window", "--limit", "5", "--calendar", "month", "--zone", "Europe/Berlin")
    made = json.loads(headgate("plans", "set", "monthly", *calendar, "--json"))
    month = {"name": "monthly", "algorithm": "fixed_window", "limit": 5, "calendar": "month", "zone": "Europe/Berlin"}
    assert made == month
    assert json.loads(headgate("plans", "set", "monthly", "--limit", "6", "--json")) == month | {"limit": 6}
    changed = json.loads(headgate("plans", "set", "monthly", "--window", "P1D", "--json"))
    assert changed == {"name": "monthly", "algorithm": "fixed_window", "limit": 6, "window": "P1D"}
    paced = json.loads(headgate("plans", "set", "paced", "--algorithm", "gcra", "--rate", "1/hour", "--json"))
    assert paced == {"name": "paced", "algorithm": "gcra", "rate": "1/hour", "burst": 1}
    headgate("limits", "acquire", "u", "--plan", "paced")
    headgate("limits", "acquire", "u", "--plan", "paced", status=1)
    assert "fixed_window" in headgate("plans", "list")


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
def test_a_plan_that_cant_work_is_a_usage_error(headgate: Headgate, arguments: list[str], named: str) -> None:
    assert named in headgate("plans", "set", *arguments, status=2)
    assert headgate("plans", "list", "--json") == "[]\n"


def test_the_exit_status_is_the_decision(headgate: Headgate) -> None:
    headgate("plans", "set", "gold", "--capacity", "2", "--per-second", "0.001")
    headgate("plans", "set", "day", "--algorithm", "fixed_window", "--limit", "5", "--window", "P1D")
    both = ("--plan", "gold", "--plan", "day")
    assert headgate("limits", "acquire", "k", *both, "--cost", "2") == "allowed: plan gold has 0 of 2 left\n"
    assert headgate("limits", "acquire", "k", *both, status=1).startswith("denied: plan gold has 0 of 2 left; retry")
    assert json.loads(headgate("limits", "peek", "k", "--plan", "day", "--json"))["remaining"] == 3
    assert json.loads(headgate("limits", "peek", "k", *both, "--json", status=1))["allowed"] is False
    assert headgate("limits", "refund", "k", "--plan", "gold") == "gave 1 back\n"
    headgate("limits", "acquire", "k", "--plan", "gold")
    headgate("limits", "acquire", "k", "--plan", "gold", status=1)
    assert headgate("limits", "reset", "k", "--plan", "gold") == "as new\n"
    headgate("limits", "acquire", "k", "--plan", "gold", "--cost", "2")


def test_wrong_questions_are_named(headgate: Headgate) -> None:
    headgate("plans", "set", "gold", "--capacity", "2", "--per-second", "1")
    assert "--cost" in headgate("limits", "acquire", "k", "--plan", "gold", "--cost", "3", status=2)
    assert "--cost" in headgate("limits", "acquire", "k", "--plan", "gold", "--cost", "0", status=2)
    assert "KEY" in headgate("limits", "acquire", "", "--plan", "gold", status=2)
    assert "--plan" in headgate("limits", "acquire", "k", "--plan", "gold", "--plan", "gold", status=2)
    assert "--plan" in headgate("limits", "acquire", "k", status=2)
    assert "no plan named 'silver'" in headgate("limits", "acquire", "k", "--plan", "silver", status=1)
    assert json.loads(headgate("limits", "peek", "k", "--plan", "gold", "--json"))["remaining"] == 2


def test_what_a_refund_and_a_reset_leave_is_shown_to_machines(headgate: Headgate) -> None:
    headgate("plans", "set", "day", "3/day")
    headgate("limits", "acquire", "key", "--plan", "day", "--cost", "3")
    refunded = json.loads(headgate("limits", "refund", "key", "--plan", "day", "--cost", "2", "--json"))
    assert (refunded["plan"], refunded["remaining"]) == ("day", 2)
    assert json.loads(headgate("limits", "reset", "key", "--plan", "day", "--json"))["remaining"] == 3


def test_a_plan_of_several_limits_is_shown_as_json(headgate: Headgate) -> None:
    shown = dict(line.split(": ", 1) for line in headgate("plans", "set", "free", "2/hour;3/day").splitlines())
    assert [limit["limit"] for limit in json.loads(shown["limits"])] == [2, 3]
