"""The edges of calendar windows: days, weeks and months of a time zone, in microseconds since the epoch. Pure."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import TypeAlias
from zoneinfo import ZoneInfo, available_timezones

from paceline.durations import EPOCH, LATEST
from paceline.errors import ConfigurationError, MissingExtra

DAYS = {"day": 1, "week": 7, "month": 30}
"""The calendars, and how many days each usually has."""

Edges: TypeAlias = tuple[int, int, int]

_US = timedelta(microseconds=1)
_LATEST = LATEST - timedelta(days=100)


def check_zone(zone: object) -> None:
    """Checks that `zone` is an IANA time zone.

    Raises:
        ConfigurationError: there is no such zone.
        MissingExtra: this host has no time zones, and tzdata is not installed.
    """
    try:
        if not isinstance(zone, str) or not zone:
            raise ValueError
        _zone(zone)
    except (ValueError, OSError, LookupError):
        if not available_timezones():
            raise MissingExtra(f"the time zone {zone!r}", "timezones") from None
        raise ConfigurationError("zone", f"{zone!r} is no time zone; write for example Europe/Berlin") from None


def calendar_edges(calendar: str, zone: str, now_us: int) -> Edges:
    """The window around `now_us` and the one next to it that is nearer, as three edges in order."""
    start, end = window_around(calendar, zone, now_us)
    if now_us - start < end - now_us:
        return window_around(calendar, zone, start - 1)[0], start, end
    return start, end, window_around(calendar, zone, end)[1]


_last: dict[tuple[str, str], tuple[int, int]] = {}
"""The last window used, by calendar and zone: the next call usually needs the same."""


def window_around(calendar: str, zone: str, now_us: int) -> tuple[int, int]:
    """The start and the end of the window that `now_us` is in."""
    known = _last.get((calendar, zone))
    if known is not None and known[0] <= now_us < known[1]:
        return known
    moment = min(max(EPOCH + timedelta(days=40), EPOCH + now_us * _US), _LATEST)
    day = moment.astimezone(_zone(zone)).date()
    if calendar == "week":
        first = day - timedelta(days=day.weekday())
        after = first + timedelta(days=7)
    elif calendar == "month":
        first = day.replace(day=1)
        after = (first + timedelta(days=31)).replace(day=1)
    else:
        first, after = day, day + timedelta(days=1)
    window = _midnight(first, zone), _midnight(after, zone)
    _last[calendar, zone] = window
    return window


def _zone(name: str) -> tzinfo:
    return UTC if name == "UTC" else ZoneInfo(name)  # UTC needs no tzdata


@lru_cache(1024)
def _midnight(day: date, zone: str) -> int:
    """The first instant of a day. Where clocks skip midnight, Python counts on by the old offset: to that instant."""
    return (datetime(day.year, day.month, day.day, tzinfo=_zone(zone)).astimezone(UTC) - EPOCH) // _US
