"""When work may run at all: business hours, bank holidays, blackouts.

An instant is open when its wall clock in the calendar's zone stands inside an open rule, its local date is no holiday,
and no blackout covers it. This defines daylight saving, too: an hour that is skipped is never open, an hour that
repeats is open twice. A window is open only if it lies wholly inside open time.
"""

from __future__ import annotations

import zoneinfo
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import cached_property, lru_cache
from typing import Any

from paceline.durations import LATEST, format_instant, from_ms, parse_instant, to_ms
from paceline.errors import ConfigurationError, InvalidInput
from paceline.extras import require

DAY_MS = 86_400_000
DAYS = ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")
_LATEST_MS = to_ms(LATEST)
_MOST_RULES = 1000
_SEARCHED_MS = 3660 * DAY_MS
"""How far past its last blackout a calendar is searched: hours that open no window in ten years never will."""

Interval = tuple[int, int]
"""Half open, in milliseconds: of an epoch, or of a local day."""


@dataclass(frozen=True, slots=True)
class OpenHours:
    """On these weekdays (0 is Monday), from one wall-clock time to another, in milliseconds of the local day.

    `until_ms` at or before `from_ms` means the next day: a night shift belongs to the weekday it starts on.
    """

    days: frozenset[int]
    from_ms: int
    until_ms: int


