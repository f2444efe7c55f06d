"""Open time: zones, daylight saving, holidays, blackouts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.durations import from_ms, to_ms
from paceline.errors import ConfigurationError
from paceline.slots.calendars import DAYS, Calendar
from tests.effort import examples

HOUR = 3_600_000
MINUTE = 60_000


def opening(calendar: dict[str, Any], after: datetime, size_ms: int = HOUR) -> datetime:
    start = Calendar.from_json(calendar).next_open_window(to_ms(after), size_ms)
    assert start is not None
    return from_ms(start)


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type, misc]


NEW_YORK = {
    "zone": "America/New_York",
    "open": [{"days": ["MON", "TUE", "WED", "THU", "FRI"], "from": "09:00", "to": "17:00"}],
}


def test_hours_follow_the_zone_through_daylight_saving() -> None:
    """Peer bug 22: 09:00 in New York is 14:00 UTC in winter and 13:00 in summer."""
    assert opening(NEW_YORK, utc(2027, 3, 12, 23)) == utc(2027, 3, 15, 13)
    assert opening(NEW_YORK, utc(2027, 3, 11, 23)) == utc(2027, 3, 12, 14)
    assert opening(NEW_YORK, utc(2027, 11, 5, 22)) == utc(2027, 11, 8, 14)


def test_an_hour_that_does_not_exist_is_not_open() -> None:
    night = {"zone": "America/New_York", "open": [{"from": "02:00", "to": "03:00"}]}
    assert opening(night, utc(2027, 3, 14, 0), MINUTE) == utc(2027, 3, 15, 6)


def test_hours_that_reach_into_the_gap_open_where_the_clock_lands() -> None:
    night = {"zone": "America/New_York", "open": [{"from": "02:30", "to": "04:00"}]}
    assert opening(night, utc(2027, 3, 14, 0), MINUTE) == utc(2027, 3, 14, 7)


def test_an_hour_that_happens_twice_is_open_twice() -> None:
    night = {"zone": "America/New_York", "open": [{"from": "01:00", "to": "01:30"}]}
    assert opening(night, utc(2027, 11, 7, 4), MINUTE) == utc(2027, 11, 7, 5)
    assert opening(night, utc(2027, 11, 7, 5, 30), MINUTE) == utc(2027, 11, 7, 6)
    assert opening(night, utc(2027, 11, 7, 6, 30), MINUTE) == utc(2027, 11, 8, 6)


def test_a_day_a_zone_skipped_is_not_open() -> None:
    """Samoa went from 29 to 31 December 2011."""
    friday = {"zone": "Pacific/Apia", "open": [{"days": ["FRI"], "from": "00:00", "to": "24:00"}]}
    assert opening(friday, utc(2011, 12, 29, 12), MINUTE) == utc(2012, 1, 5, 10)


def test_a_window_must_lie_wholly_inside_open_time() -> None:
    half_past = {"zone": "UTC", "open": [{"from": "09:30", "to": "12:15"}]}
    assert opening(half_past, utc(2027, 3, 1, 9)) == utc(2027, 3, 1, 10)
    assert opening(half_past, utc(2027, 3, 1, 11, 1)) == utc(2027, 3, 2, 10)


def test_windows_span_midnight_where_both_sides_are_open() -> None:
    around = {"zone": "Europe/Berlin", "open": [{"from": "00:00", "to": "24:00"}]}
    for calendar in ({"zone": "Europe/Berlin"}, around):
        assert opening(calendar, utc(2027, 3, 1, 22, 30), 7 * HOUR // 2) == utc(2027, 3, 1, 23)


def test_a_night_shift_belongs_to_the_day_it_starts_on() -> None:
    friday_night = {"zone": "UTC", "open": [{"days": ["FRI"], "from": "22:00", "to": "06:00"}]}
    assert opening(friday_night, utc(2027, 3, 5, 0)) == utc(2027, 3, 5, 22)
    assert opening(friday_night, utc(2027, 3, 6, 5)) == utc(2027, 3, 6, 5)
    assert opening(friday_night, utc(2027, 3, 6, 6)) == utc(2027, 3, 12, 22)


def test_bank_holidays_are_closed_in_their_zone() -> None:
    assert opening({"zone": "America/New_York", "holidays": "US"}, utc(2027, 12, 24, 5)) == utc(2027, 12, 26, 5)
    assert opening({"zone": "UTC", "holidays": "DE-BY"}, utc(2027, 1, 6, 0)) == utc(2027, 1, 7, 0)
    assert opening({"zone": "UTC", "holidays": "DE-BE"}, utc(2027, 1, 6, 0)) == utc(2027, 1, 6, 0)


def test_blackouts_close_what_would_be_open() -> None:
    blackouts = [
        {"from": "2027-03-01T10:00:00Z", "to": "2027-03-01T12:30:00Z"},
        {"from": "2027-03-01T12:30:00Z", "to": "2027-03-01T14:00:01Z"},
    ]
    assert opening({"zone": "UTC", "blackouts": blackouts}, utc(2027, 3, 1, 9, 30)) == utc(2027, 3, 1, 15)
    assert opening({"zone": "UTC", "blackouts": blackouts}, utc(2027, 3, 1, 8, 30)) == utc(2027, 3, 1, 9)


def test_what_never_opens_says_so() -> None:
    minute = {"zone": "UTC", "open": [{"from": "09:00", "to": "09:01"}]}
    assert Calendar.from_json(minute).next_open_window(to_ms(utc(2027, 3, 1)), HOUR) is None
    dark = {"zone": "UTC", "blackouts": [{"from": "2020-01-01T00:00:00Z", "to": "2199-12-31T00:00:00Z"}]}
    assert Calendar.from_json(dark).next_open_window(to_ms(utc(2027, 3, 1)), 25 * HOUR) is None


@settings(max_examples=examples(200), deadline=None)
@given(
    st.sampled_from(["America/New_York", "Europe/Berlin", "Australia/Lord_Howe", "Asia/Kolkata", "America/Sao_Paulo"]),
    st.sets(st.sampled_from(DAYS), min_size=1),
    st.integers(0, 23),
    st.integers(1, 24),
    st.integers(0, 365 * 24 * 60),
)
def test_open_is_what_the_wall_clock_says(zone: str, days: set[str], opens: int, closes: int, minutes: int) -> None:
    """Against the plain definition: ask the zone what time it is, for every minute of the window found."""
    if opens >= closes:
        return
    calendar = Calendar.from_json(
        {"zone": zone, "open": [{"days": sorted(days), "from": f"{opens:02d}:00", "to": f"{closes:02d}:00"}]}
    )

    def is_open(moment: datetime) -> bool:
        wall = moment.astimezone(ZoneInfo(zone))
        return DAYS[wall.weekday()] in days and opens <= wall.hour < closes

    after = utc(2027, 1, 1) + timedelta(minutes=minutes)
    start = calendar.next_open_window(to_ms(after), 15 * MINUTE)
    assert start is not None
    assert all(is_open(from_ms(start + step * MINUTE)) for step in range(15))
    quarter = -(-to_ms(after) // (15 * MINUTE)) * 15 * MINUTE
    while quarter < start:
        assert not all(is_open(from_ms(quarter + step * MINUTE)) for step in range(15))
        quarter += 15 * MINUTE


@pytest.mark.parametrize(
    ("calendar", "field"),
    [
        ({}, "calendar.zone"),
        ({"zone": "Mars/Olympus"}, "calendar.zone"),
        ({"zone": "../etc/passwd"}, "calendar.zone"),
        ({"zone": 7}, "calendar.zone"),
        ({"zone": "UTC", "colour": "red"}, "calendar.colour"),
        ({"zone": "UTC", "open": []}, "calendar.open"),
        ({"zone": "UTC", "open": {"from": "09:00"}}, "calendar.open"),
        ({"zone": "UTC", "open": ["09:00"]}, "calendar.open[0]"),
        ({"zone": "UTC", "open": [{"days": ["MONDAY"]}]}, "calendar.open[0].days"),
        ({"zone": "UTC", "open": [{"days": []}]}, "calendar.open[0].days"),
        ({"zone": "UTC", "open": [{"from": "9"}]}, "calendar.open[0].from"),
        ({"zone": "UTC", "open": [{"from": "25:00"}]}, "calendar.open[0].from"),
        ({"zone": "UTC", "open": [{"from": "09:00", "to": "09:00"}]}, "calendar.open[0].to"),
        ({"zone": "UTC", "holidays": "ATLANTIS"}, "calendar.holidays"),
        ({"zone": "UTC", "holidays": "US-ZZ"}, "calendar.holidays"),
        ({"zone": "UTC", "holidays": 3}, "calendar.holidays"),
        ({"zone": "UTC", "blackouts": [{"from": "2027-03-01"}]}, "calendar.blackouts[0].from"),
        (
            {"zone": "UTC", "blackouts": [{"from": "2027-03-02T00:00:00Z", "to": "2027-03-01T00:00:00Z"}]},
            "calendar.blackouts[0].to",
        ),
    ],
)
def test_a_wrong_calendar_is_refused_by_field(calendar: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        Calendar.from_json(calendar)
    assert refusal.value.field == field


def test_a_calendar_survives_the_wire() -> None:
    calendar = {
        "zone": "America/New_York",
        "open": [
            {"days": ["MON", "SUN"], "from": "09:00", "to": "17:30:15"},
            {"days": ["TUE"], "from": "22:00", "to": "06:00"},
        ],
        "holidays": "US",
        "blackouts": [{"from": "2027-03-20T00:00:00.000Z", "to": "2027-03-21T00:00:00.000Z"}],
    }
    assert Calendar.from_json(calendar).to_json() == calendar


def test_hours_that_never_hold_a_window_are_found_out_soon() -> None:
    """Looked for once a day for ten years, not in each of a day's openings until 2200."""
    looks = 0

    class Counted(Calendar):
        def _open_on(self, day: int) -> tuple[tuple[int, int], ...]:
            nonlocal looks
            looks += 1
            return super()._open_on(day)

    minutes = [f"{n // 60:02d}:{n % 60:02d}" for n in range(0, 1440, 10)]
    many = [{"from": minute, "to": f"{minute}:01"} for minute in minutes]
    for hours in (many, [{"from": "09:30", "to": "10:15"}], [{"from": "23:30", "to": "00:15"}]):
        looks = 0
        size = 4000 if hours is many else HOUR
        calendar = Counted.from_json({"zone": "UTC", "open": hours})
        assert calendar.next_open_window(to_ms(utc(2027, 1, 1)), size) is None
        assert looks < 4 * 3700


