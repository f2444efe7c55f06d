"""`/api/v1/limits/store`: the service's limit store, for limiters of other programs (`Limiter("https://…")`)."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from paceline.errors import Conflict, StoreUnavailable
from paceline.limits.plan_documents import document_of
from paceline.limits.ports import AsyncLimitStore
from paceline.limits.wire import Call, calls_of, dump_decision
from paceline.server.access.model import Scope as AccessScope
from paceline.server.bound.limits import check_charges
from paceline.server.http.auth import check_may
from paceline.server.http.body import read_object
from paceline.server.http.parameters import json_body
from paceline.server.http.problem import documented
from paceline.server.http.raw_routes import add_raw_route, send_json
from paceline.server.http.services import services_of
from paceline.server.shapes.limits import StoreCalls, StoreResults
from paceline.server.wiring.limits import Limits


def install(routes: list[BaseRoute]) -> None:
    """Adds the route of this module."""
    add_raw_route(
        routes,
        "/api/v1/limits/store",
        call_store,
        methods=["POST"],
        tags=["limits"],
        summary="Call the store, for limiters of other programs",
        response_model=StoreResults,
        responses=documented(400, 413, 415),
        openapi_extra=json_body(StoreCalls),
    )


async def call_store(scope: Scope, receive: Receive, send: Send) -> None:
    """Executes calls of `paceline`'s own client, each by itself and in their order, and returns a result or an error
    for each. The rules are the caller's; the client reads the service's plans by the call `plans`.

    `nowUs`, a time to decide at, is for tests and needs the scope `admin`.
    """
    calls = calls_of(await read_object(scope, receive))
    if any(call.now_us is not None for call in calls):
        check_may(scope, AccessScope.ADMIN, "nowUs")
    services = services_of(scope)
    if services.names:
        check_charges(services.names, (charge for call in calls for chain in call.chains for charge in chain))
    admission = services.admission
    results = await asyncio.gather(*(_result(admission, call) for call in calls))
    await send_json(send, orjson.dumps({"results": results}))


async def _result(admission: Limits, call: Call) -> dict[str, Any]:
    try:
        return {"ok": await _execute(admission, call)}
    except Conflict as error:
        return {"error": "conflict", "detail": str(error)}
    except StoreUnavailable as error:
        return {"error": "unavailable", "detail": str(error)}


async def _execute(admission: Limits, call: Call) -> Any:
    store: AsyncLimitStore = admission.limiter.store
    match call.op:
        case "plans":
            return {name: document_of(plan) for name, plan in (await admission.plans.all()).items()}
        case "decide" | "peek":
            spend = call.op == "decide"
            return dump_decision(await store.decide(call.chain, spend=spend, hold=call.hold, now_us=call.now_us))
        case "decide_many":
            return [dump_decision(one) for one in await store.decide_many(call.chains, now_us=call.now_us)]
        case "settle":
            return await store.settle(call.id, call.chain, call.actual, now_us=call.now_us)
        case "renew":
            return await store.renew(call.id, call.chain, call.ttl_us, now_us=call.now_us)
        case "refund":
            await store.refund(call.chain, now_us=call.now_us)
        case "reset":
            await store.reset(call.chain)
    return None
