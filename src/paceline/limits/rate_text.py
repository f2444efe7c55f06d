"""One rate as text: `10/minute`, `5/10 seconds`, `3/PT0.5S`, `10/minute burst 20`. Pure."""

from __future__ import annotations

import re
from datetime import timedelta
from fractions import Fraction
from typing import NamedTuple

from paceline.durations import duration_us, format_duration, parse_duration
from paceline.errors import ConfigurationError, InvalidInput

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
_BY_SPAN = {timedelta(**{f"{unit}s": 1}): unit for unit in _UNITS}
ONE_RATE = "10/minute or 5/10 seconds"


class Rate(NamedTuple):
    """`limit` per `span`, and the burst if one is given."""

    limit: int
    span: timedelta
    burst: int | None = None

    @property
    def per_second(self) -> Fraction:
        return Fraction(self.limit * 1_000_000, duration_us(self.span))

    def __str__(self) -> str:
        """As it is written: `10/minute`, `5/PT10S burst 20`."""
        unit = _BY_SPAN.get(self.span) or format_duration(self.span)
        return f"{self.limit}/{unit}" + ("" if self.burst is None else f" burst {self.burst}")


def parse_rate(text: object, field: str = "rate", examples: str = ONE_RATE) -> Rate:
    """One rate. An error shows the `examples`, which must be such as the caller takes.

    Raises:
        ConfigurationError: the text is no rate; names `field`.
    """
    match = _RATE.fullmatch(text.strip()) if isinstance(text, str) and len(text) <= MAX_LENGTH else None
    if match is None:
        raise ConfigurationError(field, f"{_shown(text)} is not a rate; write for example {examples}")
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
        raise ConfigurationError(field, f"{_shown(text)} is not a rate; write for example {examples}") from None
    if not span or not int(match["count"]):
        raise ConfigurationError(field, f"{_shown(text)} would never admit a call; write for example {examples}")
    return Rate(int(match["count"]), span, None if burst is None else int(burst))


def _shown(text: object) -> str:
    shown = repr(text)
    return shown if len(shown) <= 80 else shown[:77] + "..."
