"""`/admin/dispatch`: the queues, their settings and their kill switches."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, TypeVar

from fastapi import Request, Response

from paceline.dispatch.changes import CHANGES
from paceline.dispatch.search import LONGEST_PAGE, SORTS, FilterOptions, ItemOrder
from paceline.dispatch.start_limits import starts_of
from paceline.dispatch.status import IN_FLIGHT, Status
from paceline.durations import parse_instant
from paceline.errors import ConfigurationError, Conflict
from paceline.server.access.model import Scope
from paceline.server.http.auth import check_may
from paceline.server.http.body import read_large_object, read_object
from paceline.server.http.parameters import WholeNumber, api_router, flag, json_body, path, query
from paceline.server.http.problem import Problem, documented, invalid
from paceline.server.http.raw_routes import json_response
from paceline.server.http.services import services_of
from paceline.server.shapes import dispatch, item_changes
from paceline.server.shapes.dispatch import (
    AuditShown,
    DispatchChanges,
    DispatchConfigs,
    DispatchConfigShown,
    ErrorGroupsShown,
    ItemDetailShown,
    ItemsShown,
    LanesShown,
    QueueStatsShown,
    Redirected,
)
from paceline.server.shapes.item_changes import Previewed, Redirection, Rescheduled, Resolved, Selection
from paceline.server.shapes.members import EVENT_ID, INSTANT
from paceline.server.shapes.shape import Shape

Route = TypeVar("Route", bound=Callable[[Request], Awaitable[Response]])

router = api_router("/admin/dispatch", "dispatch")

ITEM_TYPE = path("itemType", dispatch.ITEM_TYPE)
STATUS = query("status", {"type": "string", "enum": list(Status), "description": "By default all."})
PREFIX = query("prefix", EVENT_ID | {"description": "What their ids begin with."})
ERROR = query("error", item_changes.ERROR)
ERROR_GROUP = query("errorGroup", item_changes.ERROR_GROUP)
LANE = query("lane", dispatch.LANE | {"description": "The lane they are in."})
FROM = query("from", INSTANT | {"description": "They run at this time or later, …"})
TO = query("to", INSTANT | {"description": "… and before this one."})
FILTER = (STATUS, PREFIX, LANE, ERROR, ERROR_GROUP, FROM, TO)
SORT = query("sort", {"type": "string", "enum": SORTS, "description": "With -, in descending order. By default by id."})
TOTAL = query("total", {"type": "boolean", "description": "Count how many match, up to 100,001."})
STATS = query("stats", {"type": "boolean", "description": "Also return the depth of each queue."})
CHANGE = query("change", {"type": "string", "enum": list(CHANGES)}) | {"required": True}
NEW_TIME = query("executeAt", INSTANT | {"description": "With `reschedule`: the new time, if that is to change."})
CURSOR = query("cursor", EVENT_ID | {"maxLength": 280, "description": "`next` of the page before."})
LIMIT = WholeNumber("limit", 1, LONGEST_PAGE, default=100)
AFTER = query("after", EVENT_ID | {"description": "The last id of the previous page."})
BEFORE = WholeNumber("before", 1, 2**63 - 1, description="The last auditId of the previous page.")
OF_ITEM = query("itemId", EVENT_ID | {"description": "By default all items."})


def _shows(address: str, summary: str, shape: type[Shape], *parameters: dict[str, Any]) -> Callable[[Route], Route]:
    """A route that reads from an item type."""
    return router.get(
        address,
        summary=summary,
        response_model=shape,
        responses=documented(400, 404),
        openapi_extra={"parameters": [ITEM_TYPE, *parameters]},
    )


def _changes(
    method: str, address: str, summary: str, shape: type[Shape], body: type[Shape]
) -> Callable[[Route], Route]:
    """A route that changes an item type by its body."""
    return router.api_route(
        address,
        methods=[method],
        summary=summary,
        response_model=shape,
        responses=documented(400, 404, 409, 413, 415),
        openapi_extra={"parameters": [ITEM_TYPE], **json_body(body)},
    )


@router.get(
    "",
    summary="List the item types",
    response_model=DispatchConfigs,
    responses=documented(400),
    openapi_extra={"parameters": [STATS]},
)
async def types(request: Request) -> Response:
    """Every item type with its settings."""
    queue, with_stats = services_of(request).queue, flag(request, "stats")
    shown = DispatchConfigs.of(item_types=await queue.configs())
    if with_stats:
        shown.stats = [QueueStatsShown.of_stats(await queue.stats(config.item_type)) for config in shown.item_types]
    return json_response(shown)


@_shows("/{itemType}", "Show an item type's settings", DispatchConfigShown)
async def show(request: Request) -> Response:
    """The current settings."""
    return json_response(DispatchConfigShown.of(await services_of(request).queue.config(_item_type(request))))


@_changes("PATCH", "/{itemType}", "Change an item type's settings", DispatchConfigShown, DispatchChanges)
async def change(request: Request) -> Response:
    """Changes the given settings, from the next cycle on any node; `enabled: false` is the kill switch."""
    body = DispatchChanges.parse(await read_object(request.scope, request.receive))
    changes = body.model_dump(exclude_unset=True, by_alias=False)
    if changes.keys() - {"enabled"}:
        check_may(request.scope, Scope.ADMIN, "a setting other than enabled")
    queue = services_of(request).queue
    before = await queue.config(_item_type(request))
    plan = before.changed(changes).admission_plan
    if plan != before.admission_plan:
        await _check_plan(request, plan)
    return json_response(DispatchConfigShown.of(await queue.configure(_item_type(request), **changes)))


async def _check_plan(request: Request, plan: str | None) -> None:
    """Raises 400 for a plan that does not exist, or limits no rate: nothing would begin any more."""
    if plan is None:
        return
    plans = await services_of(request).admission.plans.all()
    if plan not in plans:
        raise invalid("admissionPlan", f"there is no plan {plan!r}; correct it, or create the plan first")
    try:
        starts_of(plans[plan], _item_type(request))
    except ConfigurationError as error:
        raise invalid("admissionPlan", error.problem) from None


@_shows("/{itemType}/stats", "Show the depth of a queue", QueueStatsShown)
async def stats(request: Request) -> Response:
    """Items by status, and how late the oldest due one is."""
    return json_response(QueueStatsShown.of_stats(await services_of(request).queue.stats(_item_type(request))))


@_shows(
    "/{itemType}/items",
    "List and search items",
    ItemsShown,
    *(*FILTER, SORT, TOTAL, LIMIT.document(), CURSOR, AFTER),
)
async def items(request: Request) -> Response:
    """A page of the items that match, in order of their ids or by `sort`. `next` is the cursor of the next page in this
    order, if there is one."""
    parameters, limit = request.query_params, LIMIT.of(request)
    item_type, queue, matching = _item_type(request), services_of(request).queue, _filter(request)
    with_total = flag(request, "total")
    sort = parameters.get("sort")
    page = await queue.list(
        item_type, **matching, limit=limit, after=parameters.get("cursor", parameters.get("after")), sort=sort
    )
    progress = await queue.progress_of(item_type, [item.item_id for item in page if item.status in IN_FLIGHT])
    following = ItemOrder.of(sort).cursor(page[-1]) if len(page) == limit else None
    total = await queue.count(item_type, **matching) if with_total else None
    return json_response(ItemsShown.of_page(page, progress, following, total))


@_shows("/{itemType}/preview", "Preview a change", Previewed, CHANGE, NEW_TIME, *FILTER)
async def preview(request: Request) -> Response:
    """The number of items that match, and of those that `change` would change. At least one filter is required; nothing
    is changed. Items with a booked slot are not rescheduled to another time, but to another priority or lane."""
    change, at = request.query_params.get("change", ""), request.query_params.get("executeAt")
    previewed = await services_of(request).queue.preview(_item_type(request), change, execute_at=at, **_filter(request))
    return json_response(Previewed.of(previewed))


@_shows("/{itemType}/errors", "Group dead letters by their errors", ErrorGroupsShown)
async def errors(request: Request) -> Response:
    """The largest group first. `*` in an error is the part that differs; the list of items takes it as `error`."""
    return json_response(ErrorGroupsShown.of(errors=await services_of(request).queue.error_groups(_item_type(request))))


@_shows("/{itemType}/lanes", "Show the depth of each lane", LanesShown)
async def lanes(request: Request) -> Response:
    """The number of items per lane that wait, run or are dead letters; the longest lane first, up to 1000 lanes."""
    depths = await services_of(request).queue.lanes(_item_type(request))
    return json_response(LanesShown.of(lanes=depths[:LONGEST_PAGE], total=len(depths)))


@_shows("/{itemType}/items/{itemId:path}", "Show one item", ItemDetailShown, path("itemId", EVENT_ID))
async def item(request: Request) -> Response:
    """The item with its context and its audit, oldest entry first."""
    detail = await services_of(request).queue.show(_item_type(request), request.path_params["itemId"])
    return json_response(ItemDetailShown.of_detail(detail))


@_shows("/{itemType}/audit", "Show the audit", AuditShown, OF_ITEM, LIMIT.document(), BEFORE.document())
async def audit(request: Request) -> Response:
    """Audit entries, newest first."""
    entries = await services_of(request).queue.audit(
        _item_type(request),
        item_id=request.query_params.get("itemId"),
        limit=LIMIT.of(request),
        before=BEFORE.find(request),
    )
    return json_response(AuditShown.of(entries=entries))


@_changes("POST", "/{itemType}/requeue", "Make dead letters ready again", Redirected, Redirection)
async def requeue(request: Request) -> Response:
    """Resets retries and error, and keeps time, context and slot. All of the given ids, or none."""
    return await _redirect(request, Redirection, services_of(request).queue.requeue)


@_changes("POST", "/{itemType}/discard", "Cancel items", Redirected, Redirection)
async def discard(request: Request) -> Response:
    """Cancels items that are READY or dead letters, and deletes their contexts. All of the given ids, or none."""
    return await _redirect(request, Redirection, services_of(request).queue.discard)


@_changes("POST", "/{itemType}/resolve", "Say what became of unknown items", Redirected, Resolved)
async def resolve(request: Request) -> Response:
    """Items with an attempt in doubt are COMPLETED (`done`), dead letters with the reason (`refused`), or READY
    (`again`). All of the given ids, or none."""
    body = Resolved.parse(await read_large_object(request.scope, request.receive))
    queue, reason = services_of(request).queue, body.chosen_reason()
    with _explain_conflict():
        count = await queue.resolve(_item_type(request), body.ids, body.outcome, reason=reason)
        return json_response(Redirected(count=count))


@_changes("POST", "/{itemType}/cancel", "Cancel items, also running ones", Redirected, Selection)
async def cancel(request: Request) -> Response:
    """Items that wait, run or are dead letters are CANCELLED at once; executions are cancelled within a second."""
    return await _redirect(request, Selection, services_of(request).queue.cancel)


@_changes("POST", "/{itemType}/reschedule", "Give waiting items another time", Redirected, Rescheduled)
async def reschedule(request: Request) -> Response:
    """Gives READY items another time, priority or lane. All of the given ids, or none; or all that match."""
    body = Rescheduled.parse(await read_large_object(request.scope, request.receive))
    ids, matching = body.chosen()
    change = body.change()
    with _explain_conflict():
        count = await services_of(request).queue.reschedule(_item_type(request), ids, **change, **matching)
        return json_response(Redirected(count=count))


async def _redirect(request: Request, shape: type[Selection], change: Callable[..., Awaitable[int]]) -> Response:
    """Changes the items in the body, and returns their number."""
    ids, matching = shape.parse(await read_large_object(request.scope, request.receive)).chosen()
    with _explain_conflict():
        return json_response(Redirected(count=await change(_item_type(request), ids, **matching)))


@contextmanager
def _explain_conflict() -> Iterator[None]:
    """Gives a `Conflict` of the items its own message; one of the database keeps the general message."""
    try:
        yield
    except Conflict as error:
        if error.__cause__ is not None:
            raise
        raise Problem(409, "conflict", "Conflict", str(error)) from None


def _filter(request: Request) -> FilterOptions:
    given = request.query_params
    return {
        "status": given.get("status"),
        "prefix": given.get("prefix"),
        "lane": given.get("lane"),
        "error": given.get("error"),
        "error_group": given.get("errorGroup"),
        "since": _instant(request, "from"),
        "until": _instant(request, "to"),
    }


def _instant(request: Request, name: str) -> datetime | None:
    text = request.query_params.get(name)
    return None if text is None else parse_instant(text, name)


def _item_type(request: Request) -> str:
    name: str = request.path_params["itemType"]
    return name
