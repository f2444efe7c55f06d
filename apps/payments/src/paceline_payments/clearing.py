"""Clearing days: on which day a payment counts, and what becomes of one that is requested for a closed day. Pure."""

from __future__ import annotations

import zoneinfo
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum

from paceline.durations import from_ms, to_ms
from paceline.errors import InvalidInput
from paceline.slots.calendars import Calendar

MINUTE_MS = 60_000
MAX_CLOSED_DAYS = 60
"""How far back the previous clearing day is searched."""


class ClosedDay(StrEnum):
    """What becomes of a payment for a Saturday, a Sunday or a holiday."""

    NEXT = "next"
    """It is booked for the next clearing day."""
    PREVIOUS = "previous"
    """It is booked for the clearing day before, at the same local time, but before the cut-off; if that is over, for
    the next one."""
    REJECT = "reject"


@dataclass(frozen=True)
class Clearing:
    """The clearing calendar of a currency. Its closing hour is the cut-off."""

    calendar: Calendar
    on_closed_day: ClosedDay | None = None
    """None: times are booked as they are."""

    def booking_time(self, requested: datetime, now: datetime) -> datetime:
        """From when a slot is booked for a payment that is requested for this time.

        Raises:
            InvalidInput: The day is closed, and such payments are rejected, or no clearing day follows.
        """
        if self.on_closed_day is None or self.is_clearing_day(requested):
            return requested
        if self.on_closed_day is ClosedDay.REJECT:
            raise InvalidInput("executeAt", f"{self._local(requested).date()} is no clearing day")
        if self.on_closed_day is ClosedDay.PREVIOUS:
            earlier = self._day_before(requested)
            if earlier is not None and earlier > now:
                return earlier
        return self._next_open(requested)

    def check_slot(self, scheduled: datetime) -> None:
        """Rejects a slot on a closed day, if payments for such days are rejected: others were before it, and it was
        pushed there.

        Raises:
            InvalidInput: It is on a closed day.
        """
        if self.on_closed_day is ClosedDay.REJECT and not self.is_clearing_day(scheduled):
            raise InvalidInput("executeAt", f"its slot would be on {self._local(scheduled).date()}, no clearing day")

    def value_date(self, scheduled: datetime) -> date:
        """The local day of the first clearing minute at or after the slot: after the cut-off, on a weekend or on a
        holiday that is a later day.

        Raises:
            InvalidInput: No clearing day follows.
        """
        return self._local(self._next_open(scheduled)).date()

    def is_clearing_day(self, moment: datetime) -> bool:
        """Whether there is a clearing minute on the local day of this time, before or after it."""
        day = self._local(moment).date()
        first = self.calendar.next_open_window(to_ms(self._at(day, time())), MINUTE_MS)
        return first is not None and self._local(from_ms(first)).date() == day

    def _day_before(self, requested: datetime) -> datetime | None:
        """The same wall time on the clearing day before, or its last clearing minute before that."""
        local = self._local(requested)
        for days in range(1, MAX_CLOSED_DAYS):
            wall = self._at(local.date() - timedelta(days=days), local.time())
            if not self.is_clearing_day(wall):
                continue
            minute = to_ms(wall) // MINUTE_MS * MINUTE_MS
            if self.calendar.closing_rule(minute, MINUTE_MS) is None:
                return wall
            return self._last_open(minute) or self._next_open(wall)
        return None

    def _last_open(self, minute: int) -> datetime | None:
        """The last clearing minute before this one, on the same local day."""
        day = self._local(from_ms(minute)).date()
        while self._local(from_ms(minute)).date() == day:
            if self.calendar.closing_rule(minute, MINUTE_MS) is None:
                return from_ms(minute)
            minute -= MINUTE_MS
        return None

    def _next_open(self, moment: datetime) -> datetime:
        minute = self.calendar.next_open_window(to_ms(moment), MINUTE_MS)
        if minute is None:
            raise InvalidInput("executeAt", "no clearing day follows it")
        return from_ms(minute)

    def _local(self, moment: datetime) -> datetime:
        return moment.astimezone(zoneinfo.ZoneInfo(self.calendar.zone))

    def _at(self, day: date, wall: time) -> datetime:
        return datetime.combine(day, wall, zoneinfo.ZoneInfo(self.calendar.zone)).astimezone(UTC)
