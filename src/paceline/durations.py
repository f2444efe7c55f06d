"""ISO-8601 on the wire: durations (`PT4S`, `P1D`) and UTC instants with milliseconds.

People may also write a short form: `4s`, `1m30s`, `2h`. Durations of years and months are rejected: their length
depends on their start.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from paceline.errors import InvalidInput

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
EARLIEST = EPOCH
LATEST = datetime(2200, 1, 1, tzinfo=UTC)
"""Instants outside [EARLIEST, LATEST) are rejected as mistakes (a year 9999, a negative epoch)."""

_MS = timedelta(milliseconds=1)
LATEST_MS = (LATEST - EPOCH) // _MS
"""No window of slots starts at or after this; a search ends here."""
_US = timedelta(microseconds=1)
_DURATION = re.compile(
    r"P(?:(?P<weeks>\d+(?:[.,]\d+)?)W)?(?:(?P<days>\d+(?:[.,]\d+)?)D)?"
    r"(?:T(?:(?P<hours>\d+(?:[.,]\d+)?)H)?(?:(?P<minutes>\d+(?:[.,]\d+)?)M)?(?:(?P<seconds>\d+(?:[.,]\d+)?)S)?)?",
    re.ASCII | re.IGNORECASE,
)
_STARTS_WITH_YEAR = re.compile(r"\d{4}-", re.ASCII)
_SHORT = re.compile(
    r"(?:(?P<weeks>\d+(?:\.\d+)?)w)?(?:(?P<days>\d+(?:\.\d+)?)d)?(?:(?P<hours>\d+(?:\.\d+)?)h)?"
    r"(?:(?P<minutes>\d+(?:\.\d+)?)m)?(?:(?P<seconds>\d+(?:\.\d+)?)s)?(?:(?P<milliseconds>\d+)ms)?",
    re.ASCII | re.IGNORECASE,
)


def parse_duration(value: str | timedelta, field: str = "duration") -> timedelta:
    """A positive or zero span from `PT0.5S`, `PT4S`, `P1D`, `P1DT12H`, `P2W`, or from `4s`, `1m30s`, `2h`, `250ms`,
    the longest unit first; exact to the microsecond.

    Raises:
        InvalidInput: it is no such duration; names `field`.
    """
    if isinstance(value, timedelta):
        return value
    match = None
    if isinstance(value, str) and 0 < len(value) <= 64:
        match = (_DURATION if value[0] in "Pp" else _SHORT).fullmatch(value)
    parts = {name: text for name, text in match.groupdict().items() if text} if match else {}
    if not parts or (isinstance(value, str) and value[-1:] in "Tt"):
        raise InvalidInput(field, f"{_shown(value)} is not a duration; write for example 4s, 1m30s, PT4S or P1D")
    try:
        # Whole and fractional parts are kept apart: float seconds would lose microseconds in long spans.
        span = timedelta()
        for name, text in parts.items():
            whole, _, fraction = text.replace(",", ".").partition(".")
            unit = timedelta(**{name: 1})
            span += int(whole) * unit
            if fraction:
                span += unit * int(fraction[:12]) / 10 ** len(fraction[:12])
    except OverflowError:
        raise InvalidInput(field, f"{_shown(value)} is too long a duration") from None
    return span


def format_duration(span: timedelta) -> str:
    """The shortest ISO-8601 form: `PT4S`, `PT0.5S`, `P1D`, `P1DT12H`."""
    days, rest = divmod(span, timedelta(days=1))
    hours, rest = divmod(rest, timedelta(hours=1))
    minutes, rest = divmod(rest, timedelta(minutes=1))
    seconds, micros = divmod(rest, timedelta(seconds=1))
    fraction = f".{micros // _US:06d}".rstrip("0") if micros else ""
    clock = (
        (f"{hours}H" if hours else "")
        + (f"{minutes}M" if minutes else "")
        + (f"{seconds}{fraction}S" if seconds or fraction else "")
    )
    date = f"{days}D" if days else ""
    return f"P{date}{'T' + clock if clock else ''}" if date or clock else "PT0S"


def short_duration(span: timedelta) -> str:
    """The form people write, which `parse_duration` reads too: `4s`, `0.5s`, `1d12h`."""
    return format_duration(span).translate({ord("P"): None, ord("T"): None}).lower()


def parse_instant(value: str | datetime, field: str = "time") -> datetime:
    """An aware UTC instant.

    Raises:
        InvalidInput: it is naive, no time, before 1970 or after 2199; names `field`.
    """
    if isinstance(value, str):
        try:
            if len(value) < 10 or len(value) > 40:
                raise ValueError
            moment = datetime.fromisoformat(value)
        except ValueError:
            raise InvalidInput(
                field, f"{_shown(value)} is not an ISO-8601 instant; write for example 2027-03-01T16:00:00Z"
            ) from None
    elif isinstance(value, datetime):
        moment = value
    else:
        raise InvalidInput(field, f"{_shown(value)} is not an instant; write for example 2027-03-01T16:00:00Z")
    if moment.tzinfo is not UTC:
        if isinstance(value, str) and len(value) == len("2027-03-01"):
            written = f"{moment:%Y-%m-%dT%H:%M:%SZ}"
            raise InvalidInput(field, f"{_shown(value)} is a day; write its time, too, for example {written}")
        if moment.utcoffset() is None:
            raise InvalidInput(field, f"{_shown(value)} has no time zone; add Z or an offset such as +02:00")
        try:
            moment = moment.astimezone(UTC)
        except OverflowError:
            raise InvalidInput(field, f"{_shown(value)} is out of range") from None
    if not EARLIEST <= moment < LATEST:
        raise InvalidInput(field, f"{_shown(value)} is out of range; use a time from 1970 up to the end of 2199")
    return moment


def parse_moment(value: str, now: datetime, field: str, *, past: bool) -> datetime:
    """The instant that a person names: an instant itself, or a duration (`P30D`, `30d`) before `now` if `past`, else
    after it.

    Raises:
        InvalidInput: it is neither, or lies on the other side of `now`; names `field`.
    """
    try:
        if _STARTS_WITH_YEAR.match(value):
            moment = parse_instant(value, field)
        else:
            span = parse_duration(value, field)
            moment = max(now - span, EPOCH) if past else parse_instant(now + span, field)
    except OverflowError:
        moment = EPOCH if past else LATEST
    except InvalidInput as error:
        if _STARTS_WITH_YEAR.match(value):
            raise
        example = now + timedelta(days=-30 if past else 30)
        problem = (
            f"{_shown(value)} is neither a duration such as 30d or P30D nor a time such as {example:%Y-%m-%dT00:00:00Z}"
        )
        raise InvalidInput(field, problem) from error
    if (moment > now) if past else (moment <= now):
        raise InvalidInput(field, f"lies in the {'future' if past else 'past'}")
    return moment


def format_instant(moment: datetime) -> str:
    """`2027-03-01T16:00:02.371Z`: UTC, always three digits of milliseconds (cut, not rounded)."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def format_ms(ms: int) -> str:
    """`format_instant` of epoch milliseconds, for bulk: the text before the milliseconds is cached."""
    second, rest = divmod(ms, 1000)
    return f"{_second_text(second)}.{rest:03d}Z"


def to_ms(moment: datetime) -> int:
    """Epoch milliseconds, rounded up: a slot at or after this is at or after `moment`."""
    return -((EPOCH - moment) // _MS)


def from_ms(ms: int) -> datetime:
    """The UTC instant of epoch milliseconds; exact (float timestamps are not)."""
    return EPOCH + ms * _MS


@lru_cache(maxsize=10_000)
def _second_text(second: int) -> str:
    return f"{from_ms(second * 1000):%Y-%m-%dT%H:%M:%S}"


def duration_ms(span: timedelta) -> int:
    """Whole milliseconds of a span, rounded down."""
    return span // _MS


def duration_us(span: timedelta) -> int:
    """Whole microseconds of a span."""
    return span // _US


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
