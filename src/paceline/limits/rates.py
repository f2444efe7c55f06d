"""Rate strings: `10/minute`, `100/hour;1000/day`, `10/minute burst 20`.

A rate is a fixed window: so many in a window that opens at first use. With `burst` it is a token bucket: it gains the
rate and holds up to the burst. Several rates, separated by `;`, `,` or `|`, hold together.

A scope after an `@` counts apart: `10/minute@search` and `10/minute@login` are two limits with the same numbers.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256

from paceline.errors import ConfigurationError
from paceline.limits.rate_text import MAX_LENGTH, Rate, parse_rate, split_rates
from paceline.limits.specs import FixedWindow, Spec, TokenBucket

MAX_RATES = 8
SCOPE = "@"
MAX_SCOPED = 96
"""The longest rate with its scope, in characters: a plan of several limits appends the length of each to its name."""
EXAMPLES = "10/minute, 100/hour;1000/day or 10/minute burst 20"


@lru_cache(1024)
def parse_rates(text: str, field: str = "rate") -> tuple[Spec, ...]:
    """The specs of a rate string, without a scope.

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


def scoped(rate: str, scope: str) -> str:
    """A rate with its own count for `scope`. A scope that is too long for a plan's name is replaced by its hash."""
    name = f"{rate}{SCOPE}{scope}"
    if len(name) <= MAX_SCOPED and ";" not in scope and scope.isprintable():
        return name
    return f"{rate}{SCOPE}{sha256(scope.encode('utf-8', 'replace')).hexdigest()[:16]}"


def without_scope(name: str) -> str:
    """A plan's name as it is shown to callers: a rate without its scope."""
    rate, at, rest = name.partition(SCOPE)
    if not at or not is_rate(name):
        return name
    return rate + rest[rest.index(";") :] if ";" in rest else rate


def _spec(rate: Rate) -> Spec:
    if rate.burst is None:
        return FixedWindow(rate.limit, rate.span)
    return TokenBucket(rate.burst, rate.per_second)
