"""`/api/v1/feeds`: feeds as objects. A feed is received whole, checked, and then accepted chunk by chunk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime

from fastapi import Request, Response
from starlette.responses import StreamingResponse
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from paceline.errors import Conflict
from paceline.server.http.body import media_type
from paceline.server.http.logs import about
from paceline.server.http.parameters import WholeNumber, api_router, flag, path, query, text_of
from paceline.server.http.problem import Problem, documented, invalid, unsupported
from paceline.server.http.raw_routes import add_raw_route, json_response, send_json
from paceline.server.http.services import services_of
from paceline.server.shapes.members import BOOKED_NAME
from paceline_payments.feed import FeedFormat
from paceline_payments.feeds.accepting import SORTS, Feeds
from paceline_payments.feeds.model import Feed, FeedState, checked_control
from paceline_payments.feeds.status_report import status_report
from paceline_payments.four_eyes import SecondPersonRequired
from paceline_payments.parsing import COLUMNS
from paceline_payments.service.http.parts import payments_of, second_person_required
from paceline_payments.service.http.payments import CSV_FEED, FEED, body_blocks
from paceline_payments.service.http.payments import FORMATS as LINE_FORMATS
from paceline_payments.service.shapes.feeds import FEED_ID, CancelledFeed, FeedPage, FeedShown, RejectedRecord
from paceline_payments.submission import submitted

FORMATS = {**LINE_FORMATS, b"application/xml": FeedFormat.PAIN001, b"text/xml": FeedFormat.PAIN001}
ANSWER_WITHIN = 2.0
"""Seconds for which the response waits for the feed to be accepted, which is enough for a small one."""
PAGE = 1000
LIMIT = WholeNumber("limit", 1, 1000, default=100)
CONTROL_SUM = query(
    "controlSum",
    {"type": "string", "pattern": r"^[0-9]{1,20}(\.[0-9]{1,4})?$", "description": "The sum of all amounts."},
)
COUNT = query("count", {"type": "string", "pattern": "^[0-9]{1,9}$", "description": "The number of records."})
NAME = query("name", {"type": "string", "minLength": 1, "maxLength": 255, "description": "Your name for the feed."})
STATE = query("state", {"type": "string", "enum": list(FeedState), "description": "By default all."})
PREFIX = query("prefix", FEED_ID | {"description": "The prefix of their ids or names."})
SORT = query("sort", {"type": "string", "enum": list(SORTS), "description": "With -, in descending order."})
TOTAL = query("total", {"type": "boolean", "description": "Count how many match, up to 100,001."})
CURSOR = query("cursor", FEED_ID | {"description": "`next` of the page before."})
AS_FEED = query(
    "format",
    {"type": "string", "enum": ["ndjson", "feed"], "description": "`feed`: the records alone, to be sent again."},
)
XML = {"type": "string", "description": "ISO 20022 pain.001 (customer credit transfer initiation)."}
REPORT = {"type": "string", "description": "ISO 20022 pain.002 (customer payment status report)."}

router = api_router("/api/v1", "feeds")


def install(routes: list[BaseRoute]) -> None:
    """Adds the routes of this module."""
    add_raw_route(
        routes,
        "/api/v1/feeds",
        submit,
        methods=["POST"],
        tags=["feeds"],
        summary="Accept a feed of payments, as an object",
        status_code=202,
        response_model=FeedShown,
        responses=documented(400, 404, 415),
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {
                    "text/csv": {"schema": CSV_FEED},
                    "application/x-ndjson": {"schema": FEED},
                    "application/xml": {"schema": XML},
                },
            },
            "parameters": [CONTROL_SUM, COUNT, query("configName", BOOKED_NAME), NAME],
        },
    )
    routes += router.routes


async def submit(scope: Scope, receive: Receive, send: Send) -> None:
    """Receives the feed whole and checks it, then accepts its payments in the background.

    CSV, NDJSON (as `/api/v1/payments/bulk`) or ISO 20022 pain.001. If `controlSum` or `count` is given and wrong, or a
    pain.001 document contradicts its own control figures, nothing is accepted: 400. Idempotent: the same bytes sent
    twice are one feed. The response comes when the feed is done, or after two seconds with its status then. A feed that
    was cancelled stays so: nothing of it is accepted, and its `state` in the response is `CANCELLED`. Where four eyes
    are required, its `state` is `HELD`, and nothing of it is accepted before its release.
    """
    kind = FORMATS.get(media_type(scope))
    if kind is None:
        raise unsupported("text/csv, application/x-ndjson or application/xml")
    request = Request(scope)
    services, given = services_of(scope), request.query_params
    control = checked_control(given.get("count"), given.get("controlSum"))
    config_name, name = given.get("configName"), given.get("name")
    if config_name is not None:
        await services.slots.check_configs(config_name)
    if name is not None and not (0 < len(name) <= 255 and name.isprintable()):
        raise invalid("name", "must be a text of 1 to 255 printable characters")
    application = payments_of(scope)
    with submitted(scope["state"]["caller"]):
        feed_id = await application.receiver.receive(
            body_blocks(receive), kind, control=control, name=name, config_name=config_name
        )
    about(scope, item_id=feed_id)
    accepting = application.background(application.feeds.accept(feed_id))
    await asyncio.wait({accepting}, timeout=ANSWER_WITHIN)
    await send_json(send, _feed_shown(await application.feeds.show(feed_id)).dump_json(), 202)


@router.get(
    "/feeds",
    summary="List feeds",
    response_model=FeedPage,
    responses=documented(400),
    openapi_extra={"parameters": [STATE, PREFIX, SORT, TOTAL, LIMIT.document(), CURSOR]},
)
async def list_feeds(request: Request) -> Response:
    """Feeds, newest first; `next` of one page is the `cursor` of the next one in the same order."""
    limit, with_total = LIMIT.of(request), flag(request, "total")
    given, feeds = request.query_params, _feeds(request)
    selection = {"state": given.get("state"), "prefix": given.get("prefix")}
    page = await feeds.page(limit + 1, text_of(request, "cursor", FEED_ID), **selection, sort=given.get("sort"))
    cursor = page[limit - 1].feed_id if len(page) > limit else None
    shown = FeedPage(feeds=[_feed_shown(feed) for feed in page[:limit]], next=cursor)
    if with_total:
        shown.total = await feeds.count(**selection)
    return json_response(shown)


@router.get(
    "/feeds/{feedId}",
    summary="Show a feed",
    response_model=FeedShown,
    responses=documented(400, 404),
    openapi_extra={"parameters": [path("feedId", FEED_ID)]},
)
async def show(request: Request) -> Response:
    """The feed's status, its progress from 0 to 1, and its figures."""
    return json_response(_feed_shown(await _feeds(request).explain(request.path_params["feedId"])))


