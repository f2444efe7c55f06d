"""`/api/v1/remote` and `/admin/remote`: slots and the queue, for other programs (`SlotScheduler.open("https://…")`)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson
import structlog
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from paceline.dispatch.remote import API as QUEUE
from paceline.dispatch.remote import item_types_of
from paceline.errors import ConfigurationError, Conflict, InvalidInput, PacelineError, StoreError
from paceline.remote import MAX_CALLS, Need, RemoteApi
from paceline.server.access.model import Scope as AccessScope
from paceline.server.access.names import OutsideNames
from paceline.server.apps import installed_apps
from paceline.server.http import problem
from paceline.server.http.body import read_large_object
from paceline.server.http.parameters import json_body
from paceline.server.http.problem import documented, invalid
from paceline.server.http.raw_routes import add_raw_route, send_json
from paceline.server.http.services import services_of
from paceline.server.shapes.remote import RemoteCalls, RemoteResults
from paceline.slots.remote import API as SLOTS

APIS = {api.target: api for api in (SLOTS, QUEUE)}


def install(routes: list[BaseRoute]) -> None:
    """Adds a route for each permission that a call may need."""
    for need in Need:
        add_raw_route(
            routes,
            need.path,
            _route(need),
            methods=["POST"],
            tags=["remote"],
            summary=f"Call slots and the queue from another program: what needs the permission to {need.about}",
            operation_id=f"remoteCall{need.value.capitalize()}",
            response_model=RemoteResults,
            responses=documented(400, 413, 415),
            openapi_extra=json_body(RemoteCalls),
        )


def _route(need: Need) -> ASGIApp:
    async def call_remote(scope: Scope, receive: Receive, send: Send) -> None:
        """Executes calls of `paceline`'s own client, each by itself, and returns a result or an error for each."""
        api, calls = _calls_of(await read_large_object(scope, receive), need)
        results = await asyncio.gather(*(_result(scope, api, **call) for call in calls))
        await send_json(send, orjson.dumps({"results": results}))

    return call_remote


def _calls_of(body: Mapping[str, Any], need: Need) -> tuple[RemoteApi, list[dict[str, Any]]]:
    for member in body:
        if member not in ("target", "calls"):
            raise invalid(member, "is not a member of this body; use target and calls")
    api = APIS.get(str(body.get("target")))
    if api is None:
        raise invalid("target", f"must be one of {', '.join(APIS)}")
    calls = body.get("calls")
    if not isinstance(calls, list) or not 1 <= len(calls) <= MAX_CALLS:
        raise invalid("calls", f"must be a list of 1 to {MAX_CALLS} calls")
    for number, call in enumerate(calls):
        if not isinstance(call, dict) or set(call) != {"method", "arguments"}:
            raise invalid(f"calls[{number}]", "must have method and arguments, and nothing else")
        offered = sorted(name for name, method in api.methods.items() if method.need is need)
        if call["method"] not in offered:
            raise invalid(f"calls[{number}].method", f"must be one of {', '.join(offered)}")
        if not isinstance(call["arguments"], dict):
            raise invalid(f"calls[{number}].arguments", "must be an object")
    return api, calls


async def _result(scope: Scope, api: RemoteApi, method: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    services, state = services_of(scope), scope["state"]
    target: Any = services.slots if api is SLOTS else services.queue
    try:
        loaded = api.loaded(method, arguments)
        if api.takes(method, "actor"):
            loaded["actor"] = state["caller"]
        if api is QUEUE:
            _refuse_types_of_apps(loaded, is_admin=AccessScope.ADMIN in state["scopes"])
            for request in loaded.get("requests", ()):
                await services.queue.check_known(request.item_type)
        return {"ok": api.dump(await getattr(target, method)(**loaded))}
    except OutsideNames as error:
        return {"error": api.dump(ConfigurationError("token", str(error)))}
    except PacelineError as error:
        return {"error": api.dump(_shown(error, scope["path"]))}
    except (TypeError, AttributeError):
        # A value of another type than the method takes, which the library's own client may send untyped. The log tells
        # it from a fault of ours.
        structlog.get_logger().warning("a remote call failed", method=f"{api.target}.{method}", exc_info=True)
        return {"error": api.dump(InvalidInput("arguments", f"are not of the types that {method} takes"))}


def _refuse_types_of_apps(loaded: Mapping[str, Any], *, is_admin: bool) -> None:
    """An application's items are its own: it queues them itself, and shows them to those who may see them."""
    if is_admin:
        return
    taken = {item_type for app in installed_apps() for item_type in app.item_types}
    for item_type in item_types_of(loaded):
        if item_type in taken:
            raise InvalidInput("item_type", f"{item_type} is an application's; use its own routes")


def _shown(error: PacelineError, path: str) -> PacelineError:
    """The error as the caller sees it: a store's failure without its internals, which are logged."""
    if not isinstance(error, StoreError) or isinstance(error, Conflict):
        return error
    structlog.get_logger().error("store failed", path=path, error=repr(error))
    shown = problem.of(error).body["detail"]
    return type(error)(shown) if type(error).__init__ is PacelineError.__init__ else StoreError(shown)
