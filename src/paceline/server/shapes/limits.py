"""A decision of the limiter on the wire, its request, and plans."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, WithJsonSchema

from paceline.limits.model import MOST, MOST_LOGGED, NAME_LENGTH, Decision, Plan
from paceline.limits.plan_book import KEY_LENGTH
from paceline.limits.plan_documents import SEVERAL, document_of
from paceline.limits.rates import MAX_RATES
from paceline.limits.wire import MAX_CALLS, MAX_CHARGES, MAX_NUMBER, OPERATIONS
from paceline.server.shapes.members import CONFIG_NAME, DURATION
from paceline.server.shapes.shape import Expects, InvalidMember, Shape

MAX_PLANS = 64
MAX_REQUESTS = 1000
"""The most requests of a batch."""
MAX_OVERRIDES = 10_000
"""The most overrides of a plan over HTTP. Each process compiles all of them when the plan changes."""
PLAN_NAME: dict[str, Any] = CONFIG_NAME | {"description": "A plan's name.", "example": "gold"}
_KEY = {
    "type": "string",
    "minLength": 1,
    "maxLength": KEY_LENGTH,
    "pattern": r"^[^\u0000]+$",
    "description": "Whom it counts against.",
    "example": "user:123",
}
_PLANS = {
    "type": "array",
    "minItems": 1,
    "maxItems": MAX_PLANS,
    "uniqueItems": True,
    "items": PLAN_NAME,
    "description": "Decided together: all or nothing.",
}
_COST = {"type": ["integer", "null"], "minimum": 1, "maximum": 2**50}


class LimitResetRequest(Shape):
    """A key, and the plans under which it is reset."""

    key: Annotated[str, WithJsonSchema(_KEY), Expects("a text")]
    plans: Annotated[
        list[str],
        Field(min_length=1, max_length=MAX_PLANS),
        WithJsonSchema(_PLANS),
        Expects(f"a list of 1 to {MAX_PLANS} names of plans", items="a string"),
    ]

    @property
    def charge(self) -> tuple[str, list[str], int]:
        """The arguments of a call to the limiter."""
        return self.key, self.plans, 1


class LimitRequest(LimitResetRequest):
    """A cost to a key, under some plans."""

    # The limiter checks that it is 1 at least.
    cost: Annotated[
        Annotated[int, Field(strict=True)] | None, WithJsonSchema(_COST), Expects("a whole number of at least 1")
    ] = 1

    @property
    def charge(self) -> tuple[str, list[str], int]:
        return self.key, self.plans, 1 if self.cost is None else self.cost


class LimitBatchRequest(Shape):
    """Many costs, decided independently."""

    # Each is parsed as a `LimitRequest` by itself, so that an error has its path: requests[3].key.
    requests: Annotated[
        list[Any],
        Field(min_length=1, max_length=MAX_REQUESTS),
        WithJsonSchema(
            {"type": "array", "minItems": 1, "maxItems": MAX_REQUESTS, "items": LimitRequest.request_schema()}
        ),
        Expects(f"a list of 1 to {MAX_REQUESTS} requests"),
    ]

    def charges(self) -> list[tuple[str, list[str], int]]:
        """The arguments of `acquire_many`.

        Raises:
            InvalidMember: a member of a request is missing, unknown, or of the wrong type.
        """
        return [_charge(value, number) for number, value in enumerate(self.requests)]


def _charge(value: object, number: int) -> tuple[str, list[str], int]:
    if not isinstance(value, dict):
        raise InvalidMember(f"requests[{number}]", "must be an object")
    return LimitRequest.parse(value, f"requests[{number}].").charge


class PlanStateShown(Shape):
    """The state of one plan; times are seconds."""

    plan: str
    allowed: bool
    remaining: int
    limit: int
    retry_after: float
    reset_after: float
    shadow: bool


class DecisionShown(Shape):
    """A decision; times are seconds. `plan` is the one that bound it."""

    allowed: bool
    remaining: int
    limit: int
    retry_after: float
    reset_after: float
    plan: str
    reason: str
    degraded: bool
    plans: list[PlanStateShown]


class FailedRequest(Shape):
    """A request of a batch that can't be decided."""

    error: dict[str, Any]


class DecisionsShown(Shape):
    """The decisions of a batch, in the order of its requests."""

    decisions: list[DecisionShown | FailedRequest]


