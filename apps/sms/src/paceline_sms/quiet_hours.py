"""Quiet hours in a recipient's time zone, by the calendars of slots."""

from __future__ import annotations

from functools import lru_cache

from paceline.errors import ConfigurationError
from paceline.slots.calendars import DAYS, Calendar

DEFAULT_ZONE = "UTC"
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

    def ends_ms(self, now_ms: int, zone: str | None) -> int | None:
        """When the present quiet hours in `zone` end; None if there are none now."""
        calendar = self._calendar(zone or self._default_zone)
        if calendar.open_until(now_ms) > now_ms:
            return None
        return calendar.next_open_window(now_ms, _SECOND_MS)
