"""Rates as text, the one language for them: `10/minute`, `10 per minute`, `5/10 seconds`, `3/PT0.5S`, `7/1m30s`,
`100/300` (seconds), `10/minute burst 20`; several with `;`, `,` or `|` between. Pure.

A month counts 30 days and a year 365. Calendar months are `fixed_window` with `calendar=month`.
"""

from __future__ import annotations

import re
from datetime import timedelta
from fractions import Fraction
from typing import NamedTuple

from paceline.durations import duration_us, format_duration, parse_duration
from paceline.errors import ConfigurationError, InvalidInput

MAX_LENGTH = 256
_UNITS = {
    "second": timedelta(seconds=1),
    "minute": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
    "week": timedelta(weeks=1),
    "month": timedelta(days=30),
    "year": timedelta(days=365),
}
_SHORT = {"s": "second", "sec": "second", "m": "minute", "min": "minute", "h": "hour", "hr": "hour", "d": "day"}
_SHORT |= {"w": "week", "y": "year"}
_RATE = re.compile(
    r"(?P<count>\d{1,16})\s*(?:/|\bper\b)\s*(?P<span>\S.*?)(?:\s+burst\s+(?P<burst>\d{1,16}))?",
    re.ASCII | re.IGNORECASE,
)
_SPAN = re.compile(r"(?P<every>\d{0,9})\s*(?P<unit>[a-z]*)", re.ASCII | re.IGNORECASE)
_SEPARATOR = re.compile(r"[;|]|,(?!\d+[a-z])", re.ASCII | re.IGNORECASE)
"""Between rates. A comma may also be the decimal point of a duration: `3/PT0,5S`."""
_BY_SPAN = {span: unit for unit, span in _UNITS.items()}
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
    try:
        span = _parse_span(match["span"])
    except (InvalidInput, OverflowError):
        raise ConfigurationError(field, f"{_shown(text)} is not a rate; write for example {examples}") from None
    if not span or not int(match["count"]):
        raise ConfigurationError(field, f"{_shown(text)} would never admit a call; write for example {examples}")
    return Rate(int(match["count"]), span, None if match["burst"] is None else int(match["burst"]))


def split_rates(text: str) -> list[str]:
    """The rates of a text, one by one."""
    return _SEPARATOR.split(text)


def _parse_span(text: str) -> timedelta:
    """The span after the slash: a unit, a duration, or a number of seconds."""
    match = _SPAN.fullmatch(text)
    if match is not None:
        unit = match["unit"].lower() or "second"
        if len(unit) > 2:  # "ms" is no minute
            unit = unit.removesuffix("s")
        span = _UNITS.get(_SHORT.get(unit, unit))
        if span is not None:
            return int(match["every"] or 1) * span
    return parse_duration(text)


def _shown(text: object) -> str:
    shown = repr(text)
    return shown if len(shown) <= 80 else shown[:77] + "..."
