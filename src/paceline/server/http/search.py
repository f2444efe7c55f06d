"""`/api/v1/search`: search by the prefix of an id, over all kinds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache, partial
from urllib.parse import quote

from fastapi import Request, Response

from paceline.errors import PacelineError, StoreUnavailable
from paceline.server.access.model import Scope
from paceline.server.apps import installed_apps, part
from paceline.server.http.parameters import api_router, query
from paceline.server.http.problem import documented, invalid
from paceline.server.http.raw_routes import json_response
from paceline.server.http.services import Services, services_of
from paceline.server.shapes.members import EVENT_ID
from paceline.server.shapes.search import Found, SearchResults
from paceline.slots.model import checked_id

MAX_PER_KIND = 5
"""The maximum of results per kind; its own list has more."""
TIMEOUT_SECONDS = 2.0
MAX_PLANS = 50
"""The maximum of plans under which a key is searched."""
OF_NAMES = ("event", "config", "queue", "item", "key")
"""The kinds that callers find who are bound to names; applications do not divide what they keep."""
ADMINISTERED = ("config", "queue", "item")
"""Kinds that need the scope `view`."""
QUERY = query("q", EVENT_ID | {"description": "An id, or its prefix; of a limit's key, all of it."})

router = api_router("/api/v1", "search")

Search = Callable[[Services, str], Awaitable[list[Found]]]


@router.get(
    "/search",
    summary="Search everything by id",
    response_model=SearchResults,
    responses=documented(400),
    openapi_extra={"parameters": [QUERY | {"required": True}]},
)
async def search(request: Request) -> Response:
    """Events, what the applications keep and, for the scope `view`, queue items whose ids begin with `q`, and configs
    and queues whose names hold it, up to five of each; and the key `q` of limits, if it has spent something. After a
    timeout of two seconds, a store is listed in `unavailable`."""
    if "q" not in request.query_params:
        raise invalid("q", "is required")
    text = checked_id(request.query_params["q"], "q")
    services = services_of(request)
    sees_all = Scope.VIEW in request.scope["state"]["scopes"]
    finders = {kind: find for kind, find in _kinds().items() if kind not in ADMINISTERED or sees_all}
    finders = {kind: find for kind, find in finders.items() if not services.names or kind in OF_NAMES}
    by_kind = await asyncio.gather(*(_within_time(find, services, text) for find in finders.values()))
    kinds = list(finders)
    results = [result for some in by_kind for result in some or ()]
    results.sort(key=lambda result: not result.exact)  # stable: else by kind, as listed
    unavailable = [kind for kind, some in zip(kinds, by_kind, strict=True) if some is None]
    return json_response(SearchResults(query=text, results=results, searched=kinds, unavailable=unavailable))


async def _within_time(search: Search, services: Services, text: str) -> list[Found] | None:
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await search(services, text)
    except (PacelineError, TimeoutError):
        return None


async def _events(services: Services, text: str) -> list[Found]:
    records = await services.slots.beginning(text, limit=MAX_PER_KIND)
    return [
        Found.of(
            kind="event",
            id=record.slot.event_id,
            status=record.status.value,
            at=record.slot.scheduled_ms,
            exact=record.slot.event_id == text,
            href=f"/api/v1/slots/{_escaped(record.slot.event_id)}",
        )
        for record in records
    ]


async def _items(services: Services, text: str) -> list[Found]:
    item_types = [config.item_type for config in await services.queue.configs()]
    pages = await asyncio.gather(
        *(services.queue.list(item_type, prefix=text, limit=MAX_PER_KIND) for item_type in item_types)
    )
    return [
        Found.of(
            kind="item",
            id=item.item_id,
            item_type=item.item_type,
            status=item.status.value,
            at=item.execute_at,
            exact=item.item_id == text,
            href=f"/admin/dispatch/{item.item_type}/items/{_escaped(item.item_id)}",
        )
        for page in pages
        for item in page
    ]


async def _configs(services: Services, text: str) -> list[Found]:
    return [
        Found.of(
            kind="config",
            id=config.version.name,
            exact=config.version.name == text,
            href=f"/admin/rate-limit/config?name={_escaped(config.version.name)}",
        )
        for config in await services.slots.search_configs(text, limit=MAX_PER_KIND)
    ]


async def _queues(services: Services, text: str) -> list[Found]:
    names = [config.item_type for config in await services.queue.configs()]
    found = [name for name in names if text.upper() in name][:MAX_PER_KIND]
    return [Found.of(kind="queue", id=name, exact=name == text, href=f"/admin/dispatch/{name}") for name in found]


async def _keys(services: Services, text: str) -> list[Found]:
    """The key itself: stores of limits can't list keys, so only the exact key is read."""
    plans = sorted(await services.admission.plans.all())[:MAX_PLANS]
    if not plans or not services.names.allow(text):
        return []
    decision = await services.admission.limiter.peek(text, plans)
    if decision.degraded:
        raise StoreUnavailable("the store of limits does not answer")
    spent = [state.plan for state in decision.states if state.remaining < state.limit]
    if not spent:
        return []
    return [Found.of(kind="key", id=text, plans=spent, exact=True, href="/api/v1/limits/peek")]


@cache
def _kinds() -> dict[str, Search]:
    """What each kind is found by: those of the applications first, people look for them most."""
    finders = {
        kind: partial(_found_by, app.name, place) for app in installed_apps() for kind, place in app.finders.items()
    }
    return {**finders, "event": _events, "config": _configs, "queue": _queues, "item": _items, "key": _keys}


async def _found_by(app: str, place: str, services: Services, text: str) -> list[Found]:
    found: list[Found] = await part(place)(services.app(app), text, MAX_PER_KIND)
    return found


def _escaped(text: str) -> str:
    return quote(text, safe="")
