"""`/api/v1/limits`: may this run now?"""

from __future__ import annotations

from typing import Any, NamedTuple

import orjson
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel
from starlette.types import Receive, Scope, Send

from headgate.errors import NotFound
from headgate.limits import headers
from headgate.limits.model import Decision
from headgate.limits.plan_book import KEY_LENGTH
from headgate.server.http import schemas
from headgate.server.http.body import only, read_object, required
from headgate.server.http.problem import documented, invalid
from headgate.server.http.raw_routes import add_raw_route
from headgate.server.http.services import services_of
from headgate.server.shapes import members
from headgate.server.wire import decision_json
from headgate.server.wiring.limits import Limits

MAX_PLANS = 64
PLAN_NAME: dict[str, Any] = members.CONFIG_NAME | {"description": "A plan's name.", "example": "gold"}
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
_COST = {"type": ["integer", "null"], "minimum": 1, "maximum": 2**50, "default": 1}
RESET_REQUEST: dict[str, Any] = {
    "title": "LimitResetRequest",
    "type": "object",
    "required": ["key", "plans"],
    "additionalProperties": False,
    "properties": {"key": _KEY, "plans": _PLANS},
}
REQUEST: dict[str, Any] = RESET_REQUEST | {
    "title": "LimitRequest",
    "properties": {"key": _KEY, "plans": _PLANS, "cost": _COST},
}
JSON = "application/json"


class _Shown(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel)


class PlanStateShown(_Shown):
    """Where one plan stands; times are seconds."""

    plan: str
    allowed: bool
    remaining: int
    limit: int
    retry_after: float
    reset_after: float
    shadow: bool


class DecisionShown(_Shown):
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


class _LimitRequest(NamedTuple):
    key: str
    plans: list[str]
    cost: int


def install(app: FastAPI) -> None:
    """Adds the routes of this module."""
    for name, endpoint, summary, request, denies in (
        ("acquire", acquire, "Decide, and charge if there is room", REQUEST, True),
        ("peek", peek, "Look without charging", REQUEST, False),
        ("refund", refund, "Give a cost back", REQUEST, False),
        ("reset", reset, "Make a key as new", RESET_REQUEST, False),
    ):
        add_raw_route(
            app,
            f"/api/v1/limits/{name}",
            endpoint,
            methods=["POST"],
            tags=["limits"],
            summary=summary,
            response_model=DecisionShown,
            responses=documented(400, 404, 413, 415, *([429] if denies else [])),
            openapi_extra=schemas.json_body(request),
        )


async def acquire(scope: Scope, receive: Receive, send: Send) -> None:
    """Charges `cost` to the key under every plan if all have room, else nothing anywhere and 429.

    RateLimit fields tell how the plans stand; on a denial `Retry-After` tells when the same call would be admitted.
    """
    admission, request = services_of(scope).admission, await _read(scope, receive, REQUEST)
    decision = await _decide(admission, request)
    await _answer(send, admission, request, decision, 200 if decision.allowed else 429)


async def peek(scope: Scope, receive: Receive, send: Send) -> None:
    """What `acquire` would decide; charges nothing, and a denial is an answer like any other."""
    admission, request = services_of(scope).admission, await _read(scope, receive, REQUEST)
    await _answer(send, admission, request, await _peek(admission, request))


async def refund(scope: Scope, receive: Receive, send: Send) -> None:
    """Gives `cost` back to every plan, at most what is spent there, and tells how they stand."""
    admission, request = services_of(scope).admission, await _read(scope, receive, REQUEST)
    await _refresh_unknown(admission, request)
    await admission.limiter.refund(*request)
    await _answer(send, admission, request, await _peek(admission, request))


async def reset(scope: Scope, receive: Receive, send: Send) -> None:
    """Makes the key as new under every plan, and tells how they stand."""
    admission, request = services_of(scope).admission, await _read(scope, receive, RESET_REQUEST)
    await _refresh_unknown(admission, request)
    await admission.limiter.reset(request.key, request.plans)
    await _answer(send, admission, request, await _peek(admission, request))


async def _decide(admission: Limits, request: _LimitRequest) -> Decision:
    try:
        return await admission.limiter.acquire(*request)
    except NotFound:
        # Another process may just have made the plan.
        await admission.plans.refresh()
        return await admission.limiter.acquire(*request)


async def _peek(admission: Limits, request: _LimitRequest) -> Decision:
    await _refresh_unknown(admission, request)
    return await admission.limiter.peek(*request)


async def _refresh_unknown(admission: Limits, request: _LimitRequest) -> None:
    """Asks for the plans again if one of them is unknown: another process may just have made it."""
    try:
        for plan in request.plans:
            admission.limiter.rule(plan, request.key)
    except NotFound:
        await admission.plans.refresh()


async def _read(scope: Scope, receive: Receive, schema: dict[str, Any]) -> _LimitRequest:
    value = await read_object(scope, receive)
    only(value, tuple(schema["properties"]))
    plans, cost = required(value, "plans"), value.get("cost")
    if not isinstance(plans, list) or not 1 <= len(plans) <= MAX_PLANS:
        raise invalid("plans", f"must be a list of 1 to {MAX_PLANS} names of plans")
    for index, plan in enumerate(plans):
        if not isinstance(plan, str):
            raise invalid(f"plans[{index}]", "must be a string")
    return _LimitRequest(required(value, "key"), plans, 1 if cost is None else cost)


async def _answer(send: Send, admission: Limits, request: _LimitRequest, decision: Decision, status: int = 200) -> None:
    body, media_type = decision_json(decision), JSON
    if status == 429:
        body, media_type = headers.problem(decision) | body, headers.PROBLEM_JSON
    try:
        rules = [admission.limiter.rule(plan, request.key) for plan in request.plans]
    except NotFound:
        rules = []  # the plan was deleted since it decided
    fields = headers.fields(decision, rules)
    if status == 200:
        fields = [(name, value) for name, value in fields if name != headers.RETRY_AFTER]
    encoded = orjson.dumps(body)
    fields = [*fields, ("Content-Type", media_type), ("Content-Length", str(len(encoded)))]
    raw = [(name.lower().encode(), value.encode()) for name, value in fields]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": encoded})
