"""The interface of the library `limits`, on paceline's stores: `hit`, `test`, `get_window_stats`, `clear`.

    from paceline.compat.limits import FixedWindowRateLimiter, parse, storage_from_string

    limiter = FixedWindowRateLimiter(storage_from_string("redis://localhost"))
    if not limiter.hit(parse("10/minute"), "user", 123): ...

It has what slowapi and flask-limiter import from `limits`. A hit that is denied charges nothing. Time is the store's.
While the store is unavailable a hit is allowed, unless the limiter is made with another `on_error`: see
`paceline.Limiter`, which takes the same options.
"""

from __future__ import annotations

import logging
import math
import re
import time
from dataclasses import dataclass
from datetime import timedelta
from functools import total_ordering
from typing import Any, ClassVar, NamedTuple, Protocol
from weakref import WeakSet

from paceline.errors import ConfigurationError
from paceline.limits._blocking import Limiter
from paceline.limits.model import MOST_LOGGED, FixedWindow, Plan, SlidingLog, SlidingWindow, Spec
from paceline.limits.ports import LimitStore
from paceline.limits.rate_text import parse_rate, split_rates
from paceline.limits.stores import limit_store

__all__ = [
    "STRATEGIES",
    "FixedWindowRateLimiter",
    "MemoryStorage",
    "MovingWindowRateLimiter",
    "RateLimitItem",
    "RateLimitItemPerDay",
    "RateLimitItemPerHour",
    "RateLimitItemPerMinute",
    "RateLimitItemPerMonth",
    "RateLimitItemPerSecond",
    "RateLimitItemPerYear",
    "RateLimiter",
    "SlidingWindowCounterRateLimiter",
    "Storage",
    "WindowStats",
    "parse",
    "parse_many",
    "storage_from_string",
]

log = logging.getLogger("paceline.limits")

_YEARS = re.compile(r"(\d*)\s*years?\s*$", re.IGNORECASE)
DAYS_OF_A_YEAR = 360
"""As `limits` counts them."""

_UNITS = {"year": DAYS_OF_A_YEAR * 86_400, "month": 30 * 86_400, "day": 86_400, "hour": 3600, "minute": 60, "second": 1}


class WindowStats(NamedTuple):
    """When there is more, in seconds since the epoch, and what is left."""

    reset_time: float
    remaining: int


class _Item(Protocol):
    """The members of a limit that are used; items of the library `limits` have them, too."""

    @property
    def amount(self) -> int: ...

    @property
    def namespace(self) -> str: ...

    def get_expiry(self) -> int | float: ...


@total_ordering
@dataclass(frozen=True, eq=False, repr=False)
class RateLimitItem:
    """`amount` in so many seconds. Ordered by the length of the window."""

    amount: int
    seconds: float
    namespace: str = "LIMITER"

    def get_expiry(self) -> float:
        """The length of its window, in seconds."""
        return self.seconds

    def key_for(self, *identifiers: object) -> str:
        """A text for the limit and its identifiers: `LIMITER/127.0.0.1/10/2/minute`. flask-limiter shows it."""
        return "/".join(map(_text, (self.namespace, *identifiers, self.amount, *self._span)))

    def __repr__(self) -> str:
        """`10 per 2 minute`, as slowapi and flask-limiter show it in their denials."""
        return f"{self.amount} per {' '.join(self._span)}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RateLimitItem) and self._fields == other._fields

    def __hash__(self) -> int:
        return hash(self._fields)

    def __lt__(self, other: RateLimitItem) -> bool:
        return self.seconds < other.seconds

    @property
    def _span(self) -> tuple[str, str]:
        """The window, in the longest unit that divides it."""
        unit, seconds = next(one for one in _UNITS.items() if self.seconds % one[1] == 0 or one[1] == 1)
        return f"{self.seconds / seconds:g}", unit

    @property
    def _fields(self) -> tuple[int, float, str]:
        return self.amount, self.seconds, self.namespace


class _ItemPerUnit(RateLimitItem):
    """`amount` in `multiples` of a unit."""

    unit: ClassVar[int]

    def __init__(self, amount: int, multiples: int = 1, namespace: str = "LIMITER") -> None:
        super().__init__(amount, multiples * self.unit, namespace)


class RateLimitItemPerSecond(_ItemPerUnit):
    """`amount` in `multiples` of a second."""

    unit = 1


class RateLimitItemPerMinute(_ItemPerUnit):
    """`amount` in `multiples` of a minute."""

    unit = 60


class RateLimitItemPerHour(_ItemPerUnit):
    """`amount` in `multiples` of an hour."""

    unit = 3600


class RateLimitItemPerDay(_ItemPerUnit):
    """`amount` in `multiples` of a day."""

    unit = 86_400


class RateLimitItemPerMonth(_ItemPerUnit):
    """`amount` in `multiples` of 30 days."""

    unit = 30 * 86_400


class RateLimitItemPerYear(_ItemPerUnit):
    """`amount` in `multiples` of 360 days."""

    unit = DAYS_OF_A_YEAR * 86_400


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
    text = _YEARS.sub(lambda match: f" {int(match[1] or 1) * DAYS_OF_A_YEAR} days", limit_string)
    rate = parse_rate(text, "limit_string")
    if rate.burst is not None:
        raise ConfigurationError("limit_string", "has a burst; use a paceline Plan")
    return RateLimitItem(rate.limit, rate.span.total_seconds())


