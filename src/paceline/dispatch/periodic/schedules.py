"""When periodic work runs, pure: cron expressions and intervals, in a time zone, on a calendar."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

from paceline.durations import duration_ms, from_ms, parse_duration, to_ms
from paceline.errors import ConfigurationError, InvalidInput
from paceline.extras import require
from paceline.slots.calendars import Calendar

SHORTEST_INTERVAL, LONGEST_INTERVAL = timedelta(seconds=1), timedelta(days=366)
FIELDS = 5
LONGEST_CRON = 255
WORDS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
"""Cron's words, as expressions."""
GRACE = timedelta(seconds=30)
"""A tick that is no later than this is not missed: `skip` still runs it, unless an outage came before."""
SEARCHED = timedelta(days=3660)
"""A schedule without an open tick in ten years has none."""
LONGEST_SHIFT = timedelta(hours=3)
"""No zone sets its clock back by more than this."""
MAX_TICKS = 1000
"""How many missed ticks `all` queues at once; further ones follow."""


class CatchUp(StrEnum):
    """What happens to ticks that were missed because no worker ran."""

    SKIP = "skip"
    """None of them runs. Ticks that are a few seconds late are not missed."""
    LAST = "last"
    """The latest one runs."""
    ALL = "all"
    """All of them run."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The ticks of a cron expression or of an interval. Build it with `Schedule.of`, which checks.

    Intervals are counted from 1970-01-01T00:00Z, so that every process means the same ticks. A tick outside the
    calendar's open time does not happen.
    """

    cron: str | None
    every: timedelta | None
    zone: str
    calendar: Calendar | None
    catch_up: CatchUp

    @classmethod
    def of(
        cls,
        *,
        cron: str | None = None,
        every: str | timedelta | float | None = None,
        zone: str | None = None,
        calendar: Calendar | dict[str, Any] | None = None,
        catch_up: str = CatchUp.SKIP,
    ) -> Schedule:
        """A checked schedule. Without `zone`, a cron expression is meant in the calendar's zone, or else in UTC.

        Raises:
            ConfigurationError: a value is wrong.
        """
        if (cron is None) == (every is None):
            raise ConfigurationError("cron", "is required, or every instead; give one of the two")
        if cron is not None:
            # Both at once: what is missing is to be installed once.
            has_holidays = isinstance(calendar, dict) and calendar.get("holidays") is not None
            require("a cron expression", "periodic", *(["calendars"] if has_holidays else []))
        if isinstance(calendar, dict):
            calendar = Calendar.from_json(calendar)
        if calendar is not None and not isinstance(calendar, Calendar):
            raise ConfigurationError("calendar", 'must be an object such as {"zone": "Europe/Berlin"}')
        if zone is None:
            zone = "UTC" if calendar is None else calendar.zone
        schedule = cls(
            None if cron is None else _checked_cron(cron),
            None if every is None else _checked_interval(every),
            _checked_zone(zone),
            calendar,
            _checked_policy(catch_up),
        )
        if schedule.next_tick(datetime.now(UTC)) is None:
            raise ConfigurationError("cron" if every is None else "every", "has no tick at all on this calendar")
        return schedule

    def next_tick(self, after: datetime) -> datetime | None:
        """The first tick after a time; None if there is none."""
        return next(self._ticks(after), None)

    def due(self, ticked_until: datetime, now: datetime) -> tuple[list[datetime], datetime]:
        """The ticks after `ticked_until` that run now by the policy, and the time up to which ticks are then
        settled."""
        first = self.next_tick(ticked_until)
        if first is None or first > now:
            return [], ticked_until
        if self.catch_up is CatchUp.ALL:
            ticks = list(islice(self._ticks(ticked_until, until=now), MAX_TICKS))
            return ticks, ticks[-1] if len(ticks) == MAX_TICKS else now
        if self.catch_up is CatchUp.SKIP and first >= now - GRACE:
            # Late, not missed: there was no outage.
            return list(self._ticks(ticked_until, until=now)), now
        earliest = max(ticked_until, now - GRACE) if self.catch_up is CatchUp.SKIP else ticked_until
        latest = self._latest(earliest, now)
        return [] if latest is None else [latest], now

    def _ticks(self, after: datetime, until: datetime | None = None) -> Iterator[datetime]:
        """Open ticks after a time, up to `until`."""
        horizon = after + SEARCHED if until is None else until
        while (tick := self._first_tick(after)) is not None and tick <= horizon:
            if self._is_open(tick):
                yield tick
                after = tick
                horizon = after + SEARCHED if until is None else until
                continue
            # Skip to the next opening: a weekend has many seconds.
            assert self.calendar is not None
            opens = self.calendar.next_open_window(to_ms(tick), 1)
            if opens is None:
                return
            after = max(tick, from_ms(opens) - timedelta(milliseconds=1))

    def _latest(self, after: datetime, now: datetime) -> datetime | None:
        """The latest open tick after `after`, up to `now`. It looks at the last minute first, then further back."""
        span = timedelta(minutes=1)
        while True:
            start = max(after, now - span)
            if ticks := deque(self._ticks(start, until=now), maxlen=1):
                return ticks[0]
            if start == after:
                return None
            span = span * 5 / 4

    def _is_open(self, tick: datetime) -> bool:
        return self.calendar is None or self.calendar.open_until(to_ms(tick)) > to_ms(tick)

    def _first_tick(self, after: datetime) -> datetime | None:
        """The first tick after a time, open or not."""
        if self.every is not None:
            size = duration_ms(self.every)
            return from_ms((to_ms(after) // size + 1) * size)
        require("a cron expression", "periodic")
        cron, zone = self.cron or "", ZoneInfo(self.zone)
        if any(field.startswith("*") for field in cron.split()[:2]):
            return _first_match(cron, zone, after)
        return _first_of_fixed(cron, zone, after)


# When the clock changes, ticks are those of Debian's cron, which tells fixed times from a `*` as minute or hour.


def _first_of_fixed(cron: str, zone: ZoneInfo, after: datetime) -> datetime | None:
    """For fixed times. A time that the clock shows twice is a tick once, the first time; one that it skips is a tick at
    the end of the gap."""
    from cronsim import CronSim

    ticks = (tick.astimezone(UTC) for tick in CronSim(cron, after.astimezone(zone)))
    # If the clock shows an hour for the second time, the first ticks are those of the first time.
    return next((tick for tick in ticks if tick > after), None)


def _first_match(cron: str, zone: ZoneInfo, after: datetime) -> datetime | None:
    """For expressions with a `*`. Each minute at which the clock shows a time that matches is a tick."""
    from cronsim import CronSim

    local, later = after.astimezone(zone), (after + LONGEST_SHIFT).astimezone(zone)
    goes_back = (local.utcoffset() or timedelta(0)) - (later.utcoffset() or timedelta(0))
    # If the clock soon goes back, it will show times again that it has shown before `after`.
    shown_from = local.replace(tzinfo=None) - max(goes_back, timedelta(0))
    again: datetime | None = None
    # Without a zone: with one, CronSim skips or adds ticks where the clock changes at midnight or by half an hour.
    for shown in CronSim(cron, shown_from):
        first, second = (shown.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
        if first > second:
            continue  # the clock skips it
        if first > after:
            return first if again is None else min(first, again)
        if second > after and again is None:
            again = second
    return again


def _checked_cron(cron: str) -> str:
    require("a cron expression", "periodic")
    from cronsim import CronSim, CronSimError

    if not isinstance(cron, str) or not 0 < len(cron) <= LONGEST_CRON or not cron.isascii() or not cron.isprintable():
        raise ConfigurationError("cron", "must be a cron expression such as 0 16 * * MON-FRI")
    if cron.startswith("@"):
        if cron not in WORDS:
            raise ConfigurationError("cron", f"{cron!r} is unknown; known are {', '.join(WORDS)}")
        return WORDS[cron]
    if len(cron.split()) != FIELDS:  # the parser would accept a sixth field, seconds
        raise ConfigurationError("cron", f"{cron!r} must have five fields, as 0 16 * * MON-FRI; for seconds use every")
    try:
        CronSim(cron, datetime.now(UTC))
    except CronSimError as error:
        raise ConfigurationError("cron", f"{cron!r} is no cron expression: {error}; write 0 16 * * MON-FRI") from None
    return cron


def _checked_interval(every: str | timedelta | float) -> timedelta:
    try:
        if isinstance(every, bool) or not isinstance(every, str | timedelta | int | float):
            raise InvalidInput("every", "must be a duration such as PT2S")
        span = timedelta(seconds=every) if isinstance(every, int | float) else parse_duration(every, "every")
    except (InvalidInput, OverflowError, ValueError) as error:
        problem = error.problem if isinstance(error, InvalidInput) else "must be a duration such as PT2S"
        raise ConfigurationError("every", problem) from None
    if not SHORTEST_INTERVAL <= span <= LONGEST_INTERVAL or span % timedelta(milliseconds=1):
        raise ConfigurationError("every", "must be from PT1S to P366D, in whole milliseconds")
    return span


def _checked_zone(zone: str) -> str:
    try:
        return Calendar.from_json({"zone": zone}).zone
    except ConfigurationError as error:
        raise ConfigurationError("zone", error.problem) from None


def _checked_policy(catch_up: str) -> CatchUp:
    try:
        return CatchUp(catch_up)
    except ValueError:
        raise ConfigurationError("catch_up", "must be skip, last or all") from None