@router.get(
    "/feeds/{feedId}/rejects",
    summary="The rejected records",
    responses={
        200: {
            "content": {
                "application/x-ndjson": {"schema": RejectedRecord.model_json_schema()},
                "text/csv": {"schema": {"type": "string"}},
            }
        },
        **documented(400, 404),
    },
    openapi_extra={"parameters": [path("feedId", FEED_ID), AS_FEED]},
)
async def rejects(request: Request) -> Response:
    """One JSON object per record, with its line, the reason and the original record; or, with `format=feed`, the
    records alone: correct the file and send it as a new feed. Records of a pain.001 document are NDJSON.
    """
    form = request.query_params.get("format", "ndjson")
    if form not in ("ndjson", "feed"):
        raise invalid("format", "must be ndjson or feed")
    feeds = _feeds(request)
    feed = await feeds.show(request.path_params["feedId"])
    if form == "ndjson":
        return StreamingResponse(_documents(feeds, feed), media_type="application/x-ndjson")
    as_json = feed.format != FeedFormat.CSV
    media = "application/x-ndjson" if as_json else "text/csv"
    name = f'attachment; filename="{feed.feed_id}-rejects.{"jsonl" if as_json else "csv"}"'
    return StreamingResponse(_records(feeds, feed, as_json), media_type=media, headers={"Content-Disposition": name})


@router.get(
    "/feeds/{feedId}/status-report",
    summary="The status report of a feed",
    responses={200: {"content": {"application/xml": {"schema": REPORT}}}, **documented(400, 404)},
    openapi_extra={"parameters": [path("feedId", FEED_ID)]},
)
async def report(request: Request) -> Response:
    """ISO 20022 pain.002: the status of the file and of each transaction, with a code for each rejection. Payments that
    another feed brought before are counted, not listed.
    """
    payments = payments_of(request)
    feed = await payments.feeds.show(request.path_params["feedId"])
    blocks = status_report(feed, payments.feeds, payments.store, datetime.now(UTC))
    return StreamingResponse(blocks, media_type="application/xml")


@router.post(
    "/feeds/{feedId}/release",
    summary="Release a feed that is held",
    response_model=FeedShown,
    responses=documented(400, 403, 404, 409),
    openapi_extra={"parameters": [path("feedId", FEED_ID)]},
)
async def release(request: Request) -> Response:
    """Where four eyes are required: the second person lets the payments of the feed be accepted. 403 for the caller who
    submitted it, 409 if it does not wait for release. Idempotent. Recorded in `/admin/audit`.
    """
    payments, feed_id = payments_of(request), request.path_params["feedId"]
    try:
        feed = await payments.feeds.release(feed_id, request.scope["state"]["caller"])
    except SecondPersonRequired as error:
        raise second_person_required(error) from None
    except Conflict as error:
        raise Problem(409, "nothing-to-release", "Nothing To Release", str(error)) from None
    payments.background(payments.feeds.accept(feed_id))
    return json_response(_feed_shown(feed))


@router.delete(
    "/feeds/{feedId}",
    summary="Cancel a feed",
    response_model=CancelledFeed,
    responses=documented(400, 404, 409),
    openapi_extra={"parameters": [path("feedId", FEED_ID)]},
)
async def cancel(request: Request) -> Response:
    """Cancels records that wait, and payments whose execution has not begun. Their slots are free again. Payments that
    are in flight or finished are unchanged and are counted in `notCancelled`.
    """
    try:
        with submitted(request.scope["state"]["caller"]):
            feed, cancelled, not_cancelled = await _feeds(request).cancel(request.path_params["feedId"])
    except Conflict as error:
        raise Problem(409, "feed-not-cancelled", "Feed Not Cancelled", str(error)) from None
    return json_response(CancelledFeed.of(feed, cancelled=cancelled, not_cancelled=not_cancelled))


def _feeds(request: Request) -> Feeds:
    return payments_of(request).feeds


def _feed_shown(feed: Feed) -> FeedShown:
    return FeedShown.of(feed)


async def _documents(feeds: Feeds, feed: Feed) -> AsyncIterator[bytes]:
    after = 0
    while page := await feeds.rejects(feed.feed_id, after, PAGE):
        after = page[-1].line
        yield b"".join(RejectedRecord.of(reject).dump_json() + b"\n" for reject in page)


async def _records(feeds: Feeds, feed: Feed, as_json: bool) -> AsyncIterator[bytes]:
    if not as_json:
        yield feed.document.get("columns", ",".join(COLUMNS)).encode() + b"\n"
    after = 0
    while page := await feeds.rejects(feed.feed_id, after, PAGE):
        after = page[-1].line
        yield b"".join(reject.raw.encode() + b"\n" for reject in page)
