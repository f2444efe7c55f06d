"""Clearing days: cut-off, weekends and holidays, by the slot and not by the request."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest

from paceline.errors import InvalidInput
from paceline.slots.calendars import Calendar
from paceline_payments.clearing import Clearing, ClosedDay

BRUSSELS = Calendar.from_json(
    {
        "zone": "Europe/Brussels",
        "holidays": "ECB",
        "open": [{"days": ["MON", "TUE", "WED", "THU", "FRI"], "from": "07:00", "to": "16:00"}],
    }
)
THURSDAY = datetime(2027, 3, 4, 12, tzinfo=UTC)
SATURDAY = datetime(2027, 3, 6, 11, 30, tzinfo=UTC)
SATURDAY_EVENING = datetime(2027, 3, 6, 20, tzinfo=UTC)
GOOD_FRIDAY = datetime(2027, 3, 26, 9, tzinfo=UTC)


@pytest.mark.parametrize(
    ("scheduled", "value_date"),
    [
        (datetime(2027, 3, 1, 14, 59, tzinfo=UTC), date(2027, 3, 1)),
        (datetime(2027, 3, 1, 15, 0, tzinfo=UTC), date(2027, 3, 2)),  # 16:00 in Brussels: past the cut-off
        (datetime(2027, 7, 1, 14, 0, tzinfo=UTC), date(2027, 7, 2)),  # in summer that is an hour earlier
        (datetime(2027, 3, 1, 23, 30, tzinfo=UTC), date(2027, 3, 2)),  # 00:30 the next day in Brussels
        (SATURDAY, date(2027, 3, 8)),
        (GOOD_FRIDAY, date(2027, 3, 30)),  # after Easter Monday
    ],
)
def test_the_value_date_is_the_day_of_the_first_clearing_minute(scheduled: datetime, value_date: date) -> None:
    assert Clearing(BRUSSELS).value_date(scheduled) == value_date


@pytest.mark.parametrize("requested", [THURSDAY, datetime(2027, 3, 5, 20, tzinfo=UTC)])
@pytest.mark.parametrize("on_closed_day", ClosedDay)
def test_a_clearing_day_is_booked_as_requested_also_after_its_cut_off(
    requested: datetime, on_closed_day: ClosedDay
) -> None:
    assert Clearing(BRUSSELS, on_closed_day).booking_time(requested, THURSDAY) == requested


@pytest.mark.parametrize(
    ("requested", "on_closed_day", "booked"),
    [
        (SATURDAY, ClosedDay.NEXT, datetime(2027, 3, 8, 6, tzinfo=UTC)),
        (SATURDAY, ClosedDay.PREVIOUS, datetime(2027, 3, 5, 11, 30, tzinfo=UTC)),
        (SATURDAY_EVENING, ClosedDay.PREVIOUS, datetime(2027, 3, 5, 14, 59, tzinfo=UTC)),  # before the cut-off
        (GOOD_FRIDAY, ClosedDay.NEXT, datetime(2027, 3, 30, 5, tzinfo=UTC)),
        (GOOD_FRIDAY, ClosedDay.PREVIOUS, datetime(2027, 3, 25, 9, tzinfo=UTC)),
        (SATURDAY, None, SATURDAY),
    ],
)
def test_a_closed_day_is_booked_as_the_rule_says(
    requested: datetime, on_closed_day: ClosedDay | None, booked: datetime
) -> None:
    assert Clearing(BRUSSELS, on_closed_day).booking_time(requested, THURSDAY) == booked


def test_a_previous_day_that_is_over_is_the_next_one() -> None:
    clearing = Clearing(BRUSSELS, ClosedDay.PREVIOUS)
    assert clearing.booking_time(SATURDAY, SATURDAY) == datetime(2027, 3, 8, 6, tzinfo=UTC)


def test_a_closed_day_is_rejected_by_its_date() -> None:
    clearing = Clearing(BRUSSELS, ClosedDay.REJECT)
    for check in (lambda: clearing.booking_time(SATURDAY, THURSDAY), lambda: clearing.check_slot(SATURDAY)):
        with pytest.raises(InvalidInput, match="2027-03-06"):
            check()
    clearing.check_slot(THURSDAY)
