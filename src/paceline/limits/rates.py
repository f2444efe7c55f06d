"""Rate strings: `10/minute`, `100/hour;1000/day`, `10/minute burst 20`.

A rate is a fixed window: so many in a window that opens at first use. With `burst` it is a token bucket: it gains the
rate and holds up to the burst. Several rates, separated by `;`, `,` or `|`, hold together.
"""

from __future__ import annotations

from functools import lru_cache

from paceline.errors import ConfigurationError
from paceline.limits.rate_text import MAX_LENGTH, Rate, parse_rate, split_rates
from paceline.limits.specs import FixedWindow, Spec, TokenBucket

MAX_RATES = 8
EXAMPLES = "10/minute, 100/hour;1000/day or 10/minute burst 20"


@lru_cache(1024)
def parse_rates(text: str, field: str = "rate") -> tuple[Spec, ...]:
    """The specs of a rate string.

    Raises:
        ConfigurationError: the text is no rate string; names `field`.
    """
    rates = [parse_rate(part, field, EXAMPLES) for part in split_rates(text)] if len(text) <= MAX_LENGTH else []
    if not 0 < len(rates) <= MAX_RATES:
        raise ConfigurationError(field, f"is too long; give at most {MAX_RATES} rates")
    try:
        specs = tuple(_spec(rate) for rate in rates)
    except ConfigurationError as error:
        raise ConfigurationError(field, f"{text!r}: {error.problem}") from None
    return specs


def is_rate(text: str) -> bool:
    """Whether a name looks like a rate string."""
    return text[:1].isdigit() and ("/" in text or " per " in text)


def _spec(rate: Rate) -> Spec:
    if rate.burst is None:
        return FixedWindow(rate.limit, rate.span)
    return TokenBucket(rate.burst, rate.per_second)