def test_a_long_blackout_is_left_at_its_end_without_walking_through_it() -> None:
    blackouts = [
        {"from": "2030-01-01T00:00:00Z", "to": "2150-06-01T00:00:00Z"},
        {"from": "2027-01-01T00:00:00Z", "to": "2031-01-01T00:00:00Z"},
    ]
    calendar = Calendar.from_json({"zone": "Europe/Berlin", "open": [{"days": ["TUE"]}], "blackouts": blackouts})
    # 2150-06-01 is a Monday; Tuesday begins at 22:00 UTC, in summer time.
    assert calendar.next_open_window(to_ms(utc(2027, 1, 1)), HOUR) == to_ms(utc(2150, 6, 1, 22))
    assert len(calendar._days) < 10


@pytest.mark.parametrize("code", ["utils", "registry", "HolidayBase", "UnitedStates", "US-", "US-XX", "us", "", "-"])
def test_only_codes_of_countries_and_exchanges_are_taken(code: str) -> None:
    with pytest.raises(ConfigurationError, match=r"calendar\.holidays"):
        Calendar.from_json({"zone": "UTC", "holidays": code})


@pytest.mark.parametrize("code", ["US", "USA", "DE-BY", "ECB", "XNYS"])
def test_countries_their_parts_and_exchanges_have_holidays(code: str) -> None:
    calendar = Calendar.from_json({"zone": "UTC", "holidays": code})
    assert calendar.next_open_window(to_ms(utc(2027, 1, 1)), HOUR) != to_ms(utc(2027, 1, 1))
