"""The interface of the library `limits`, on paceline's stores: `hit`, `test`, `get_window_stats`, `clear`.

    from paceline.compat.limits import FixedWindowRateLimiter, parse, storage_from_string

    limiter = FixedWindowRateLimiter(storage_from_string("redis://localhost"))
    if not limiter.hit(parse("10/minute"), "user", 123): ...

A hit that is denied charges nothing. Time is the store's. While the store is unavailable a hit is allowed, unless the
limiter is made with another `on_error`: see `paceline.Limiter`, which takes the same options.
"""

from __future__ import annotations

import re
import time
from datetime import timedelta
from typing import Any, ClassVar, NamedTuple, Protocol

from paceline.errors import ConfigurationError
from paceline.limits._blocking import Limiter
from paceline.limits.model import FixedWindow, Plan, SlidingLog, SlidingWindow, Spec
from paceline.limits.ports import LimitStore
from paceline.limits.rate_text import parse_rate, split_rates
from paceline.limits.stores import limit_store

__all__ = [
    "FixedWindowRateLimiter",
    "MovingWindowRateLimiter",
    "RateLimitItem",
    "SlidingWindowCounterRateLimiter",
    "WindowStats",
    "parse",
    "parse_many",
    "storage_from_string",
]

_YEARS = re.compile(r"(\d*)\s*years?\s*$", re.IGNORECASE)
DAYS_OF_A_YEAR = 360
"""As `limits` counts them."""


class WindowStats(NamedTuple):
    """When the window is as new, in seconds since the epoch, and what is left in it."""

    reset_time: float
    remaining: int


class _Item(Protocol):
    """The members of a limit that are used; items of the library `limits` have them, too."""

    @property
    def amount(self) -> int: ...

    @property
    def namespace(self) -> str: ...

    def get_expiry(self) -> int | float: ...


class RateLimitItem(NamedTuple):
    """`amount` in so many seconds."""

    amount: int
    seconds: float
    namespace: str = "LIMITER"

    def get_expiry(self) -> float:
        """The length of its window, in seconds."""
        return self.seconds


def parse(limit_string: str) -> RateLimitItem:
    """A limit such as `10/minute` or `10 per 2 hours`; of several, the first, as in `limits`.

    Raises:
        ConfigurationError: it is no limit; a `ValueError` too, as in `limits`.
    """
    return parse_many(limit_string)[0]


def parse_many(limit_string: str) -> list[RateLimitItem]:
    """Limits with `;`, `,` or `|` between.

    Raises:
        ConfigurationError: one of them is no limit; a `ValueError` too, as in `limits`.
    """
    if not isinstance(limit_string, str):
        raise ConfigurationError("limit_string", f"{limit_string!r} is no text; write for example 10/minute")
    return [_parse_one(part) for part in split_rates(limit_string)]


def _parse_one(limit_string: str) -> RateLimitItem:
    text = _YEARS.sub(lambda match: f"{int(match[1] or 1) * DAYS_OF_A_YEAR} days", limit_string)
    rate = parse_rate(text, "limit_string")
    if rate.burst is not None:
        raise ConfigurationError("limit_string", "has a burst; use a paceline Plan")
    return RateLimitItem(rate.limit, rate.span.total_seconds())


def storage_from_string(storage_string: str, **options: Any) -> LimitStore:
    """The store at a URL: `memory://`, `host://…`, `redis://…`, `postgresql://…`, `sqlite:///…`.

    Raises:
        ConfigurationError: there is no such store, or the URL is wrong.
    """
    return limit_store(storage_string, **options)


class _RateLimiter:
    """A strategy on a store, or on the store at a URL."""

    algorithm: ClassVar[type[FixedWindow] | type[SlidingLog] | type[SlidingWindow]]

    def __init__(self, storage: LimitStore | str = "memory://", **options: Any) -> None:
        self._limiter = Limiter(storage, **options)
        self._plans: dict[str, Plan] = {}

    def hit(self, item: _Item, *identifiers: object, cost: int = 1) -> bool:
        """Charges `cost` if there is room, and returns whether there was. A cost that can never fit is no error, as in
        `limits`."""
        if not 0 < cost <= item.amount:
            return cost <= 0
        return self._limiter.acquire(_key(identifiers), self._plan(item), cost).allowed

    def test(self, item: _Item, *identifiers: object, cost: int = 1) -> bool:
        """Whether `hit` would be true; charges nothing."""
        if not 0 < cost <= item.amount:
            return cost <= 0
        return self._limiter.peek(_key(identifiers), self._plan(item), cost).allowed

    def get_window_stats(self, item: _Item, *identifiers: object) -> WindowStats:
        """What is left, and when it is as new."""
        decision = self._limiter.peek(_key(identifiers), self._plan(item))
        return WindowStats(time.time() + decision.reset_after, decision.remaining)

    def clear(self, item: _Item, *identifiers: object) -> None:
        """Makes the identifiers as new."""
        self._limiter.reset(_key(identifiers), self._plan(item))

    def _plan(self, item: _Item) -> str:
        name = f"{item.namespace}/{item.amount}/{item.get_expiry():g}"
        if name not in self._plans:
            spec: Spec = self.algorithm(item.amount, timedelta(seconds=item.get_expiry()))
            self._plans[name] = Plan(name, spec)
            self._limiter.replace_plans(self._plans.values())
        return name


class FixedWindowRateLimiter(_RateLimiter):
    """A window opens at the first hit after the last one ended."""

    algorithm = FixedWindow


class MovingWindowRateLimiter(_RateLimiter):
    """Exact in every span of the window."""

    algorithm = SlidingLog


class SlidingWindowCounterRateLimiter(_RateLimiter):
    """Estimated from two counters."""

    algorithm = SlidingWindow


def _key(identifiers: tuple[object, ...]) -> str:
    # Escaped: ("a/b",) and ("a", "b") are different callers.
    return "/".join(str(part).replace("%", "%25").replace("/", "%2F") for part in identifiers) or "all"
