"""When periodic work runs: time zones, changes of the clock, calendars, and what becomes of missed ticks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.dispatch.periodic.schedules import GRACE, MAX_TICKS, Schedule
from paceline.errors import ConfigurationError

T = datetime(2027, 3, 1, 16, tzinfo=UTC)
"""A Monday."""
SECOND, MINUTE, HOUR, DAY = (timedelta(seconds=n) for n in (1, 60, 3600, 86_400))
BUSINESS = {
    "zone": "Europe/Berlin",
    "open": [{"days": ["MON", "TUE", "WED", "THU", "FRI"], "from": "09:00", "to": "17:00"}],
    "holidays": "DE",
}


def ticks(schedule: Schedule, after: datetime, count: int) -> list[str]:
    shown = []
    for _ in range(count):
        tick = schedule.next_tick(after)
        assert tick is not None
        assert tick > after
        shown.append(tick.isoformat().removesuffix("+00:00"))
        after = tick
    return shown


def test_a_cron_expression_is_meant_in_its_zone() -> None:
    schedule = Schedule.of(cron="0 16 * * MON-FRI", zone="Europe/Berlin")
    assert ticks(schedule, datetime(2027, 3, 26, 15, 0, tzinfo=UTC), 2) == [
        "2027-03-29T14:00:00",  # summer time began on Sunday
        "2027-03-30T14:00:00",
    ]


def test_at_changes_of_the_clock_a_daily_tick_happens_once() -> None:
    schedule = Schedule.of(cron="30 2 * * *", zone="Europe/Berlin")
    spring = ["2027-03-27T01:30:00", "2027-03-28T01:00:00", "2027-03-29T00:30:00"]
    assert ticks(schedule, datetime(2027, 3, 26, 12, tzinfo=UTC), 3) == spring
    autumn = ["2027-10-30T00:30:00", "2027-10-31T00:30:00", "2027-11-01T01:30:00"]
    assert ticks(schedule, datetime(2027, 10, 29, 12, tzinfo=UTC), 3) == autumn


def test_an_interval_has_the_same_ticks_in_every_process() -> None:
    schedule = Schedule.of(every="PT2S")
    assert ticks(schedule, T + 0.3 * SECOND, 2) == ["2027-03-01T16:00:02", "2027-03-01T16:00:04"]
    assert ticks(schedule, T, 1) == ["2027-03-01T16:00:02"]


def test_a_tick_outside_the_calendar_does_not_happen() -> None:
    hourly = Schedule.of(cron="0 * * * *", calendar=BUSINESS)
    assert ticks(hourly, datetime(2027, 5, 5, 14, 0, tzinfo=UTC), 2) == [
        "2027-05-07T07:00:00",  # the sixth is Ascension Day
        "2027-05-07T08:00:00",
    ]
    seconds = Schedule.of(every="PT1S", calendar=BUSINESS)
    assert ticks(seconds, datetime(2027, 3, 5, 15, 59, 58, tzinfo=UTC), 2) == [
        "2027-03-05T15:59:59",
        "2027-03-08T08:00:00",
    ]


def test_without_missed_ticks_every_policy_runs_the_tick_that_is_due() -> None:
    for policy in ("skip", "last", "all"):
        schedule = Schedule.of(every="PT1M", catch_up=policy)
        assert schedule.due(T, T + 59 * SECOND) == ([], T)
        assert schedule.due(T, T + MINUTE) == ([T + MINUTE], T + MINUTE)


def test_missed_ticks_are_skipped_or_the_last_or_all_of_them_run() -> None:
    now = T + 5 * MINUTE + GRACE + SECOND
    minutes = [T + n * MINUTE for n in range(1, 6)]
    for policy, due in [("skip", []), ("last", minutes[-1:]), ("all", minutes)]:
        assert Schedule.of(every="PT1M", catch_up=policy).due(T, now) == (due, now)
    # Of an outage, the newest tick is hardly late: it is not missed.
    assert Schedule.of(every="PT2S").due(T, T + 61 * SECOND) == ([T + 60 * SECOND], T + 61 * SECOND)


def test_ticks_that_are_a_few_seconds_late_are_not_missed() -> None:
    """A worker that was busy for a moment, or a slow database, is no outage."""
    late = [T + n * SECOND for n in (2, 4, 6, 8, 10)]
    assert Schedule.of(every="PT2S", catch_up="skip").due(T, T + 11 * SECOND) == (late, T + 11 * SECOND)


@pytest.mark.parametrize(
    ("word", "tick"),
    [
        ("@hourly", "2027-03-05T13:00:00"),
        ("@daily", "2027-03-06T00:00:00"),
        ("@midnight", "2027-03-06T00:00:00"),
        ("@weekly", "2027-03-07T00:00:00"),
        ("@monthly", "2027-04-01T00:00:00"),
        ("@yearly", "2028-01-01T00:00:00"),
        ("@annually", "2028-01-01T00:00:00"),
    ],
)
def test_the_words_of_cron_are_expressions(word: str, tick: str) -> None:
    assert ticks(Schedule.of(cron=word), datetime(2027, 3, 5, 12, 30, tzinfo=UTC), 1) == [tick]
    with pytest.raises(ConfigurationError, match="cron: '@reboot' is unknown; known are @hourly, @daily"):
        Schedule.of(cron="@reboot")


def test_many_missed_ticks_come_in_portions_without_a_gap() -> None:
    schedule, until, now, seen = Schedule.of(every="PT1S", catch_up="all"), T, T + 2500 * SECOND, 0
    while until < now:
        due, until = schedule.due(until, now)
        assert len(due) <= MAX_TICKS
        seen += len(due)
    assert seen == 2500


def test_the_last_tick_of_a_long_outage_is_found_beyond_closed_days() -> None:
    sunday = datetime(2027, 3, 7, 12, tzinfo=UTC)
    for options, last in [
        ({"every": "PT1S"}, datetime(2027, 3, 5, 15, 59, 59, tzinfo=UTC)),
        ({"cron": "30 10 * * *"}, datetime(2027, 3, 5, 9, 30, tzinfo=UTC)),
    ]:
        schedule = Schedule.of(**options, calendar=BUSINESS, catch_up="last")
        assert schedule.due(sunday - 300 * DAY, sunday) == ([last], sunday)


@given(
    st.sampled_from(["* * * * *", "*/7 * * * *", "30 2 * * *", "0 0 1 * *", "15 */3 * * SUN"]),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]),
    st.datetimes(datetime(2027, 1, 1), datetime(2027, 12, 31)),
    st.lists(st.integers(1, 20_000), min_size=1, max_size=12),
)
def test_whenever_one_looks_each_tick_comes_once(cron: str, zone: str, start: datetime, steps: list[int]) -> None:
    schedule = Schedule.of(cron=cron, zone=zone, catch_up="all")
    until = now = start.replace(tzinfo=UTC)
    seen: list[datetime] = []
    for step in steps:
        now += timedelta(seconds=step)
        due, until = schedule.due(until, now)
        seen += due
    while until < now and (more := schedule.due(until, now))[0]:
        seen += more[0]
        until = more[1]
    expected, tick = [], start.replace(tzinfo=UTC)
    while (following := schedule.next_tick(tick)) is not None and following <= now:
        expected.append(following)
        tick = following
    assert seen == expected


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({}, "cron"),
        ({"cron": "0 16 * * *", "every": "PT1S"}, "cron"),
        ({"cron": "61 * * * *"}, "cron"),
        ({"cron": "0 0 30 2 *"}, "cron"),
        ({"cron": 5}, "cron"),
        ({"every": "PT0.5S"}, "every"),
        ({"every": "P400D"}, "every"),
        ({"every": float("nan")}, "every"),
        ({"every": "two"}, "every"),
        ({"every": "PT1S", "zone": "Europe/Nowhere"}, "zone"),
        ({"every": "PT1S", "catch_up": "some"}, "catch_up"),
        ({"every": "PT1S", "calendar": []}, "calendar"),
        ({"every": "PT1S", "calendar": {"zone": "UTC", "open": []}}, "calendar.open"),
        (
            {
                "cron": "0 3 * * *",
                "calendar": {"zone": "UTC", "open": [{"days": ["MON"], "from": "9:00", "to": "8:00"}]},
            },
            "calendar",
        ),
        (
            {"cron": "0 3 * * *", "calendar": {"zone": "UTC", "open": [{"from": "09:00", "to": "17:00"}]}},
            "cron",
        ),
    ],
)
def test_a_wrong_schedule_names_its_field(options: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Schedule.of(**options)
    assert caught.value.field.startswith(field)


@pytest.mark.parametrize("cron", ["* * * * * *", "0 16 * *"])
def test_a_cron_expression_has_five_fields(cron: str) -> None:
    with pytest.raises(ConfigurationError, match="five fields"):
        Schedule.of(cron=cron)
