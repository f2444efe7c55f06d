"""Quiet hours in a recipient's time zone, by the calendars of slots."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from paceline.errors import ConfigurationError
from paceline.slots.calendars import DAYS, Calendar

DEFAULT_ZONE = "UTC"
MAX_STEPS = 10
_SECOND_MS = 1000


class QuietHours:
    """`21:00-08:00`: no messages from nine in the evening until eight in the morning, in the recipient's zone.

    Raises:
        ConfigurationError: The text names no two times of day.
    """

    def __init__(self, text: str, *, default_zone: str = DEFAULT_ZONE) -> None:
        begin, dash, end = text.partition("-")
        if not dash:
            raise ConfigurationError("quiet_hours", f"{text!r:.80} names no two times; write for example 21:00-08:00")
        try:
            # Open from the end of the quiet hours to their beginning, perhaps past midnight.
            hours = {"days": list(DAYS), "from": end.strip(), "to": begin.strip()}
            self._calendar = lru_cache(1000)(lambda zone: Calendar.from_json({"zone": zone, "open": [hours]}))
            self._calendar(default_zone)
        except ConfigurationError as error:
            raise ConfigurationError("quiet_hours", f"{error.problem}; write for example 21:00-08:00") from None
        self._default_zone = default_zone

    def ends_ms(self, now_ms: int, zones: Sequence[str]) -> int | None:
        """When the present quiet hours end in all of the zones; None if there are none now. Of zones that are never
        awake together the first decides."""
        calendars = [self._calendar(zone) for zone in zones or [self._default_zone]]
        end_ms = now_ms
        for _ in range(MAX_STEPS):
            later_ms = max(_opens_ms(calendar, end_ms) for calendar in calendars)
            if later_ms == end_ms:
                return None if end_ms == now_ms else end_ms
            end_ms = later_ms
        return self.ends_ms(now_ms, zones[:1])


def _opens_ms(calendar: Calendar, at_ms: int) -> int:
    """From when on it is open: that instant, if it is open then."""
    if calendar.open_until(at_ms) > at_ms:
        return at_ms
    opens_ms = calendar.next_open_window(at_ms, _SECOND_MS)
    return at_ms if opens_ms is None else opens_ms
