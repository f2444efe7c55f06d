"""`/api/v1/limits`: decides whether a call may run now."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from paceline.errors import NotFound, PacelineError
from paceline.limits import headers
from paceline.limits.model import Decision
from paceline.server.http.body import object_of, read_object, read_text
from paceline.server.http.limit_batches import dump_decisions, plain_charges
from paceline.server.http.parameters import json_body
from paceline.server.http.problem import documented
from paceline.server.http.problem import of as problem_of
from paceline.server.http.raw_routes import add_raw_route, send_json
from paceline.server.http.services import services_of
from paceline.server.shapes.limits import (
    DecisionShown,
    DecisionsShown,
    LimitBatchRequest,
    LimitRequest,
    LimitResetRequest,
    dump_decision,
)
from paceline.server.wiring.limits import Limits

JSON = b"application/json"


def install(routes: list[BaseRoute]) -> None:
    """Adds the routes of this module."""
    for name, endpoint, summary, request, denies in (
        ("acquire", acquire, "Decide, and charge if there is room", LimitRequest, True),
        ("acquire/batch", acquire_batch, "Decide many at once", LimitBatchRequest, False),
        ("peek", peek, "Look without charging", LimitRequest, False),
        ("refund", refund, "Give a cost back", LimitRequest, False),
        ("reset", reset, "Make a key as new", LimitResetRequest, False),
    ):
        add_raw_route(
            routes,
            f"/api/v1/limits/{name}",
            endpoint,
            methods=["POST"],
            tags=["limits"],
            summary=summary,
            response_model=DecisionsShown if request is LimitBatchRequest else DecisionShown,
            responses=documented(400, 404, 413, 415, *([429] if denies else [])),
            openapi_extra=json_body(request),
        )


async def acquire(scope: Scope, receive: Receive, send: Send) -> None:
    """Charges `cost` to the key under every plan if all have room, else nothing anywhere and 429.

    RateLimit fields have the plans' state; on a denial, `Retry-After` is the time until the same call is admitted.
    """
    admission, request = services_of(scope).admission, LimitRequest.parse(await read_object(scope, receive))
    decision = await _decide(admission, request)
    await _answer(send, admission, request, decision, 200 if decision.allowed else 429)


async def acquire_batch(scope: Scope, receive: Receive, send: Send) -> None:
    """Decides up to 1000 requests in one round trip to the store. The response is 200, also for denials.

    The decisions are independent, and in the order of the requests: a denial of one denies no other. Requests of the
    same key are decided in their order. The members of all requests are checked before any is decided. A request whose
    plan is unknown, or whose cost is above its plan's capacity, has an `error` instead of a decision.
    """
    admission, raw = services_of(scope).admission, await read_text(scope, receive)
    requests = plain_charges(raw) or LimitBatchRequest.parse(object_of(raw)).charges()
    results = await admission.limiter.acquire_many(requests, return_errors=True)
    failed = [index for index, result in enumerate(results) if result.__class__ is not Decision]
    unknown = [index for index in failed if isinstance(results[index], NotFound)]
    if unknown:
        # Another process may just have created the plans.
        await admission.plans.refresh()
        again = await admission.limiter.acquire_many([requests[index] for index in unknown], return_errors=True)
        for index, result in zip(unknown, again, strict=True):
            results[index] = result
    shown: list[Any] = [*results]
    for index in failed:
        result = results[index]
        if isinstance(result, PacelineError):
            shown[index] = problem_of(result).body
    await send_json(send, dump_decisions(shown))


async def peek(scope: Scope, receive: Receive, send: Send) -> None:
    """The decision of `acquire`, without a charge; 200 also for a denial."""
    admission, request = services_of(scope).admission, LimitRequest.parse(await read_object(scope, receive))
    await _answer(send, admission, request, await _peek(admission, request))


async def refund(scope: Scope, receive: Receive, send: Send) -> None:
    """Refunds `cost` to every plan, at most what is spent there, and returns their state."""
    admission, request = services_of(scope).admission, LimitRequest.parse(await read_object(scope, receive))
    await _refresh_unknown(admission, request)
    await admission.limiter.refund(*request.charge)
    await _answer(send, admission, request, await _peek(admission, request))


async def reset(scope: Scope, receive: Receive, send: Send) -> None:
    """Resets the key under every plan, and returns their state."""
    admission, request = services_of(scope).admission, LimitResetRequest.parse(await read_object(scope, receive))
    await _refresh_unknown(admission, request)
    await admission.limiter.reset(request.key, request.plans)
    await _answer(send, admission, request, await _peek(admission, request))


async def _decide(admission: Limits, request: LimitResetRequest) -> Decision:
    try:
        return await admission.limiter.acquire(*request.charge)
    except NotFound:
        # Another process may just have created the plan.
        await admission.plans.refresh()
        return await admission.limiter.acquire(*request.charge)


async def _peek(admission: Limits, request: LimitResetRequest) -> Decision:
    await _refresh_unknown(admission, request)
    return await admission.limiter.peek(*request.charge)


async def _refresh_unknown(admission: Limits, request: LimitResetRequest) -> None:
    """Reads the plans again if one of them is unknown: another process may just have created it."""
    try:
        for plan in request.plans:
            admission.limiter.rule(plan, request.key)
    except NotFound:
        await admission.plans.refresh()


async def _answer(
    send: Send, admission: Limits, request: LimitResetRequest, decision: Decision, status: int = 200
) -> None:
    body, media_type = dump_decision(decision), JSON
    if status == 429:
        body, media_type = headers.problem(decision) | body, headers.PROBLEM_JSON.encode()
    try:
        rules = [rule for plan in request.plans for rule in admission.limiter.rules(plan, request.key)]
    except NotFound:
        rules = []  # the plan was deleted after the decision
    fields = headers.raw_fields(decision, rules)
    if status == 200:
        fields = [field for field in fields if field[0] != headers.RAW_RETRY_AFTER]
    await send_json(send, orjson.dumps(body), status, media_type, fields)
