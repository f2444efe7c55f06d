"""Rate strings: `10/minute`, `100/hour;1000/day`, `10/minute burst 20`.

A rate is a fixed window: so many in a window that opens at first use. With `burst` it is a token bucket: it gains the
rate and holds up to the burst. Several rates, separated by `;`, hold together.
"""

from __future__ import annotations

import re
from datetime import timedelta
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from headgate.durations import duration_us, parse_duration
from headgate.errors import ConfigurationError, InvalidInput
from headgate.limits.specs import FixedWindow, Spec, TokenBucket

MAX_RATES = 8
MAX_LENGTH = 256
_UNITS = {
    "second": ("s", "sec"),
    "minute": ("m", "min"),
    "hour": ("h", "hr"),
    "day": ("d",),
    "week": ("w",),
}
_BY_NAME = {name: unit for unit, short in _UNITS.items() for name in (unit, f"{unit}s", *short)}
_MONTHS = {"month", "months", "year", "years", "y"}
_RATE = re.compile(
    r"(?P<count>\d{1,16})\s*(?:/|\bper\b)\s*(?:(?P<every>\d{1,9})\s*)?(?P<unit>[a-z]\w*(?:[.,]\d+\w)?)"
    r"(?:\s+burst\s+(?P<burst>\d{1,16}))?",
    re.ASCII | re.IGNORECASE,
)
_EXAMPLES = "write for example 10/minute, 100/hour;1000/day or 10/minute burst 20"


class Rate(NamedTuple):
    """`limit` per `span`, and the burst if one is given."""

    limit: int
    span: timedelta
    burst: int | None = None

    @property
    def per_second(self) -> Fraction:
        return Fraction(self.limit * 1_000_000, duration_us(self.span))


@lru_cache(1024)
def parse_rates(text: str, field: str = "rate") -> tuple[Spec, ...]:
    """The specs of a rate string.

    Raises:
        ConfigurationError: the text is no rate string; names `field`.
    """
    rates = [parse_rate(part, field) for part in re.split("[;|]", text)] if len(text) <= MAX_LENGTH else []
    if not 0 < len(rates) <= MAX_RATES:
        raise ConfigurationError(field, f"is too long; give at most {MAX_RATES} rates")
    try:
        specs = tuple(_spec(rate) for rate in rates)
    except ConfigurationError as error:
        raise ConfigurationError(field, f"{text!r}: {error.problem}") from None
    return specs


def parse_rate(text: object, field: str = "rate") -> Rate:
    """One rate.

    Raises:
        ConfigurationError: the text is no rate; names `field`.
    """
    match = _RATE.fullmatch(text.strip()) if isinstance(text, str) and len(text) <= MAX_LENGTH else None
    if match is None:
        raise ConfigurationError(field, f"{_shown(text)} is not a rate; {_EXAMPLES}")
    unit, every, burst = match["unit"].lower(), int(match["every"] or 1), match["burst"]
    if unit in _MONTHS:
        raise ConfigurationError(
            field, f"{_shown(text)}: a {unit} has no fixed length; use fixed_window with calendar=month, or days"
        )
    name = _BY_NAME.get(unit)
    try:
        # An ISO duration has no number before it: 5/PT10S, not 5/2PT5S.
        span = timedelta(**{f"{name}s": every}) if name else parse_duration("" if match["every"] else unit)
    except (InvalidInput, OverflowError):
        raise ConfigurationError(field, f"{_shown(text)} is not a rate; {_EXAMPLES}") from None
    if not span or not int(match["count"]):
        raise ConfigurationError(field, f"{_shown(text)} would never admit a call; {_EXAMPLES}")
    return Rate(int(match["count"]), span, None if burst is None else int(burst))


def is_rate(text: str) -> bool:
    """Whether a name looks like a rate string."""
    return text[:1].isdigit() and ("/" in text or " per " in text)


def _spec(rate: Rate) -> Spec:
    if rate.burst is None:
        return FixedWindow(rate.limit, rate.span)
    return TokenBucket(rate.burst, rate.per_second)


def _shown(text: object) -> str:
    shown = repr(text)
    return shown if len(shown) <= 80 else shown[:77] + "..."