def dump_decision(decision: Decision) -> dict[str, Any]:
    """A `DecisionShown` as a value for JSON. Written out: it is part of every decision of a batch."""
    allowed, remaining, limit, retry_us, reset_us, plan, reason, degraded, chain = decision
    return {
        "allowed": allowed,
        "remaining": remaining,
        "limit": limit,
        "retryAfter": retry_us / 1_000_000,
        "resetAfter": reset_us / 1_000_000,
        "plan": plan,
        "reason": reason,
        "degraded": degraded,
        "plans": [_dump_state(*state) for state in chain]
        or [_dump_state(plan, allowed, remaining, limit, retry_us, reset_us, False)],
    }


def _dump_state(
    plan: str, allowed: bool, remaining: int, limit: int, retry_us: int, reset_us: int, shadow: bool
) -> dict[str, Any]:
    return {
        "plan": plan,
        "allowed": allowed,
        "remaining": remaining,
        "limit": limit,
        "retryAfter": retry_us / 1_000_000,
        "resetAfter": reset_us / 1_000_000,
        "shadow": shadow,
    }


_RATE = {
    "description": "Tokens a second: a number above 0, or a fraction such as `2/3`.",
    "anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string", "pattern": r"^[1-9][0-9]*/[1-9][0-9]*$"}],
}
_BUCKET = {"capacity": {"type": "integer", "minimum": 1, "maximum": MOST}, "perSecond": _RATE}
_WINDOW = {"limit": {"type": "integer", "minimum": 1, "maximum": MOST}, "window": DURATION}
_LOG = _WINDOW | {
    "limit": {"type": "integer", "minimum": 1, "maximum": MOST_LOGGED},
    "precision": DURATION | {"type": ["string", "null"]},
}
_GCRA = {
    "rate": {"type": "string", "maxLength": 256, "pattern": r"^\s*[0-9]+ *(/|per) *[0-9]* *[A-Za-z][A-Za-z0-9.]*\s*$"},
    "burst": {"type": ["integer", "null"], "minimum": 1, "maximum": MOST},
}
_PLACES = {"limit": _LOG["limit"], "expires": DURATION | {"type": ["string", "null"]}}
_OPTIONS: dict[str, Any] = {
    "name": PLAN_NAME | {"description": "If given, the same as in the path."},
    "onError": {"type": ["string", "null"], "enum": ["open", "closed", "fallback", None]},
    "shadow": {"type": ["boolean", "null"], "description": "Decide and count, but never deny."},
}
_SPECS: dict[tuple[str, ...], dict[str, Any]] = {
    ("token_bucket",): _BUCKET,
    ("fixed_window", "sliding_window"): _WINDOW,
    ("sliding_log",): _LOG,
    ("gcra",): _GCRA,
    ("concurrency",): _PLACES,
}
_CALENDAR: dict[str, Any] = {
    "type": "object",
    "required": ["limit", "calendar"],
    "additionalProperties": False,
    "properties": {
        "algorithm": {"type": "string", "enum": ["fixed_window"]},
        "limit": {"type": "integer", "minimum": 1, "maximum": MOST},
        "calendar": {"type": "string", "enum": ["day", "week", "month"]},
        "zone": {"type": ["string", "null"], "description": "An IANA time zone; UTC if not given."},
    },
}


_OPTIONAL = {"burst", "expires", "precision"}
_RATE_STRING = {
    "type": "string",
    "maxLength": 256,
    "pattern": r"^\s*[0-9]+ *(/|per) *[0-9]* *[A-Za-z][A-Za-z0-9.]*( +burst +[0-9]+)?( *[;|] *[0-9]+[^;|]*)*\s*$",
    "description": "A rate: so many in a window, or with `burst` a token bucket; several hold together.",
    "example": "100/hour;1000/day",
}


def _spec(algorithms: tuple[str, ...], required: tuple[str, ...], **more: Any) -> dict[str, Any]:
    own = _SPECS[algorithms]
    return {
        "type": "object",
        "required": [*required, *(name for name in own if name not in _OPTIONAL)],
        "additionalProperties": False,
        "properties": {"algorithm": {"type": "string", "enum": list(algorithms)}, **own, **more},
    }


