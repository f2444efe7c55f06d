"""Plans as documents: what stands in a file, in a database and on the wire.

    {"algorithm": "token_bucket", "capacity": 10, "perSecond": 1}
    {"algorithm": "fixed_window", "limit": 1000, "window": "P1D", "onError": "closed", "shadow": true,
     "overrides": {"user:vip": {"limit": 5000, "window": "P1D"}}}

    "10/minute"
    {"rate": "100/hour;1000/day", "onError": "closed", "overrides": {"user:vip": "10/second"}}

`per_second` and `on_error` are understood as well, for files. An override that names no algorithm has its plan's. A
`perSecond` that is no short decimal is written as a fraction: `"2/3"`. A plan with several limits is written with the
algorithm `several`: `{"algorithm": "several", "limits": [{…}, {…}]}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from paceline.durations import format_duration
from paceline.errors import ConfigurationError
from paceline.limits.model import (
    CalendarWindow,
    Concurrency,
    FixedWindow,
    Gcra,
    Plan,
    SlidingLog,
    SlidingWindow,
    Spec,
    Specs,
    TokenBucket,
)
from paceline.limits.rates import MAX_RATES, parse_rates

_WINDOWS: dict[str, type[FixedWindow] | type[SlidingWindow] | type[SlidingLog]] = {
    kind.algorithm: kind for kind in (FixedWindow, SlidingWindow, SlidingLog)
}
SEVERAL = "several"
"""The algorithm of a plan with several limits that hold together, in documents."""
_FIXED = FixedWindow.algorithm
ALGORITHMS = ", ".join([TokenBucket.algorithm, *_WINDOWS, Gcra.algorithm, Concurrency.algorithm])
_SPELLINGS = {"perSecond": "per_second", "onError": "on_error"}


def plan_from(name: str, document: object) -> Plan:
    """The plan that a document describes.

    Raises:
        ConfigurationError: a field is wrong; names it as it was written.
    """
    if isinstance(document, str):
        document = {"rate": document}
    fields = _Fields(document, "plan")
    algorithm = fields.take("algorithm")
    specs = _specs_from(algorithm, fields)
    on_error, shadow = fields.take("onError"), fields.take("shadow")
    overrides = fields.take("overrides")
    fields.refuse_the_rest()
    if overrides is None:
        overrides = {}
    if not isinstance(overrides, Mapping):
        raise ConfigurationError("overrides", "give each key a limit: {key: {...}}")
    special: dict[str, Spec | Specs | str] = {}
    for key, override in overrides.items():
        if isinstance(override, str):
            special[key] = parse_rates(override, f"overrides.{key}.rate")
            continue
        own = _Fields(override, f"overrides.{key}")
        try:
            rated = "rate" in own and algorithm != Gcra.algorithm
            special[key] = _specs_from(own.take("algorithm") or (None if rated else algorithm or _FIXED), own)
            own.refuse_the_rest()
        except ConfigurationError as error:
            raise ConfigurationError(f"overrides.{key}.{error.field}", error.problem) from None
    try:
        return Plan(name, specs, on_error, False if shadow is None else shadow, special)
    except ConfigurationError as error:
        raise ConfigurationError(fields.spelled(error.field), error.problem) from None


def document_of(plan: Plan) -> dict[str, Any]:
    """The document of a plan; `plan_from` makes the same plan of it."""
    document = _specs_document(plan.specs)
    if plan.on_error is not None:
        document["onError"] = str(plan.on_error)
    if plan.shadow:
        document["shadow"] = True
    if plan.overrides:
        document["overrides"] = {key: _specs_document(specs) for key, specs in plan.overrides.items()}
    return document


def _specs_from(algorithm: object, fields: _Fields) -> Specs:
    if "rate" in fields and algorithm != Gcra.algorithm:
        if algorithm is not None:
            raise ConfigurationError("rate", "says all; leave algorithm out, or name the algorithm's own fields")
        rate = fields.take("rate")
        if not isinstance(rate, str):
            raise ConfigurationError("rate", "is a text; write for example 10/minute")
        return parse_rates(rate)
    if algorithm is None:
        raise ConfigurationError("algorithm", "is missing; name it, or give a rate such as 10/minute")
    if algorithm != SEVERAL:
        return (_spec_from(algorithm, fields),)
    limits = fields.required("limits")
    if not isinstance(limits, list) or not 1 < len(limits) <= MAX_RATES:
        raise ConfigurationError("limits", f"give a list of 2 to {MAX_RATES} limits")
    specs: list[Spec] = []
    for index, limit in enumerate(limits):
        own = _Fields(limit, f"limits.{index}")
        try:
            specs.append(_spec_from(own.required("algorithm"), own))
            own.refuse_the_rest()
        except ConfigurationError as error:
            raise ConfigurationError(f"limits.{index}.{error.field}", error.problem) from None
    return tuple(specs)


def _spec_from(algorithm: object, fields: _Fields) -> Spec:
    try:
        if algorithm == TokenBucket.algorithm:
            return TokenBucket(fields.required("capacity"), _rate(fields.required("perSecond")))
        if algorithm == Gcra.algorithm:
            burst = fields.take("burst")
            return Gcra(fields.required("rate"), 1 if burst is None else burst)
        if algorithm == Concurrency.algorithm:
            expires = fields.take("expires")
            return Concurrency(fields.required("limit"), "PT30S" if expires is None else expires)
        calendar = fields.take("calendar") if algorithm == FixedWindow.algorithm else None
        if calendar is not None:
            zone = fields.take("zone")
            return CalendarWindow(fields.required("limit"), calendar, "UTC" if zone is None else zone)
        window = _WINDOWS.get(algorithm) if isinstance(algorithm, str) else None
        if window is None:
            raise ConfigurationError("algorithm", f"{algorithm!r} is none of {ALGORITHMS}")
        limit, span = fields.required("limit"), fields.required("window")
        precision = fields.take("precision") if window is SlidingLog else None
        return window(limit, span) if precision is None else SlidingLog(limit, span, precision)
    except ConfigurationError as error:
        raise ConfigurationError(fields.spelled(error.field), error.problem) from None


def _specs_document(specs: Specs) -> dict[str, Any]:
    if len(specs) == 1:
        return _spec_document(specs[0])
    return {"algorithm": SEVERAL, "limits": [_spec_document(spec) for spec in specs]}


def _spec_document(spec: Spec) -> dict[str, Any]:
    if isinstance(spec, Gcra):
        return {"algorithm": spec.algorithm, "rate": str(spec.rate), "burst": spec.burst}
    if isinstance(spec, Concurrency):
        return {"algorithm": spec.algorithm, "limit": spec.limit, "expires": format_duration(spec.expires)}
    if isinstance(spec, CalendarWindow):
        return {"algorithm": spec.algorithm, "limit": spec.limit, "calendar": spec.calendar, "zone": spec.zone}
    if isinstance(spec, TokenBucket):
        rate = spec.per_second
        if rate.denominator == 1:
            shown: int | float | str = rate.numerator
        else:
            shown = float(rate) if TokenBucket(1, float(rate)).per_second == rate else str(rate)
        return {"algorithm": spec.algorithm, "capacity": spec.capacity, "perSecond": shown}
    document = {"algorithm": spec.algorithm, "limit": spec.limit, "window": format_duration(spec.window)}
    if isinstance(spec, SlidingLog) and spec.grain_us > 1:
        document["precision"] = format_duration(spec.precision)
    return document


def _rate(value: object) -> Any:
    if not isinstance(value, str):
        return value
    try:
        if len(value) > 64:
            raise ValueError
        return Fraction(value)
    except (ValueError, ZeroDivisionError):
        raise ConfigurationError(
            "per_second", f"{value[:64]!r} is not a rate; write for example 10, 0.5 or 2/3"
        ) from None


class _Fields:
    """A document being read: each field once, under either of its spellings."""

    def __init__(self, document: object, where: str) -> None:
        if not isinstance(document, Mapping):
            raise ConfigurationError(
                where, "write a rate such as 10/minute, or describe it by fields: algorithm, limit and window"
            )
        self._left: dict[Any, Any] = dict(document)
        self._as_typed: dict[str, str] = {}
        for name, snake in _SPELLINGS.items():
            if snake in self._left:
                if name in self._left:
                    raise ConfigurationError(snake, f"is also given as {name}; give it once")
                self._left[name] = self._left.pop(snake)
                self._as_typed[name] = snake

    def __contains__(self, name: str) -> bool:
        return self._left.get(name) is not None

    def take(self, name: str) -> Any:
        return self._left.pop(name, None)

    def required(self, name: str) -> Any:
        value = self.take(name)
        if value is None:
            raise ConfigurationError(name, "is missing")
        return value

    def refuse_the_rest(self) -> None:
        for name in self._left:
            raise ConfigurationError(str(name), "is no field of this plan")

    def spelled(self, name: str) -> str:
        """A field's name as the writer of the document spells it."""
        for camel, snake in _SPELLINGS.items():
            if name in (camel, snake):
                return self._as_typed.get(camel, camel)
        return name
