"""The model of limits: specs (the numbers of an algorithm), plans (a spec with a name), decisions.

Every number a store computes with is an integer that fits a double (below 2^53), so a Lua script and Python agree to
the last unit. The bounds that guarantee it are checked here, when a spec is made, never while deciding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from math import gcd, isfinite
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, TypeAlias

from headgate.durations import duration_us, format_duration, parse_duration
from headgate.errors import ConfigurationError, InvalidInput

MOST = 2**50
"""No product or state of any algorithm exceeds this, so sums of a few of them stay exact in a double."""

LONGEST = timedelta(days=3660)
MOST_LOGGED = 100_000
NAME_LENGTH = 128


class OnError(StrEnum):
    """What a plan decides while its store is unavailable."""

    OPEN = "open"
    CLOSED = "closed"
    FALLBACK = "fallback"


class Reason(StrEnum):
    """Why a call was allowed or denied."""

    OK = "OK"
    DENIED = "DENIED"
    FAIL_OPEN = "FAIL_OPEN"
    FAIL_CLOSED = "FAIL_CLOSED"
    FALLBACK = "FALLBACK"
    EXEMPT = "EXEMPT"
    """Not decided at all: the request has no key, or is exempt."""


@dataclass(frozen=True, slots=True, init=False)
class TokenBucket:
    """Holds up to `capacity` tokens and gains `per_second` of them, continuously, losing no fraction.

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


@dataclass(frozen=True, slots=True, init=False)
class _Window:
    """`limit` per `window`."""

    limit: int
    window: timedelta
    window_us: int = field(compare=False, repr=False)
    life_us: int = field(compare=False, repr=False)
    """Microseconds after which an idle state is as new."""

    def __init__(self, limit: int, window: str | timedelta) -> None:
        _whole("limit", limit)
        span, window_us = _window(window)
        _set(self, limit=limit, window=span, window_us=window_us, life_us=window_us)

    @property
    def size(self) -> int:
        """The most one call may cost."""
        return self.limit


@dataclass(frozen=True, slots=True, init=False)
class FixedWindow(_Window):
    """`limit` per `window`; a window opens at the first use after the last one ended."""

    tag: ClassVar[int] = 2
    algorithm: ClassVar[str] = "fixed_window"


