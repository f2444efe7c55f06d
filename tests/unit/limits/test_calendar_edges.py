"""The edges of days, weeks and months in a time zone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.limits.calendar_edges import calendar_edges, window_around

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

HOUR = 3_600_000_000


def us(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


def local(zone: str, *parts: int) -> int:
    return us(datetime(*parts, tzinfo=ZoneInfo(zone)))  # type: ignore[arg-type, misc]


@pytest.mark.parametrize(
    ("calendar", "zone", "now", "start", "end", "hours"),
    [
        ("day", "UTC", (2027, 3, 1, 12), (2027, 3, 1), (2027, 3, 2), 24),
        ("day", "Europe/Berlin", (2027, 3, 28, 12), (2027, 3, 28), (2027, 3, 29), 23),
        ("day", "Europe/Berlin", (2027, 10, 31, 2), (2027, 10, 31), (2027, 11, 1), 25),
        ("week", "Europe/Berlin", (2027, 3, 28, 23), (2027, 3, 22), (2027, 3, 29), 167),
        ("month", "Europe/Berlin", (2027, 3, 1), (2027, 3, 1), (2027, 4, 1), 31 * 24 - 1),
        ("month", "America/New_York", (2028, 2, 29, 23), (2028, 2, 1), (2028, 3, 1), 29 * 24),
        # Clocks skip midnight: the day begins with its first instant, which is 01:00.
        ("day", "Africa/Cairo", (2027, 4, 30, 12), (2027, 4, 30, 1), (2027, 5, 1), 23),
        # Samoa had no 30 December 2011.
        ("day", "Pacific/Apia", (2011, 12, 29, 12), (2011, 12, 29), (2011, 12, 31), 24),
    ],
)
def test_windows_are_those_of_the_zone(calendar: str, zone: str, now: Any, start: Any, end: Any, hours: int) -> None:
    window = window_around(calendar, zone, local(zone, *now))
    assert window == (local(zone, *start), local(zone, *end))
    assert window[1] - window[0] == hours * HOUR


@given(
    st.sampled_from(["day", "week", "month"]),
    st.sampled_from(["UTC", "Europe/Berlin", "Africa/Cairo", "Australia/Lord_Howe", "America/St_Johns"]),
    st.integers(us(datetime(2000, 1, 1, tzinfo=UTC)), us(datetime(2100, 1, 1, tzinfo=UTC))),
)
def test_windows_tile_time(calendar: str, zone: str, now: int) -> None:
    start, end = window_around(calendar, zone, now)
    assert start <= now < end
    assert window_around(calendar, zone, start - 1)[1] == start
    assert window_around(calendar, zone, end)[0] == end
    first, second, third = calendar_edges(calendar, zone, now)
    assert first < second < third
    assert start in (first, second)
    assert end in (second, third)