@dataclass(frozen=True)
class Calendar:
    """Open time in one zone. Build it from JSON with `Calendar.from_json`, which checks every field."""

    zone: str
    open: tuple[OpenHours, ...] = ()
    """Empty means always open, but for holidays and blackouts."""
    holidays: str | None = None
    blackouts: tuple[Interval, ...] = ()
    _days: dict[int, tuple[Interval, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Calendar:
        """The calendar of the contract's JSON form.

        Raises:
            ConfigurationError: a member is wrong; names it.
        """
        _only(value, {"zone", "open", "holidays", "blackouts"}, "calendar")
        if "zone" not in value:
            raise ConfigurationError("calendar.zone", "is required; write an IANA name such as Europe/Berlin")
        if value.get("open") == []:
            raise ConfigurationError("calendar.open", "is empty, so it never opens; leave it out to be always open")
        return cls(
            _zone_name(value["zone"]),
            tuple(
                hours_from_json(rule, f"calendar.open[{index}]")
                for index, rule in _items(value.get("open"), "calendar.open")
            ),
            _holiday_code(value.get("holidays")),
            tuple(
                sorted(
                    _blackout(rule, f"calendar.blackouts[{index}]")
                    for index, rule in _items(value.get("blackouts"), "calendar.blackouts")
                )
            ),
        )

    def to_json(self) -> dict[str, Any]:
        """The contract's JSON form."""
        shown: dict[str, Any] = {"zone": self.zone}
        if self.open:
            shown["open"] = [hours_to_json(rule) for rule in self.open]
        if self.holidays:
            shown["holidays"] = self.holidays
        if self.blackouts:
            shown["blackouts"] = [
                {"from": format_instant(from_ms(start)), "to": format_instant(from_ms(end))}
                for start, end in self.blackouts
            ]
        return shown

    def next_open_window(self, earliest_ms: int, size_ms: int) -> int | None:
        """The start of the first epoch-aligned window at or after `earliest_ms` that is wholly open; None: never."""
        start = -(-earliest_ms // size_ms) * size_ms
        blackouts = self._closures
        searched = max(start, blackouts[-1][1] if blackouts else 0) + _SEARCHED_MS
        while start + size_ms <= _LATEST_MS and start <= searched:
            closed = self._first_closed(start, start + size_ms)
            if closed is None:
                return start
            candidate = self._next_candidate(closed, size_ms, searched)
            if candidate is None:
                return None
            start = candidate
        return None

    def open_until(self, at_ms: int) -> int:
        """When the opening at a time ends, within the UTC day; the time itself if it is closed."""
        interval = self._interval_at(at_ms)
        return at_ms if interval is None else interval[1]

    def opens_within(self, start_ms: int, end_ms: int) -> bool:
        """Whether any instant of [start, end) is open."""
        for day in range(start_ms // DAY_MS, (end_ms - 1) // DAY_MS + 1):
            intervals = self._open_on(day)
            index = bisect_right(intervals, (start_ms, _LATEST_MS)) - 1
            if index >= 0 and start_ms < intervals[index][1]:
                return True
            if index + 1 < len(intervals) and intervals[index + 1][0] < end_ms:
                return True
        return False

    def changes_after(self, at_ms: int) -> int:
        """When it next opens or closes after a time, within the UTC day."""
        intervals = self._open_on(at_ms // DAY_MS)
        index = bisect_right(intervals, (at_ms, _LATEST_MS)) - 1
        if index >= 0 and at_ms < intervals[index][1]:
            return intervals[index][1]
        return intervals[index + 1][0] if index + 1 < len(intervals) else (at_ms // DAY_MS + 1) * DAY_MS

    def closing_rule(self, start_ms: int, size_ms: int) -> str | None:
        """The rule that closes a window: `blackouts`, `holidays` or `open`; None if the window is wholly open."""
        closed = self._first_closed(start_ms, start_ms + size_ms)
        if closed is None:
            return None
        index = bisect_right(self._closures, (closed, _LATEST_MS)) - 1
        if index >= 0 and closed < self._closures[index][1]:
            return "blackouts"
        local_day = (closed + _offset_ms(self.zone, closed)) // DAY_MS
        return "holidays" if self.holidays and _is_holiday(self.holidays, local_day) else "open"

    @cached_property
    def _closures(self) -> tuple[Interval, ...]:
        """The blackouts, ordered and disjoint."""
        return tuple(_merged(self.blackouts))

    def _first_closed(self, start: int, end: int) -> int | None:
        """The first closed instant of [start, end), if there is one."""
        at = start
        while at < end:
            interval = self._interval_at(at)
            if interval is None:
                return at
            at = interval[1]
        return None

    def _next_candidate(self, at: int, size: int, searched: int) -> int | None:
        """The first window after `at` that the hours of a single day leave open, or that may reach into the next."""
        while at < _LATEST_MS and at <= searched:
            at = self._after_blackout(at)
            day_end = (at // DAY_MS + 1) * DAY_MS
            for start, end in self._open_on(at // DAY_MS):
                window = -(-max(start, at) // size) * size
                if window < end and (window + size <= end or end == day_end):
                    return window
            at = day_end
        return None

    def _after_blackout(self, at: int) -> int:
        index = bisect_right(self._closures, (at, _LATEST_MS)) - 1
        return max(at, self._closures[index][1]) if index >= 0 else at

    def _interval_at(self, at: int) -> Interval | None:
        intervals = self._open_on(at // DAY_MS)
        index = bisect_right(intervals, (at, _LATEST_MS)) - 1
        return intervals[index] if index >= 0 and at < intervals[index][1] else None

    def _open_on(self, day: int) -> tuple[Interval, ...]:
        """The open intervals of one UTC day, in epoch milliseconds, ordered and disjoint."""
        spans = self._days.get(day)
        if spans is None:
            if len(self._days) >= 4096:
                self._days.clear()
            spans = self._days[day] = tuple(_without(_merged(self._opened(day)), self._closures))
        return spans

    def _opened(self, day: int) -> Iterator[Interval]:
        for start, end, offset in _offsets(self.zone, day):
            local_day = (start + offset) // DAY_MS
            while local_day * DAY_MS < end + offset:
                for open_from, open_until in self._hours(local_day):
                    wall = local_day * DAY_MS - offset
                    clipped = max(start, wall + open_from), min(end, wall + open_until)
                    if clipped[0] < clipped[1]:
                        yield clipped
                local_day += 1

    def _hours(self, local_day: int) -> Iterator[Interval]:
        """The open wall-clock intervals of a local date, counted in days since 1970-01-01 (a Thursday)."""
        if self.holidays and _is_holiday(self.holidays, local_day):
            return
        if not self.open:
            yield 0, DAY_MS
        weekday = (local_day + 3) % 7
        for rule in self.open:
            overnight = rule.until_ms <= rule.from_ms
            if weekday in rule.days:
                yield rule.from_ms, DAY_MS if overnight else rule.until_ms
            if overnight and (weekday - 1) % 7 in rule.days:
                yield 0, rule.until_ms


@lru_cache(maxsize=4096)
def _offsets(zone: str, day: int) -> tuple[tuple[int, int, int], ...]:
    """The stretches of one UTC day with a constant offset from UTC: (start, end, offset), in milliseconds."""
    start, end = day * DAY_MS, (day + 1) * DAY_MS
    before, after = _offset_ms(zone, start), _offset_ms(zone, end)
    if before == after:
        return ((start, end, before),)
    low, high = start, end
    while high - low > 1000:
        middle = (low + high) // 2000 * 1000
        if _offset_ms(zone, middle) == before:
            low = middle
        else:
            high = middle
    return (start, high, before), (high, end, after)


def _offset_ms(zone: str, at_ms: int) -> int:
    offset = datetime.fromtimestamp(at_ms // 1000, zoneinfo.ZoneInfo(zone)).utcoffset()
    return (offset or timedelta()) // timedelta(milliseconds=1)


@lru_cache(maxsize=1024)
def _holidays_of(code: str, year: int) -> frozenset[date]:
    # Imported when a calendar first needs it: the package is an extra, and large.
    require("a calendar with holidays", "calendars")
    import holidays
    from holidays.registry import COUNTRIES, FINANCIAL

    country, dash, part = code.partition("-")
    if dash and not part:
        raise NotImplementedError
    # Looked up first: the package would accept any of its names as a country, its functions too.
    if any(country in codes for _, *codes in COUNTRIES.values()):
        return frozenset(holidays.country_holidays(country, subdiv=part or None, years=year))
    if any(country in codes for _, *codes in FINANCIAL.values()):
        return frozenset(holidays.financial_holidays(country, subdiv=part or None, years=year))
    raise NotImplementedError


def _is_holiday(code: str, local_day: int) -> bool:
    day = date(1970, 1, 1) + timedelta(days=local_day)
    return day in _holidays_of(code, day.year)


def _merged(intervals: Iterable[Interval]) -> Iterator[Interval]:
    current: Interval | None = None
    for start, end in sorted(intervals):
        if current and start <= current[1]:
            current = current[0], max(current[1], end)
        else:
            if current:
                yield current
            current = start, end
    if current:
        yield current


def _without(intervals: Iterable[Interval], closed: tuple[Interval, ...]) -> Iterator[Interval]:
    for start, end in intervals:
        for closed_from, closed_until in closed:
            if closed_until <= start or closed_from >= end:
                continue
            if closed_from > start:
                yield start, closed_from
            start = closed_until
            if start >= end:
                break
        if start < end:
            yield start, end


def _only(value: object, known: set[str], name: str) -> None:
    if not isinstance(value, dict):
        raise ConfigurationError(name, "must be an object")
    for key in value:
        if key not in known:
            raise ConfigurationError(f"{name}.{key}", f"is unknown; known are {', '.join(sorted(known))}")


def _items(value: object, name: str) -> Iterable[tuple[int, Any]]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or len(value) > _MOST_RULES:
        raise ConfigurationError(name, f"must be a list of at most {_MOST_RULES} objects")
    return enumerate(value)


def _zone_name(value: object) -> str:
    try:
        if not isinstance(value, str):
            raise ValueError
        zoneinfo.ZoneInfo(value)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigurationError(
            "calendar.zone", f"{value!r:.80} is not a time zone; write an IANA name such as Europe/Berlin"
        ) from None
    return value


def hours_from_json(value: object, name: str) -> OpenHours:
    """Hours of the contract's JSON form.

    Raises:
        ConfigurationError: names what is wrong, as a member of `name`.
    """
    _only(value, {"days", "from", "to"}, name)
    assert isinstance(value, dict)
    days = value.get("days", list(DAYS))
    if not isinstance(days, list | tuple) or not days:
        raise ConfigurationError(f"{name}.days", f"must be a list of {', '.join(DAYS)}")
    for day in days:
        if day not in DAYS:
            raise ConfigurationError(f"{name}.days", f"{day!r} is not one of {', '.join(DAYS)}")
    opens, closes = _clock(value.get("from", "00:00"), f"{name}.from"), _clock(value.get("to", "24:00"), f"{name}.to")
    if opens == DAY_MS or closes == opens:
        raise ConfigurationError(f"{name}.to", "must differ from 'from', which must be before 24:00")
    return OpenHours(frozenset(DAYS.index(day) for day in days), opens, closes or DAY_MS)


def hours_to_json(hours: OpenHours) -> dict[str, Any]:
    """The contract's JSON form."""
    return {
        "days": [DAYS[day] for day in sorted(hours.days)],
        "from": _clock_text(hours.from_ms),
        "to": _clock_text(hours.until_ms),
    }


def _clock(value: object, name: str) -> int:
    """Milliseconds of the day of `09:00`, `17:30:15`, or `24:00`."""
    parts = value.split(":") if isinstance(value, str) else []
    if not 2 <= len(parts) <= 3 or not all(len(part) == 2 and part.isascii() and part.isdigit() for part in parts):
        raise ConfigurationError(name, f"{value!r} is not a time of day; write for example 09:00 or 17:30")
    hours, minutes, seconds = (*map(int, parts), 0)[:3]
    ms = ((hours * 60 + minutes) * 60 + seconds) * 1000
    if minutes > 59 or seconds > 59 or ms > DAY_MS:
        raise ConfigurationError(name, f"{value!r} is not a time of day; use 00:00 to 24:00")
    return ms


def _clock_text(ms: int) -> str:
    minutes, seconds = divmod(ms // 1000, 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}" + (f":{seconds:02d}" if seconds else "")


def _holiday_code(value: object) -> str | None:
    if value is None:
        return None
    try:
        if not isinstance(value, str):
            raise NotImplementedError
        _holidays_of(value, datetime.now(UTC).year)
    except NotImplementedError:
        raise ConfigurationError(
            "calendar.holidays", f"{value!r:.80} is not a known country; write for example US, DE or US-NY"
        ) from None
    return value


def _blackout(value: object, name: str) -> Interval:
    _only(value, {"from", "to"}, name)
    assert isinstance(value, dict)
    try:
        start = to_ms(parse_instant(value.get("from", ""), f"{name}.from"))
        end = to_ms(parse_instant(value.get("to", ""), f"{name}.to"))
    except InvalidInput as error:
        raise ConfigurationError(error.field, error.problem) from None
    if end <= start:
        raise ConfigurationError(f"{name}.to", "must be after 'from'")
    return start, end
