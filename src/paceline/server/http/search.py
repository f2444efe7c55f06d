"""`/api/v1/search`: search by the prefix of an id, over all kinds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from urllib.parse import quote

from fastapi import Request, Response

from paceline.errors import PacelineError, StoreUnavailable
from paceline.server.http.parameters import api_router, query
from paceline.server.http.problem import documented, invalid
from paceline.server.http.raw_routes import json_response
from paceline.server.http.services import Services, services_of
from paceline.server.shapes.members import EVENT_ID
from paceline.server.shapes.search import Found, SearchResults
from paceline.slots.model import checked_id
from paceline_payments.model import PaymentFilter

MAX_PER_KIND = 5
"""The maximum of results per kind; its own list has more."""
TIMEOUT_SECONDS = 2.0
MAX_PLANS = 50
"""The maximum of plans under which a key is searched."""
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
    """Events, payments, feeds, messages and, for the scope `admin`, queue items whose ids begin with `q`, up to five of
    each; and the key `q` of limits, if it has spent something. After a timeout of two seconds, a store is listed in
    `unavailable`."""
    if "q" not in request.query_params:
        raise invalid("q", "is required")
    text = checked_id(request.query_params["q"], "q")
    services = services_of(request)
    kinds = [kind for kind in KINDS if kind != "item" or request.scope["state"]["is_admin"]]
    by_kind = await asyncio.gather(*(_within_time(KINDS[kind], services, text) for kind in kinds))
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


async def _payments(services: Services, text: str) -> list[Found]:
    records, _ = await services.payments.operations.page(PaymentFilter(prefix=text), limit=MAX_PER_KIND)
    return [
        Found.of(
            kind="payment",
            id=record.payment.payment_id,
            status=record.status.value,
            at=record.scheduled_time,
            exact=record.payment.payment_id == text,
            href=f"/api/v1/payments/{_escaped(record.payment.payment_id)}",
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


async def _messages(services: Services, text: str) -> list[Found]:
    messages = await services.notifications.messages.beginning(text, MAX_PER_KIND)
    return [
        Found.of(
            kind="message",
            id=message.message_id,
            status=message.status.value,
            at=message.accepted_at,
            exact=message.message_id == text,
            href=f"/api/messages/{_escaped(message.message_id)}",
        )
        for message in messages
    ]


async def _feeds(services: Services, text: str) -> list[Found]:
    feeds = await services.payments.feeds.page(MAX_PER_KIND, None, prefix=text)
    return [
        Found.of(
            kind="feed",
            id=feed.feed_id,
            status=feed.state.value,
            at=feed.created_at,
            exact=text in (feed.feed_id, feed.name),
            href=f"/api/v1/feeds/{_escaped(feed.feed_id)}",
        )
        for feed in feeds
    ]


async def _keys(services: Services, text: str) -> list[Found]:
    """The key itself: stores of limits can't list keys, so only the exact key is read."""
    plans = sorted(await services.admission.plans.all())[:MAX_PLANS]
    if not plans:
        return []
    decision = await services.admission.limiter.peek(text, plans)
    if decision.degraded:
        raise StoreUnavailable("the store of limits does not answer")
    spent = [state.plan for state in decision.states if state.remaining < state.limit]
    if not spent:
        return []
    return [Found.of(kind="key", id=text, plans=spent, exact=True, href="/api/v1/limits/peek")]


KINDS: dict[str, Search] = {
    "payment": _payments,
    "event": _events,
    "item": _items,
    "feed": _feeds,
    "message": _messages,
    "key": _keys,
}


def _escaped(part: str) -> str:
    return quote(part, safe="")