@dataclass(frozen=True, slots=True, init=False)
class SlidingWindow(_Window):
    """`limit` per `window`, estimated from two counters: this window's, and the last one's by its share still in view.

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
    """`limit` in every span of length `window`, exactly, by storing each admitted call."""

    tag: ClassVar[int] = 4
    algorithm: ClassVar[str] = "sliding_log"

    def __init__(self, limit: int, window: str | timedelta) -> None:
        _Window.__init__(self, limit, window)
        if limit > MOST_LOGGED:
            raise ConfigurationError(
                "limit", f"{limit} calls are too many to remember; at most {MOST_LOGGED}; use sliding_window"
            )


Spec: TypeAlias = TokenBucket | FixedWindow | SlidingWindow | SlidingLog


@dataclass(frozen=True, slots=True)
class Plan:
    """A limit with a name.

        Plan("gold", TokenBucket(capacity=10, per_second=1), overrides={"user:vip": TokenBucket(100, 10)})

    `on_error` decides while the store is unavailable (`None`: the limiter's). A `shadow` plan decides and is counted,
    but never denies. `overrides` gives single keys a spec of their own.

    Raises:
        ConfigurationError: a field can't be used.
    """

    name: str
    spec: Spec
    on_error: str | None = None
    shadow: bool = False
    overrides: Mapping[str, Spec] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        name = self.name
        if not isinstance(name, str) or not 0 < len(name) <= NAME_LENGTH or not name.isprintable():
            raise ConfigurationError("name", f"a plan needs a name of 1 to {NAME_LENGTH} printable characters")
        if not isinstance(self.spec, Spec):
            raise ConfigurationError(
                "spec", f"plan {name!r} needs a TokenBucket, FixedWindow, SlidingWindow or SlidingLog"
            )
        object.__setattr__(self, "on_error", policy(self.on_error))
        if not isinstance(self.shadow, bool):
            raise ConfigurationError("shadow", "use true or false")
        for key, spec in self.overrides.items():
            if not isinstance(key, str) or not key or not isinstance(spec, Spec):
                raise ConfigurationError("overrides", f"plan {name!r}: give each key a spec; {key!r} has none")
        object.__setattr__(self, "overrides", MappingProxyType(dict(self.overrides)))

    def __reduce__(self) -> tuple[object, ...]:
        return Plan, (self.name, self.spec, self.on_error, self.shadow, dict(self.overrides))


class Rule:
    """A plan as it holds for one key: the plan's name, the spec, and whether it may deny.

    Compared by identity: limiters make one per plan and override and keep it.
    """

    __slots__ = ("__weakref__", "on_error", "plan", "shadow", "size", "spec")

    def __init__(self, plan: str, spec: Spec, shadow: bool = False, on_error: OnError | None = None) -> None:
        self.plan = plan
        self.spec = spec
        self.size = spec.size
        self.shadow = shadow
        self.on_error = on_error

    def __repr__(self) -> str:
        return f"Rule({self.plan!r}, {self.spec!r}{', shadow=True' if self.shadow else ''})"


class Charge(NamedTuple):
    """One link of a chain: `cost` on `key` under `rule`. The state it touches is that of (rule.plan, key)."""

    key: str
    rule: Rule
    cost: int = 1


class PlanState(NamedTuple):
    """The state of one plan of a chain after the decision."""

    plan: str
    allowed: bool
    """Whether this plan alone had room for the cost."""
    remaining: int
    limit: int
    retry_after_us: int
    reset_after_us: int
    shadow: bool = False

    @property
    def retry_after(self) -> float:
        """Seconds until this plan would have room for the cost; 0 if it had."""
        return self.retry_after_us / 1_000_000

    @property
    def reset_after(self) -> float:
        """Seconds until this plan is as new, if nothing else is taken."""
        return self.reset_after_us / 1_000_000


class _Fields(NamedTuple):
    """What a `Decision` is made of."""

    allowed: bool
    remaining: int
    limit: int
    retry_after_us: int
    reset_after_us: int
    plan: str
    reason: Reason = Reason.OK
    degraded: bool = False
    chain: tuple[PlanState, ...] = ()


class Decision(tuple[Any, ...]):
    """The decision on a call. True if allowed. `plan` names the plan that bound it: of a denial the one to wait longest
    for.

    A tuple with names, made of a tuple of all its fields, or by `of`. It is no `NamedTuple` because the constructor of
    one is a Python function, which would take a tenth of the time of a decision in memory.
    """

    __slots__ = ()

    allowed = _Fields.allowed
    remaining = _Fields.remaining
    limit = _Fields.limit
    retry_after_us = _Fields.retry_after_us
    reset_after_us = _Fields.reset_after_us
    plan = _Fields.plan
    reason = _Fields.reason
    degraded = _Fields.degraded
    """Whether the store was unavailable, so that a failure policy decided."""
    chain = _Fields.chain
    """Every plan's state, in the order of the call; empty if there was one plan, and no shadow plan. See `states`."""

    @classmethod
    def of(
        cls,
        allowed: bool,
        remaining: int,
        limit: int,
        retry_after_us: int,
        reset_after_us: int,
        plan: str,
        reason: Reason = Reason.OK,
        degraded: bool = False,
        chain: tuple[PlanState, ...] = (),
    ) -> Decision:
        """A decision of its fields."""
        return cls((allowed, remaining, limit, retry_after_us, reset_after_us, plan, reason, degraded, chain))

    def but(self, **changes: Any) -> Decision:
        """The same decision with some fields changed."""
        return Decision(_Fields(*self)._replace(**changes))

    def __repr__(self) -> str:
        return repr(_Fields(*self)).replace("_Fields", "Decision", 1)

    def __bool__(self) -> bool:
        return self.allowed

    @property
    def retry_after(self) -> float:
        """Seconds after which a lone caller is admitted; 0 if it was."""
        return self.retry_after_us / 1_000_000

    @property
    def reset_after(self) -> float:
        """Seconds until the plan is as new, if nothing else is taken."""
        return self.reset_after_us / 1_000_000

    @property
    def states(self) -> tuple[PlanState, ...]:
        """Every plan's state, in the order of the call."""
        return self.chain or (
            PlanState(
                self.plan, self.allowed, self.remaining, self.limit, self.retry_after_us, self.reset_after_us, False
            ),
        )


def policy(value: OnError | str | None) -> OnError | None:
    """An `OnError` from its name; `None` stays `None`."""
    if value is None:
        return None
    try:
        return OnError(value)
    except ValueError:
        raise ConfigurationError("on_error", f"{value!r} is none of open, closed, fallback") from None


def describe(spec: Spec) -> str:
    """A spec in a few words: `10 burst, 1/s` or `1000 per P1D`."""
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
        raise ConfigurationError(name, f"{value} is too large; use at most {MOST}")


def _rate(value: object) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | Fraction):
        raise ConfigurationError("per_second", f"{value!r} is not a number")
    if not isinstance(value, Fraction) and not isfinite(value):
        raise ConfigurationError("per_second", f"{value!r} is not a finite rate")
    if value <= 0:
        raise ConfigurationError("per_second", f"{value} would never admit a second call; use a rate above 0")
    rate = Fraction(value)
    if isinstance(value, float):
        # 0.1 is not 1/10 in binary; the fraction its writer meant is the simplest one nearby, on either side of 1.
        rate = rate.limit_denominator(10**6) if rate >= 1 else 1 / (1 / rate).limit_denominator(10**6)
    return rate


def _window(value: str | timedelta) -> tuple[timedelta, int]:
    try:
        span = parse_duration(value, "window")
    except InvalidInput as error:
        raise ConfigurationError("window", error.problem) from None
    if not timedelta(0) < span <= LONGEST:
        raise ConfigurationError("window", f"use a span above zero and up to {format_duration(LONGEST)}")
    return span, duration_us(span)