_NAMED = [_spec(algorithms, ("algorithm",)) for algorithms in _SPECS]
_NAMED.append(_CALENDAR | {"required": ["algorithm", *_CALENDAR["required"]]})
_RATED = {"type": "object", "required": ["rate"], "additionalProperties": False, "properties": {"rate": _RATE_STRING}}
_SEVERAL: dict[str, Any] = {
    "type": "object",
    "required": ["algorithm", "limits"],
    "additionalProperties": False,
    "properties": {
        "algorithm": {"type": "string", "enum": [SEVERAL]},
        "limits": {"type": "array", "minItems": 2, "maxItems": MAX_RATES, "items": {"anyOf": _NAMED}},
    },
}


def _overrides(*first: dict[str, Any]) -> dict[str, Any]:
    """Limits of single keys. They have their plan's algorithm (`first`), unless they name another."""
    return {
        "type": ["object", "null"],
        "description": "Limits of single keys: `{key: {limit, window}}` or `{key: rate}`.",
        "maxProperties": MAX_OVERRIDES,
        "additionalProperties": {"anyOf": [*first, *_NAMED, _SEVERAL, _RATED, _RATE_STRING]},
    }


def _with_options(schema: dict[str, Any], *first: dict[str, Any]) -> dict[str, Any]:
    return schema | {"properties": {**schema["properties"], **_OPTIONS, "overrides": _overrides(*first)}}


PLAN_REQUEST: dict[str, Any] = {
    "title": "PlanRequest",
    "oneOf": [
        *(_with_options(_spec(algorithms, ("algorithm",)), _spec(algorithms, ())) for algorithms in _SPECS),
        _with_options(_NAMED[-1], _CALENDAR),
        _with_options(_RATED),
        _with_options(_SEVERAL),
        _RATE_STRING,
    ],
    "example": {"algorithm": "token_bucket", "capacity": 10, "perSecond": 1},
}
"""A plan is a document of the library: `limits.plan_documents` reads and writes it, for files and databases too."""


_NUMBER = {"type": "integer", "minimum": 0, "maximum": MAX_NUMBER}
_ID = {"type": "string", "minLength": 1, "maxLength": KEY_LENGTH}
_RULE_NAME = {"type": "string", "minLength": 1, "maxLength": NAME_LENGTH}
_LINK = {"type": "array", "minItems": 3, "maxItems": 3, "items": {"anyOf": [_KEY, _NUMBER]}}
_CHAIN = {"type": "array", "minItems": 1, "items": _LINK, "description": "Key, number of the rule, and cost of each."}
_STORE_RULE: dict[str, Any] = {
    "type": "object",
    "required": ["plan", "spec"],
    "additionalProperties": False,
    "properties": {
        "plan": _RULE_NAME | {"description": "The name its counts are kept under."},
        "owner": _RULE_NAME | {"description": "The plan's name, if it differs."},
        "spec": {"anyOf": _NAMED},
        "shadow": {"type": "boolean"},
    },
}
_STORE_CALL: dict[str, Any] = {
    "type": "object",
    "required": ["op"],
    "additionalProperties": False,
    "properties": {
        "op": {"type": "string", "enum": list(OPERATIONS)},
        "chain": _CHAIN,
        "chains": {"type": "array", "items": _CHAIN},
        "hold": {
            "type": "array",
            "minItems": 3,
            "maxItems": 3,
            "items": {"anyOf": [_ID, _NUMBER, {"type": "boolean"}]},
        },
        "id": _ID,
        "actual": {"type": "array", "items": _NUMBER, "description": "The cost of each charge."},
        "ttlUs": _NUMBER,
        "nowUs": _NUMBER | {"description": "A time to decide at, for tests."},
    },
}


class StoreCalls(Shape):
    """Calls to the store: `paceline.limits.wire` reads and writes them."""

    rules: Annotated[list[Any], WithJsonSchema({"type": "array", "maxItems": MAX_CHARGES, "items": _STORE_RULE})]
    calls: Annotated[
        list[Any], WithJsonSchema({"type": "array", "minItems": 1, "maxItems": MAX_CALLS, "items": _STORE_CALL})
    ]


class StoreResults(Shape):
    """A result for each call: `ok`, or `error` and `detail`."""

    results: list[dict[str, Any]]


class PlanShown(Shape):
    """A plan: `capacity` and `perSecond` of a token bucket, `limit` and `window` of others; `limits` of `several`."""

    model_config = ConfigDict(extra="allow")

    name: str
    algorithm: str

    @classmethod
    def of_plan(cls, plan: Plan) -> Self:
        return cls.of(name=plan.name, **document_of(plan))


class PlansShown(Shape):
    """All plans, by name."""

    plans: list[PlanShown]