class Storage:
    """A store of paceline behind the interface of `limits`. `flask limiter config` shows `storage`, the store."""

    def __init__(self, uri: str = "memory://", **options: Any) -> None:
        self.uri = uri
        self.storage = limit_store(uri, **options)
        self._options = options
        self._limiters: WeakSet[RateLimiter] = WeakSet()

    def check(self) -> bool:
        """Whether the store can be reached."""
        return not Limiter(self.storage, on_error="closed").peek("check", "1/second").degraded

    def reset(self) -> None:
        """Clears all counts. Only a store in memory can do that.

        Raises:
            NotImplementedError: the store is shared with other processes, whose counts are not ours to clear.
        """
        if not isinstance(self, MemoryStorage):
            raise NotImplementedError(f"the counts at {self.uri.partition(':')[0]}:// are shared; clear single limits")
        self.storage = limit_store(self.uri, **self._options)
        for limiter in self._limiters:
            limiter.open()


class MemoryStorage(Storage):
    """Counts in this process."""

    def __init__(self, uri: str = "memory://", **options: Any) -> None:
        super().__init__(uri, **options)


def storage_from_string(storage_string: str, **options: Any) -> Storage:
    """The store at a URL: `memory://`, `host://…`, `redis://…`, `valkey://…`, `postgresql://…`, `sqlite:///…`.

    Raises:
        ConfigurationError: there is no such store, or the URL is wrong.
    """
    kind = MemoryStorage if storage_string.partition(":")[0] == "memory" else Storage
    return kind(storage_string, **options)


class RateLimiter:
    """A strategy on a store, or on the store at a URL."""

    algorithm: ClassVar[type[FixedWindow] | type[SlidingLog] | type[SlidingWindow]]

    def __init__(self, storage: Storage | LimitStore | str = "memory://", **options: Any) -> None:
        self._storage = storage
        self._options = options
        self.open()
        if isinstance(storage, Storage):
            storage._limiters.add(self)

    def open(self) -> None:
        """Begins to count in the storage's present store."""
        storage = self._storage
        self._limiter = Limiter(storage.storage if isinstance(storage, Storage) else storage, **self._options)
        self._plans: dict[str, Plan] = {}

    def hit(self, item: _Item, *identifiers: object, cost: float = 1) -> bool:
        """Charges `cost`, rounded up, if there is room, and returns whether there was. A cost that can never fit is no
        error, as in `limits`."""
        if not 0 < cost <= item.amount:
            return cost <= 0
        return self._limiter.acquire(_key(identifiers), self._plan(item), math.ceil(cost)).allowed

    def test(self, item: _Item, *identifiers: object, cost: float = 1) -> bool:
        """Whether `hit` would be true; charges nothing."""
        if not 0 < cost <= item.amount:
            return cost <= 0
        return self._limiter.peek(_key(identifiers), self._plan(item), math.ceil(cost)).allowed

    def get_window_stats(self, item: _Item, *identifiers: object) -> WindowStats:
        """What is left; and when the window ends, or, of a window that slides, when there is one more."""
        key, plan = _key(identifiers), self._plan(item)
        decision = self._limiter.peek(key, plan)
        wait = decision.reset_after
        if not issubclass(self.algorithm, FixedWindow) and decision.remaining < item.amount:
            wait = self._limiter.peek(key, plan, decision.remaining + 1).retry_after
        return WindowStats(time.time() + wait, decision.remaining)

    def clear(self, item: _Item, *identifiers: object) -> None:
        """Makes the identifiers as new."""
        self._limiter.reset(_key(identifiers), self._plan(item))

    def _plan(self, item: _Item) -> str:
        name = f"{item.namespace}/{item.amount}/{item.get_expiry():g}"
        if name not in self._plans:
            self._plans[name] = Plan(name, self._spec(item.amount, timedelta(seconds=item.get_expiry())))
            self._limiter.replace_plans(self._plans.values())
        return name

    def _spec(self, amount: int, window: timedelta) -> Spec:
        return self.algorithm(amount, window)


class FixedWindowRateLimiter(RateLimiter):
    """A window opens at the first hit after the last one ended."""

    algorithm = FixedWindow


class MovingWindowRateLimiter(RateLimiter):
    """Exact in every span of the window, up to 100,000 hits; beyond that estimated from two counters."""

    algorithm = SlidingLog

    def _spec(self, amount: int, window: timedelta) -> Spec:
        if amount <= MOST_LOGGED:
            return SlidingLog(amount, window)
        log.warning("%d hits are too many to remember each: the moving window is estimated from two counters", amount)
        return SlidingWindow(amount, window)


class SlidingWindowCounterRateLimiter(RateLimiter):
    """Estimated from two counters."""

    algorithm = SlidingWindow


STRATEGIES: dict[str, type[RateLimiter]] = {
    "fixed-window": FixedWindowRateLimiter,
    "moving-window": MovingWindowRateLimiter,
    "sliding-window-counter": SlidingWindowCounterRateLimiter,
}
"""The strategies by the names that slowapi and flask-limiter take."""


def _key(identifiers: tuple[object, ...]) -> str:
    # Escaped: ("a/b",) and ("a", "b") are different callers.
    return "/".join(_text(part).replace("%", "%25").replace("/", "%2F") for part in identifiers) or "all"


def _text(part: object) -> str:
    """A part of a key; bytes are the text that they encode."""
    return part.decode("utf-8", "backslashreplace") if isinstance(part, bytes) else str(part)
