"""Durations and instants on the wire."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.durations import (
    format_duration,
    format_instant,
    from_ms,
    parse_duration,
    parse_instant,
    parse_moment,
    to_ms,
)
from paceline.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("PT4S", timedelta(seconds=4)),
        ("PT0.5S", timedelta(milliseconds=500)),
        ("PT0,25S", timedelta(milliseconds=250)),
        ("P1D", timedelta(days=1)),
        ("P1DT12H", timedelta(hours=36)),
        ("P2W", timedelta(weeks=2)),
        ("PT1H30M", timedelta(minutes=90)),
        ("pt10m", timedelta(minutes=10)),
        ("4s", timedelta(seconds=4)),
        ("1m30s", timedelta(seconds=90)),
        ("2h", timedelta(hours=2)),
        ("2h30m", timedelta(minutes=150)),
        ("250ms", timedelta(milliseconds=250)),
        ("0.5s", timedelta(milliseconds=500)),
        ("1d12h", timedelta(hours=36)),
        ("2w", timedelta(weeks=2)),
    ],
)
def test_durations_are_read(text: str, span: timedelta) -> None:
    assert parse_duration(text) == span


@pytest.mark.parametrize(
    "text",
    [
        "",
        "P",
        "PT",
        "4",
        "P1M",
        "P1Y",
        "PT-4S",
        "-PT4S",
        "P1DT",
        "PT4S ",
        "PT٤S",
        "s",
        "-4s",
        "4s ",
        "1m 30s",
        "4 seconds",
        "5min",
        "30s1m",
        "4x",
        "1 month",
        "٤s",
        "4s4s",
        "PT4Sm",
    ],
)
def test_what_is_no_duration_is_refused_by_field(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"windowSize: .*PT4S"):
        parse_duration(text, "windowSize")


NOW = datetime(2027, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "past", "future"),
    [
        ("P30D", NOW - timedelta(days=30), NOW + timedelta(days=30)),
        ("30d", NOW - timedelta(days=30), NOW + timedelta(days=30)),
        ("1h30m", NOW - timedelta(minutes=90), NOW + timedelta(minutes=90)),
    ],
)
def test_a_person_names_an_instant_by_its_distance(text: str, past: datetime, future: datetime) -> None:
    assert parse_moment(text, NOW, "--before", past=True) == past
    assert parse_moment(text, NOW, "--expires", past=False) == future


def test_a_person_names_an_instant_on_the_right_side_of_now() -> None:
    assert parse_moment("2027-01-01T00:00:00Z", NOW, "--before", past=True) == datetime(2027, 1, 1, tzinfo=UTC)
    assert parse_moment("P90000D", NOW, "--before", past=True) == datetime(1970, 1, 1, tzinfo=UTC)
    with pytest.raises(InvalidInput, match=r"--before: lies in the future"):
        parse_moment("2028-01-01T00:00:00Z", NOW, "--before", past=True)
    with pytest.raises(InvalidInput, match=r"--expires: lies in the past"):
        parse_moment("2027-01-01T00:00:00Z", NOW, "--expires", past=False)
    with pytest.raises(InvalidInput, match=r"--expires: .*neither a duration such as 30d"):
        parse_moment("soon", NOW, "--expires", past=False)


def test_a_duration_beyond_the_calendar_is_refused() -> None:
    with pytest.raises(InvalidInput, match="too long"):
        parse_duration("P999999999999D")


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=400_000)))
def test_durations_survive_the_wire_exactly(span: timedelta) -> None:
    assert parse_duration(format_duration(span)) == span


@given(st.datetimes(datetime(1970, 1, 1), datetime(2199, 12, 31), timezones=st.just(UTC)))
def test_milliseconds_are_rounded_up_so_that_nothing_is_scheduled_early(moment: datetime) -> None:
    back = from_ms(to_ms(moment))
    assert timedelta(0) <= back - moment < timedelta(milliseconds=1)
    assert parse_instant(format_instant(back)) == back


@pytest.mark.parametrize(
    "text",
    [
        "2027-03-01T16:00:00",
        "9999-12-31T23:59:59Z",
        "1969-12-31T23:59:59Z",
        "-0001-01-01T00:00:00Z",
        "tomorrow",
        "",
        "20",
    ],
)
def test_naive_absurd_and_unreadable_instants_are_refused_by_field(text: str) -> None:
    with pytest.raises(InvalidInput, match="requestedTime: "):
        parse_instant(text, "requestedTime")


def test_offsets_are_turned_to_utc() -> None:
    assert format_instant(parse_instant("2027-03-01T18:00:00.1239+02:00")) == "2027-03-01T16:00:00.123Z"
