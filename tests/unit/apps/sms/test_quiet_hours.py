"""Quiet hours hold in every zone that a number may be in."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from paceline.durations import from_ms, to_ms
from paceline_sms.quiet_hours import QuietHours
from paceline_sms.recipients import zones_of

HOURS = QuietHours("21:00-08:00")


def ends(at: str, *zones: str, hours: QuietHours = HOURS) -> str | None:
    end_ms = hours.ends_ms(to_ms(datetime.fromisoformat(at).replace(tzinfo=UTC)), zones)
    return None if end_ms is None else from_ms(end_ms).strftime("%d %H:%M")


@pytest.mark.parametrize(
    ("at", "zones", "end"),
    [
        ("2027-03-01 12:00", (), None),
        ("2027-03-01 22:00", (), "02 08:00"),
        ("2027-03-01 20:30", ("Europe/Berlin",), "02 07:00"),
        ("2027-03-01 20:30", ("America/New_York",), None),
        # Perth sleeps until 0 UTC, Sydney from 10 UTC on.
        ("2027-03-01 11:00", ("Australia/Sydney", "Australia/Perth"), "02 00:00"),
        ("2027-03-01 05:00", ("Australia/Sydney", "Australia/Perth"), None),
    ],
)
def test_they_end_when_all_zones_are_awake(at: str, zones: tuple[str, ...], end: str | None) -> None:
    assert ends(at, *zones) == end


@pytest.mark.parametrize(("at", "end"), [("2027-03-01 20:30", None), ("2027-03-01 12:00", "01 20:00")])
def test_of_zones_that_are_never_awake_together_the_first_decides(at: str, end: str | None) -> None:
    assert ends(at, "Etc/GMT-12", "Etc/GMT", hours=QuietHours("10:00-08:00")) == end


def test_the_zones_of_a_number_are_its_country_s_or_its_area_s() -> None:
    assert zones_of("+491701234567") == ("Europe/Berlin",)
    assert zones_of("+12125551234") == ("America/New_York",)
    assert "Australia/Perth" in zones_of("+61412345678")
    assert zones_of("+8001234567") == ()
