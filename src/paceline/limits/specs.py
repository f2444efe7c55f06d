"""Specs: the algorithms of limits and their numbers.

Every number a store computes with is an integer that fits a double (below 2^53), so a Lua script and Python agree to
the last unit. The bounds that guarantee it are checked here, when a spec is made, never while deciding.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from math import gcd, isfinite
from typing import Any, ClassVar, TypeAlias

from paceline.durations import duration_us, format_duration, parse_duration
from paceline.errors import ConfigurationError, InvalidInput
from paceline.limits.calendar_edges import DAYS, Edges, calendar_edges, check_zone
from paceline.limits.rate_text import Rate, parse_rate

MOST = 2**50
"""No product or state of any algorithm exceeds this, so sums of a few of them stay exact in a double."""

LONGEST = timedelta(days=3660)
LONGEST_PLACE = timedelta(days=1)
MOST_LOGGED = 100_000


@dataclass(frozen=True, slots=True, init=False)
class TokenBucket:
    """Holds up to `capacity` tokens and gains `per_second` of them, continuously, losing no fraction.

        Plan("gold", TokenBucket(capacity=10, per_second=1))

    A float rate is read as the nearest simple fraction (0.1 is 1/10, 0.6666666666666666 is 2/3); give a `Fraction` to
    choose one yourself.
    """

    tag: ClassVar[int] = 1
    algorithm: ClassVar[str] = "token_bucket"

    capacity: int
    per_second: Fraction
    unit: int = field(compare=False, repr=False)
    """Ticks in one token."""
    gain: int = field(compare=False, repr=False)
    """Ticks gained per microsecond."""
    full: int = field(compare=False, repr=False)
    """Ticks in a full bucket: capacity × unit."""
    life_us: int = field(compare=False, repr=False)
    """Microseconds from empty to full: an idle state older than this is as new."""

    def __init__(self, capacity: int, per_second: int | float | Decimal | Fraction) -> None:
        _whole("capacity", capacity)
        rate = _rate(per_second)
        per_us = rate.denominator * 1_000_000
        shared = gcd(rate.numerator, per_us)
        unit, gain = per_us // shared, rate.numerator // shared
        full = capacity * unit
        if full > MOST or gain > MOST:
            raise ConfigurationError(
                "per_second",
                f"{rate} is too fine a fraction for a capacity of {capacity}; use a rounder rate or a smaller capacity",
            )
        _set(
            self,
            capacity=capacity,
            per_second=rate,
            unit=unit,
            gain=gain,
            full=full,
            life_us=-(-full // gain),
        )

    @property
    def size(self) -> int:
        """The most one call may cost."""
        return self.capacity

    @property
    def span(self) -> timedelta:
        """The time it takes to fill."""
        return timedelta(microseconds=self.life_us)


@dataclass(frozen=True, slots=True, init=False)
class Gcra(TokenBucket):
    """Paces calls: one every 1/rate, and up to `burst` of them at once.

        Gcra(rate="10/second")          no two calls closer than 100 ms

    This is the generic cell rate algorithm. A token bucket that holds `burst` tokens decides the same, and its state is
    the same: so a plan may change from one to the other in flight.
    """

    algorithm: ClassVar[str] = "gcra"

    rate: Rate

    def __init__(self, rate: str, burst: int = 1) -> None:
        parsed = parse_rate(rate)
        if parsed.burst is not None:
            raise ConfigurationError("rate", "has a burst of its own; give burst beside it")
        if isinstance(burst, bool) or not isinstance(burst, int) or burst < 1:
            raise ConfigurationError("burst", f"{burst!r} is not a whole number of at least 1")
        try:
            TokenBucket.__init__(self, burst, parsed.per_second)
        except ConfigurationError as error:
            raise ConfigurationError("rate", error.problem) from None
        _set(self, rate=parsed)

    @property
    def burst(self) -> int:
        """How many calls may come at once."""
        return self.capacity

    def __reduce__(self) -> tuple[object, ...]:
        return Gcra, (str(self.rate), self.burst)


@dataclass(frozen=True, slots=True, init=False)
class _Limit:
    """A spec whose size is its `limit`."""

    limit: int

    @property
    def size(self) -> int:
        """The most one call may cost."""
        return self.limit


@dataclass(frozen=True, slots=True, init=False)
class _Window(_Limit):
    """`limit` per `window`."""

    window: timedelta
    window_us: int = field(compare=False, repr=False)
    life_us: int = field(compare=False, repr=False)
    """Microseconds after which an idle state is as new."""

    def __init__(self, limit: int, window: str | timedelta) -> None:
        _whole("limit", limit)
        span, window_us = _window(window)
        _set(self, limit=limit, window=span, window_us=window_us, life_us=window_us)

    @property
    def span(self) -> timedelta:
        """The window."""
        return self.window


@dataclass(frozen=True, slots=True, init=False)
class FixedWindow(_Window):
    """`limit` per `window`; a window opens at the first use after the last one ended.

        FixedWindow(1000, "P1D")
        FixedWindow(1000, calendar="month", zone="Europe/Berlin")

    With `calendar` instead of `window` it is a `CalendarWindow`: a day, week or month of the zone, or of UTC.
    """

    tag: ClassVar[int] = 2
    algorithm: ClassVar[str] = "fixed_window"

    def __new__(
        cls,
        limit: int,
        window: str | timedelta | None = None,
        *,
        calendar: str | None = None,
        zone: str | None = None,
    ) -> Any:
        if calendar is None:
            if zone is not None:
                raise ConfigurationError("zone", "belongs to a calendar; give calendar=day, week or month")
            return object.__new__(cls)
        if window is not None:
            raise ConfigurationError("calendar", "says how long the window is; leave window out")
        return CalendarWindow(limit, calendar, "UTC" if zone is None else zone)

    def __init__(
        self,
        limit: int,
        window: str | timedelta | None = None,
        *,
        calendar: str | None = None,
        zone: str | None = None,
    ) -> None:
        if window is None:
            raise ConfigurationError("window", "is missing; give for example PT1M, or calendar=day")
        _Window.__init__(self, limit, window)

    def __reduce__(self) -> tuple[object, ...]:
        return FixedWindow, (self.limit, self.window)


@dataclass(frozen=True, slots=True, init=False)
class CalendarWindow(_Limit):
    """`limit` per day, week (from Monday) or month of a time zone. Made by `FixedWindow(limit, calendar=…, zone=…)`.

    A window begins at midnight of the zone, or with the first instant of the day if there is no midnight.
    """

    tag: ClassVar[int] = 5
    algorithm: ClassVar[str] = FixedWindow.algorithm

    calendar: str
    zone: str
    window: timedelta = field(compare=False, repr=False)
    """The usual length; with daylight saving time, and in most months, it differs."""
    window_us: int = field(compare=False, repr=False)
    life_us: int = field(compare=False, repr=False)
    """Longer than any window."""

    def __init__(self, limit: int, calendar: str, zone: str) -> None:
        _whole("limit", limit)
        days = DAYS.get(calendar) if isinstance(calendar, str) else None
        if days is None:
            raise ConfigurationError("calendar", f"{calendar!r} is none of {', '.join(DAYS)}")
        check_zone(zone)
        window = timedelta(days=days)
        _set(
            self,
            limit=limit,
            calendar=calendar,
            zone=zone,
            window=window,
            window_us=duration_us(window),
            life_us=duration_us(window + timedelta(days=2)),
        )

    @property
    def span(self) -> timedelta:
        """The usual length of the window."""
        return self.window

    def edges(self, now_us: int) -> Edges:
        """The window around `now_us`, and the one next to it that is nearer: three edges in order.

        A store that has no time zones computes with these, so its clock may differ by half a window from the one that
        `now_us` is from.
        """
        return calendar_edges(self.calendar, self.zone, now_us)


@dataclass(frozen=True, slots=True, init=False)
class SlidingWindow(_Window):
    """`limit` per `window`, estimated from two counters: this window's, and the last one's by its share still in view.

        Plan("free", SlidingWindow(limit=100, window="PT1M"))

    It stores two integers per key, whatever the limit. Use `SlidingLog` where the estimate is not good enough.
    """

    tag: ClassVar[int] = 3
    algorithm: ClassVar[str] = "sliding_window"

    grain_us: int = field(compare=False, repr=False)
    """The view slides in grains of this many microseconds: 1 unless limit × window would outgrow a double."""
    grains: int = field(compare=False, repr=False)
    """Grains in a window, rounded up."""

    def __init__(self, limit: int, window: str | timedelta) -> None:
        _Window.__init__(self, limit, window)
        grain_us = -(-self.window_us * limit // MOST)
        _set(self, grain_us=grain_us, grains=-(-self.window_us // grain_us), life_us=2 * self.window_us)


@dataclass(frozen=True, slots=True, init=False)
class SlidingLog(_Window):
    """`limit` in every span of length `window`, exactly, by storing each admitted call.

        Plan("login", SlidingLog(limit=5, window="PT1M"))

    With a `precision`, calls within such a span of time are stored as one, made at its end: a state has at most
    `window / precision + 2` entries, whatever the limit. The limit holds in every window; room comes that much later.
    """

    tag: ClassVar[int] = 4
    algorithm: ClassVar[str] = "sliding_log"

    precision: timedelta
    grain_us: int = field(compare=False, repr=False)
    """The precision in microseconds."""

    def __init__(
        self, limit: int, window: str | timedelta, precision: str | timedelta = timedelta(microseconds=1)
    ) -> None:
        _Window.__init__(self, limit, window)
        if limit > MOST_LOGGED:
            raise ConfigurationError(
                "limit", f"{limit} calls are too many to remember; at most {MOST_LOGGED}; use sliding_window"
            )
        span, grain_us = _window(precision, "precision")
        if grain_us > self.window_us:
            raise ConfigurationError("precision", "is longer than the window")
        _set(self, precision=span, grain_us=grain_us)


@dataclass(frozen=True, slots=True, init=False)
class Concurrency(_Limit):
    """`limit` calls in flight at once. A call that is not over, nor renewed, within `expires` counts as dead.

        plans=[Plan("exports", Concurrency(5, expires="PT30S"))]
        async with limiter.hold("user:1", "exports") as decision: ...

    `hold` renews its place while the block runs, and gives it back. `acquire` takes a place for `expires`.
    """

    tag: ClassVar[int] = 6
    algorithm: ClassVar[str] = "concurrency"
    grain_us: ClassVar[int] = 1
    """As of a log with the finest precision."""

    expires: timedelta
    window_us: int = field(compare=False, repr=False)
    life_us: int = field(compare=False, repr=False)

    def __init__(self, limit: int, expires: str | timedelta = "PT30S") -> None:
        _whole("limit", limit)
        if limit > MOST_LOGGED:
            raise ConfigurationError("limit", f"{limit} calls are too many to remember; at most {MOST_LOGGED}")
        try:
            span, span_us = _window(expires)
        except ConfigurationError as error:
            raise ConfigurationError("expires", error.problem) from None
        if span > LONGEST_PLACE:
            raise ConfigurationError("expires", f"use at most {format_duration(LONGEST_PLACE)}; hold renews a place")
        _set(self, limit=limit, expires=span, window_us=span_us, life_us=span_us)

    @property
    def span(self) -> timedelta:
        """How long a place lasts if it is not renewed."""
        return self.expires


Spec: TypeAlias = TokenBucket | FixedWindow | SlidingWindow | SlidingLog | CalendarWindow | Concurrency


def describe(*specs: Spec) -> str:
    """Specs in a few words: `10 burst, 1/s` or `100 per PT1H; 1000 per P1D`."""
    return "; ".join(_describe(spec) for spec in specs)


def _describe(spec: Spec) -> str:
    if isinstance(spec, Gcra):
        return f"{spec.rate}, spaced" + (f", burst {spec.burst}" if spec.burst > 1 else "")
    if isinstance(spec, Concurrency):
        return f"{spec.limit} at once, expires after {format_duration(spec.expires)}"
    if isinstance(spec, CalendarWindow):
        return f"{spec.limit} per {spec.calendar} in {spec.zone}"
    if isinstance(spec, TokenBucket):
        return f"{spec.capacity} burst, {spec.per_second}/s"
    return f"{spec.limit} per {format_duration(spec.window)}"


def _set(target: object, **values: object) -> None:
    for name, value in values.items():
        object.__setattr__(target, name, value)


def _whole(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigurationError(name, f"{value!r} is not a whole number of at least 1")
    if value > MOST:
        raise ConfigurationError(name, f"is too large; use at most {MOST}")


def _rate(value: object) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | Fraction):
        raise ConfigurationError("per_second", f"{value!r} is not a number")
    if isinstance(value, float | Decimal) and not isfinite(value):
        raise ConfigurationError("per_second", f"{value!r} is not a finite rate")
    if value > MOST:
        # Its digits may be too many to print.
        raise ConfigurationError("per_second", f"is too large; use at most {MOST}")
    if value <= 0:
        raise ConfigurationError("per_second", f"{value} would never admit a second call; use a rate above 0")
    rate = Fraction(value)
    if isinstance(value, float):
        # 0.1 is not 1/10 in binary; the intended fraction is the simplest one nearby, on either side of 1.
        rate = rate.limit_denominator(10**6) if rate >= 1 else 1 / (1 / rate).limit_denominator(10**6)
    return rate


def _window(value: str | timedelta, name: str = "window") -> tuple[timedelta, int]:
    try:
        span = parse_duration(value, name)
    except InvalidInput as error:
        raise ConfigurationError(name, error.problem) from None
    if not timedelta(0) < span <= LONGEST:
        raise ConfigurationError(name, f"use a span above zero and up to {format_duration(LONGEST)}")
    return span, duration_us(span)
