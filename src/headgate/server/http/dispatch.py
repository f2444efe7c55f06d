"""`/admin/dispatch`: the queues, their settings and their kill switches."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from headgate.dispatch.queue import LONGEST_PAGE
from headgate.dispatch.status import Status
from headgate.errors import Conflict
from headgate.server.field_names import typed_as
from headgate.server.http import schemas
from headgate.server.http.body import only, read_object
from headgate.server.http.problem import Problem, documented, encoded, invalid
from headgate.server.http.services import services_of
from headgate.server.shapes import members

Route = TypeVar("Route", bound=Callable[[Request], Awaitable[Response]])

DEFAULT_PAGE = 100
MAX_IDS = 10_000

router = APIRouter(prefix="/admin/dispatch", tags=["dispatch"])

ITEM_TYPE: dict[str, Any] = {
    "name": "itemType",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": "^[A-Za-z][A-Za-z0-9_-]{0,63}$", "example": "PAYMENT"},
}
ITEM_ID: dict[str, Any] = {"name": "itemId", "in": "path", "required": True, "schema": members.EVENT_ID}
STATUS = schemas.query("status", {"type": "string", "enum": list(Status), "description": "Left out, all."})
LIMIT = schemas.query("limit", {"type": "integer", "minimum": 1, "maximum": LONGEST_PAGE, "default": DEFAULT_PAGE})
AFTER = schemas.query("after", members.EVENT_ID | {"description": "The last id of the page before."})
BEFORE = schemas.query(
    "before",
    {"type": "integer", "minimum": 1, "maximum": 2**63 - 1, "description": "The last auditId of the page before."},
)
OF_ITEM = schemas.query("itemId", members.EVENT_ID | {"description": "Left out, all items."})

_MINUTES = {"type": "number", "minimum": 0, "maximum": 10_080}
_NAME = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": r"^[\p{L}\p{M}\p{N}\p{P}\p{S} ]+$"}
CHANGES: dict[str, Any] = {
    "title": "DispatchChanges",
    "type": "object",
    "additionalProperties": False,
    "description": "What is left out stays as it is. Effective from the next cycle.",
    "properties": {
        "enabled": {"type": "boolean", "description": "The kill switch."},
        "batchSize": {"type": "integer", "minimum": 1, "maximum": 10_000},
        "dispatchIntervalSecs": {"type": "number", "minimum": 0.01, "maximum": 86_400},
        "jitterWindowMs": {"type": "integer", "minimum": 0, "maximum": 3_600_000},
        "preStartBufferMins": _MINUTES,
        "maxDispatchRetries": {"type": "integer", "minimum": 0, "maximum": 1000},
        "staleClaimThresholdMins": _MINUTES | {"minimum": 0.005},
        "maxStaleRecoveryPerCycle": {"type": "integer", "minimum": 1, "maximum": 10_000},
        "execWorkflowType": _NAME,
        "execTaskQueue": _NAME,
        "admissionPlan": _NAME | {"type": ["string", "null"]},
        "retryBackoffSecs": {"type": "number", "minimum": 0, "maximum": 86_400},
    },
}
CHOICE: dict[str, Any] = {
    "title": "Items",
    "type": "object",
    "additionalProperties": False,
    "description": "Which items: by their ids, all or none; or all dead letters.",
    "oneOf": [{"required": ["ids"]}, {"required": ["status"]}],
    "properties": {
        "ids": {"type": "array", "minItems": 1, "maxItems": MAX_IDS, "items": members.EVENT_ID},
        "status": {"enum": ["DEAD_LETTER"]},
    },
}


def _shows(path: str, summary: str, model: type[BaseModel], *parameters: Mapping[str, Any]) -> Callable[[Route], Route]:
    """A route that shows something of an item type."""
    return router.get(
        path,
        summary=summary,
        response_model=model,
        responses=documented(400, 404),
        openapi_extra={"parameters": [ITEM_TYPE, *parameters]},
    )


def _changes(
    method: str, path: str, summary: str, model: type[BaseModel], body: dict[str, Any]
) -> Callable[[Route], Route]:
    """A route that changes something of an item type, as its body says."""
    return router.api_route(
        path,
        methods=[method],
        summary=summary,
        response_model=model,
        responses=documented(400, 404, 409, 413, 415),
        openapi_extra={"parameters": [ITEM_TYPE], **schemas.json_body(body)},
    )


@router.get("", summary="List the item types", response_model=schemas.DispatchConfigs)
async def types(request: Request) -> Response:
    """Every item type with its settings."""
    configs = await services_of(request).queue.configs()
    return _json({"itemTypes": [config.to_json() for config in configs]})


@_shows("/{itemType}", "Show an item type's settings", schemas.DispatchConfigShown)
async def show(request: Request) -> Response:
    """The settings as they are now."""
    with _wire_names():
        config = await services_of(request).queue.config(_item_type(request))
    return _json(config.to_json())


@_changes("PATCH", "/{itemType}", "Change an item type's settings", schemas.DispatchConfigShown, CHANGES)
async def change(request: Request) -> Response:
    """Changes what is given, from the next cycle on any node; `enabled: false` is the kill switch."""
    changes = await read_object(request.scope, request.receive)
    only(changes, CHANGES["properties"])
    queue = services_of(request).queue
    with _wire_names():
        before = await queue.config(_item_type(request))
        plan = before.changed(changes).admission_plan
        if plan != before.admission_plan:
            await _check_plan(request, plan)
        config = await queue.configure(_item_type(request), **changes)
    return _json(config.to_json())


async def _check_plan(request: Request, plan: str | None) -> None:
    """With a plan that does not exist nothing would begin any more."""
    if plan is not None and plan not in await services_of(request).admission.plans.all():
        raise invalid("admissionPlan", f"there is no plan {plan!r}; correct it, or create the plan first")


@_shows("/{itemType}/stats", "Show how deep a queue is", schemas.QueueStatsShown)
async def stats(request: Request) -> Response:
    """Items by status, and how late the oldest due one is."""
    with _wire_names():
        found = await services_of(request).queue.stats(_item_type(request))
    return _json(found.to_json())


@_shows("/{itemType}/items", "List items", schemas.ItemsShown, STATUS, LIMIT, AFTER)
async def items(request: Request) -> Response:
    """A page of items in order of their ids."""
    query = request.query_params
    with _wire_names():
        found = await services_of(request).queue.list(
            _item_type(request), query.get("status"), limit=_limit(request), after=query.get("after")
        )
    return _json({"items": [item.to_json() for item in found]})


@_shows("/{itemType}/items/{itemId:path}", "Show one item", schemas.ItemDetailShown, ITEM_ID)
async def item(request: Request) -> Response:
    """The item with its context and its audit, oldest entry first."""
    with _wire_names():
        found = await services_of(request).queue.show(_item_type(request), request.path_params["itemId"])
    return _json(found.to_json())


@_shows("/{itemType}/audit", "Show what happened", schemas.AuditShown, OF_ITEM, LIMIT, BEFORE)
async def audit(request: Request) -> Response:
    """Audit entries, newest first."""
    query = request.query_params
    with _wire_names():
        found = await services_of(request).queue.audit(
            _item_type(request),
            item_id=query.get("itemId"),
            limit=_limit(request),
            before=_number(request, "before", 2**63 - 1),
        )
    return _json({"entries": [entry.to_json() for entry in found]})


@_changes("POST", "/{itemType}/requeue", "Make dead letters ready again", schemas.Redirected, CHOICE)
async def requeue(request: Request) -> Response:
    """As new: with their time, context and slot, without retries and error. All of the given ids, or none."""
    ids = await _ids(request)
    with _wire_names(), _explain_conflict():
        return _json({"count": await services_of(request).queue.requeue(_item_type(request), ids)})


@_changes("POST", "/{itemType}/discard", "Cancel items", schemas.Redirected, CHOICE)
async def discard(request: Request) -> Response:
    """Cancels items that are READY or dead letters, and forgets their contexts. All of the given ids, or none."""
    ids = await _ids(request)
    with _wire_names(), _explain_conflict():
        return _json({"count": await services_of(request).queue.discard(_item_type(request), ids)})


async def _ids(request: Request) -> list[str] | None:
    value = await read_object(request.scope, request.receive)
    only(value, CHOICE["properties"])
    if ("ids" in value) == ("status" in value):
        raise invalid("ids", 'is required, or "status": "DEAD_LETTER" instead; give one of the two')
    if "status" in value:
        if value["status"] != Status.DEAD_LETTER:
            raise invalid("status", "must be DEAD_LETTER; name other items by their ids")
        return None
    ids = value["ids"]
    if not isinstance(ids, list) or not 1 <= len(ids) <= MAX_IDS:
        raise invalid("ids", f"must be a list of 1 to {MAX_IDS} item ids")
    return ids


@contextmanager
def _wire_names() -> Iterator[None]:
    with typed_as(item_type="itemType", item_id="itemId"):
        yield


@contextmanager
def _explain_conflict() -> Iterator[None]:
    """A `Conflict` that is about the items themselves says so; one of the database's keeps its general words."""
    try:
        yield
    except Conflict as error:
        if error.__cause__ is not None:
            raise
        raise Problem(409, "conflict", "Conflict", str(error)) from None


def _item_type(request: Request) -> str:
    name: str = request.path_params["itemType"]
    return name


def _limit(request: Request) -> int:
    return _number(request, "limit", LONGEST_PAGE) or DEFAULT_PAGE


def _number(request: Request, name: str, maximum: int) -> int | None:
    given = request.query_params.get(name)
    if given is None:
        return None
    if not given.isascii() or not given.isdigit() or len(given) > 19 or not 1 <= int(given) <= maximum:
        raise invalid(name, f"must be a whole number from 1 to {maximum}")
    return int(given)


def _json(value: Any) -> Response:
    return Response(encoded(value), media_type="application/json")
