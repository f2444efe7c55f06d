"""The model of limits: plans (specs with a name), rules, decisions. `specs.py` has the algorithms and their numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from paceline.durations import format_duration
from paceline.errors import ConfigurationError
from paceline.limits.rates import parse_rates
from paceline.limits.specs import (
    LONGEST,
    MOST,
    MOST_LOGGED,
    CalendarWindow,
    Concurrency,
    FixedWindow,
    Gcra,
    SlidingLog,
    SlidingWindow,
    Spec,
    TokenBucket,
    describe,
)

__all__ = [
    "LONGEST",
    "MOST",
    "MOST_LOGGED",
    "CalendarWindow",
    "Charge",
    "Concurrency",
    "Decision",
    "FixedWindow",
    "Gcra",
    "OnError",
    "Plan",
    "PlanState",
    "Reason",
    "Rule",
    "SlidingLog",
    "SlidingWindow",
    "Spec",
    "Specs",
    "TokenBucket",
    "describe",
    "policy",
]

Specs: TypeAlias = tuple[Spec, ...]
"""Limits that hold together under one name."""

NAME_LENGTH = 128
_PART_NAME = re.compile(r";P[0-9DTHMS.]+$")


class OnError(StrEnum):
    """What a plan decides while its store is unavailable."""

    OPEN = "open"
    CLOSED = "closed"
    FALLBACK = "fallback"


class Reason(StrEnum):
    """Why a call was allowed or denied."""

    OK = "OK"
    DENIED = "DENIED"
    EXCEEDS_CAPACITY = "EXCEEDS_CAPACITY"
    """Denied, and never to be admitted: the cost is above the limit that an override gives this key."""
    FAIL_OPEN = "FAIL_OPEN"
    FAIL_CLOSED = "FAIL_CLOSED"
    FALLBACK = "FALLBACK"
    EXEMPT = "EXEMPT"
    """Not decided at all: the request has no key, or is exempt."""


@dataclass(frozen=True, slots=True, init=False)
class Plan:
    """A limit with a name, or several that hold together.

        Plan("gold", TokenBucket(capacity=10, per_second=1), overrides={"user:vip": TokenBucket(100, 10)})
        Plan("free", "100/hour;1000/day", overrides={"user:vip": "10/second"})

    `on_error` decides while the store is unavailable (`None`: the limiter's). A `shadow` plan decides and is counted,
    but never denies. `overrides` gives single keys limits of their own. Plans with the same `counter` share their
    counts, each with its own limit; by default a plan counts under its name.

    Raises:
        ConfigurationError: a field can't be used.
    """

    name: str
    specs: Specs
    on_error: str | None
    shadow: bool
    overrides: Mapping[str, Specs] = field(hash=False)
    counter: str | None

    def __init__(
        self,
        name: str,
        spec: Spec | Specs | str,
        on_error: str | None = None,
        shadow: bool = False,
        overrides: Mapping[str, Spec | Specs | str] | None = None,
        counter: str | None = None,
    ) -> None:
        for field_name, text in (("name", name), ("counter", name if counter is None else counter)):
            if not isinstance(text, str) or not 0 < len(text) <= NAME_LENGTH or not text.isprintable():
                raise ConfigurationError(field_name, f"a plan needs a name of 1 to {NAME_LENGTH} printable characters")
        if _PART_NAME.search(name):
            raise ConfigurationError("name", f"{name!r} is the name of one limit of a plan with several; use another")
        if not isinstance(shadow, bool):
            raise ConfigurationError("shadow", "use true or false")
        if overrides is None:
            overrides = {}
        if not isinstance(overrides, Mapping):
            kind = type(overrides).__name__
            raise ConfigurationError("overrides", f"plan {name!r}: give each key a limit, {{key: limit}}, not a {kind}")
        special: dict[str, Specs] = {}
        for key, value in overrides.items():
            if not isinstance(key, str) or not key:
                raise ConfigurationError("overrides", f"plan {name!r}: {key!r} is not a key")
            special[key] = _specs(name, value, "overrides")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "specs", _specs(name, spec, "spec"))
        object.__setattr__(self, "on_error", policy(on_error))
        object.__setattr__(self, "shadow", shadow)
        object.__setattr__(self, "overrides", MappingProxyType(special))
        object.__setattr__(self, "counter", counter)

    @property
    def spec(self) -> Spec:
        """The first of its limits; most plans have one."""
        return self.specs[0]

    def __reduce__(self) -> tuple[object, ...]:
        return Plan, (self.name, self.specs, self.on_error, self.shadow, dict(self.overrides), self.counter)


def _specs(name: str, value: object, field: str) -> Specs:
    if isinstance(value, str):
        value = parse_rates(value, field)
    specs = value if isinstance(value, tuple) else (value,)
    if not specs or not all(isinstance(spec, Spec) for spec in specs):
        raise ConfigurationError(
            field, f"plan {name!r} needs a rate such as '10/minute', or a TokenBucket, FixedWindow, SlidingWindow, …"
        )
    if len(specs) > 1:
        parts = {part_name(name, spec) for spec in specs}
        if len(parts) < len(specs):
            raise ConfigurationError(field, f"plan {name!r} has two limits of the same length; give one for each")
        if max(map(len, parts)) > NAME_LENGTH:
            raise ConfigurationError("name", f"{name!r} is too long a name for a plan with several limits")
    return specs


def part_name(plan: str, spec: Spec) -> str:
    """The name of one of several limits of a plan, by its length: `free;P1D`. It stays when the limit changes."""
    return f"{plan};{format_duration(spec.span)}"


class Rule:
    """A limit of a plan as it holds for one key: its name, the spec, and whether it may deny.

    Compared by identity: limiters make one per limit and override and keep it.
    """

    __slots__ = ("__weakref__", "on_error", "owner", "plan", "shadow", "size", "spec")

    def __init__(
        self,
        plan: str,
        spec: Spec,
        shadow: bool = False,
        on_error: OnError | None = None,
        owner: str | None = None,
    ) -> None:
        self.plan = plan
        """The name its states are kept under: the plan's counter, or that of one of its limits if it has several."""
        self.owner = plan if owner is None else owner
        """The plan's name."""
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

        decision = limiter.acquire("user:1", "gold")
        if not decision.allowed: time.sleep(decision.retry_after)

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
        """Seconds after which a lone caller is admitted; 0 if it was, or if it never will be (`reason`)."""
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
