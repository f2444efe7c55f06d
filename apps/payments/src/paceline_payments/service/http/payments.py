"""`/api/v1/payments`: submits payments, one or a feed, and shows, retries and cancels them."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import Request, Response
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from paceline.durations import parse_instant
from paceline.errors import Conflict
from paceline.server.http.body import media_type, object_of, read_object_text
from paceline.server.http.logs import about
from paceline.server.http.parameters import WholeNumber, api_router, flag, json_body, path, query
from paceline.server.http.problem import Problem, documented, invalid, unsupported
from paceline.server.http.raw_routes import add_raw_route, json_response, send_json
from paceline.server.http.services import services_of
from paceline.server.shapes import members
from paceline.server.shapes.members import BOOKED_NAME
from paceline.slots.model import checked_id
from paceline_payments.feed import FeedFormat, Rejection, Tally, initiate_feed
from paceline_payments.four_eyes import ReleaseRequired, SecondPersonRequired
from paceline_payments.model import (
    IntakeResult,
    Payment,
    PaymentExists,
    PaymentFilter,
    PaymentStatus,
    checked_status,
)
from paceline_payments.operations import LONGEST_PAGE, SORTS
from paceline_payments.parsing import COLUMNS, payment_of_json
from paceline_payments.ports import DownstreamBusy
from paceline_payments.service.http.parts import payments_of, release_required, second_person_required
from paceline_payments.service.shapes.payments import (
    PAYMENT_ID,
    AcceptedPayment,
    BulkResult,
    HistoryEvent,
    PaymentHistory,
    PaymentPage,
    PaymentRequest,
    PaymentShown,
    PaymentView,
    RejectedLine,
)
from paceline_payments.service.wiring.payments import Payments
from paceline_payments.strict_json import RepeatedMember, strict_json
from paceline_payments.submission import submitted

FORMATS = {
    b"text/csv": FeedFormat.CSV,
    b"application/x-ndjson": FeedFormat.JSONL,
    b"application/ndjson": FeedFormat.JSONL,
    b"application/jsonl": FeedFormat.JSONL,
}
IN_MEMORY = 1024 * 1024
"""The bytes of rejections that are kept in memory before they go to disk."""
PIECE = 64 * 1024

FEED = {"type": "string", "description": "One PaymentRequest per line."}
CSV_FEED = {
    "type": "string",
    "pattern": f"^{','.join(COLUMNS)}(\\r?\\n|$)",
    "description": "One payment per line; the first line names the columns.",
    "example": ",".join(COLUMNS),
}

STATUS = query("status", {"type": "string", "enum": list(PaymentStatus), "description": "By default all."})
FEED_ID = query("feed", members.EVENT_ID | {"description": "The id of their feed."})
FROM = query("from", members.INSTANT | {"description": "Scheduled at or after this time."})
TO = query("to", members.INSTANT | {"description": "Scheduled before this time."})
PREFIX = query("prefix", members.EVENT_ID | {"description": "What their ids begin with."})
SORT = query("sort", {"type": "string", "enum": list(SORTS), "description": "With -, in descending order."})
TOTAL = query("total", {"type": "boolean", "description": "Count how many match, up to 100,001."})
CURSOR = query("cursor", members.EVENT_ID | {"description": "`next` of the page before."})
LIMIT = WholeNumber("limit", 1, LONGEST_PAGE, default=100)

router = api_router("/api/v1", "payments")


def install(routes: list[BaseRoute]) -> None:
    """Adds the routes of this module."""
    add_raw_route(
        routes,
        "/api/v1/payments",
        submit,
        methods=["POST"],
        tags=["payments"],
        summary="Accept a payment",
        status_code=202,
        response_model=AcceptedPayment,
        responses=documented(400, 403, 404, 409, 413, 415),
        openapi_extra=json_body(PaymentRequest),
    )
    add_raw_route(
        routes,
        "/api/v1/payments/bulk",
        submit_feed,
        methods=["POST"],
        tags=["payments"],
        summary="Accept a feed of payments",
        response_model=BulkResult,
        responses=documented(400, 403, 404, 415),
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {"text/csv": {"schema": CSV_FEED}, "application/x-ndjson": {"schema": FEED}},
            },
            "parameters": [query("configName", BOOKED_NAME)],
        },
    )
    routes += router.routes


async def submit(scope: Scope, receive: Receive, send: Send) -> None:
    """Checks the payment, books its slot and queues it; it is made at `scheduledTime`.

    Idempotent: the same payment again gets the same response; another payment of the same `paymentId` is a 409. 503 if
    no slot is free before the config's horizon. 403 where four eyes are required: there payments come as feeds.
    """
    raw = await read_object_text(scope, receive)
    body = object_of(raw)
    try:
        strict_json(raw)
    except RepeatedMember as error:
        raise invalid(error.name, "occurs twice") from None
    payment = payment_of_json(body)
    about(scope, item_id=payment.payment_id)
    try:
        with submitted(scope["state"]["caller"]):
            accepted = await payments_of(scope).intake.submit(payment)
    except PaymentExists as error:
        raise _exists(error) from None
    except ReleaseRequired as error:
        raise release_required(error) from None
    await send_json(send, AcceptedPayment.of(accepted).dump_json(), 202)


async def submit_feed(scope: Scope, receive: Receive, send: Send) -> None:
    """Accepts each good line of a feed of any length, read while it arrives; bad lines are reported with their number.

    As `text/csv` with the columns paymentId, amount, currency, payerName, payerIban, payeeName, payeeIban, executeAt,
    or as `application/x-ndjson` with a PaymentRequest per line. An interrupted feed can be sent again: accepted
    payments count as duplicates. `configName` in the query names the config of lines that name none.

    403 where four eyes are required: there feeds go to `/api/v1/feeds`.
    """
    kind = FORMATS.get(media_type(scope))
    if kind is None:
        raise unsupported("text/csv or application/x-ndjson")
    if payments_of(scope).four_eyes:
        raise release_required(ReleaseRequired())
    request = Request(scope)
    services, config_name = services_of(scope), request.query_params.get("configName")
    if config_name is not None:
        await services.slots.check_configs(config_name)

    async def initiate(payments: Sequence[Payment]) -> list[IntakeResult]:
        if config_name is not None:
            payments = [
                payment._replace(config_name=config_name) if payment.config_name is None else payment
                for payment in payments
            ]
        with submitted(scope["state"]["caller"]):
            return await payments_of(scope).intake.initiate(payments)

    tally = Tally()
    with tempfile.SpooledTemporaryFile(max_size=IN_MEMORY) as rejections:
        async for progress in initiate_feed(body_blocks(receive), kind, initiate):
            for rejected in progress.rejected:
                rejections.write(_rejection(rejected, first=rejections.tell() == 0))
            tally.add(progress)
        rejections.seek(0)
        await _answer(send, tally, rejections)


@router.get(
    "/payments/{paymentId:path}/history",
    summary="The history of a payment",
    response_model=PaymentHistory,
    responses=documented(400, 404),
    openapi_extra={"parameters": [path("paymentId", PAYMENT_ID)]},
)
async def history(request: Request) -> Response:
    """Every event of the payment, with who caused it: first who submitted it, with feed and line. It is a part of the
    audit: `paceline audit verify` detects a change of it."""
    payment_id = request.path_params["paymentId"]
    _, events = await payments_of(request).operations.show(payment_id)
    return json_response(PaymentHistory(payment_id=payment_id, events=[HistoryEvent.of(event) for event in events]))


@router.get(
    "/payments/{paymentId:path}",
    summary="Show a payment",
    response_model=PaymentShown,
    responses=documented(400, 404),
    openapi_extra={"parameters": [path("paymentId", PAYMENT_ID)]},
)
async def show(request: Request) -> Response:
    """The payment, its status, and its history."""
    return await _payment_response(payments_of(request), request.path_params["paymentId"])


@router.get(
    "/payments",
    summary="List payments",
    response_model=PaymentPage,
    responses=documented(400),
    openapi_extra={"parameters": [STATUS, FEED_ID, FROM, TO, PREFIX, SORT, TOTAL, LIMIT.document(), CURSOR]},
)
async def list_payments(request: Request) -> Response:
    """Payments in order of their ids; `next` of one page is the `cursor` of the next one in the same order."""
    given = request.query_params
    selection = PaymentFilter(
        checked_status(given.get("status")),
        checked_id(given["feed"], "feed") if "feed" in given else None,
        parse_instant(given["from"], "from") if "from" in given else None,
        parse_instant(given["to"], "to") if "to" in given else None,
        checked_id(given["prefix"], "prefix") if "prefix" in given else None,
    )
    operations = payments_of(request).operations
    after = checked_id(given["cursor"], "cursor") if "cursor" in given else None
    with_total = flag(request, "total")
    records, cursor = await operations.page(selection, limit=LIMIT.of(request), after=after, sort=given.get("sort"))
    page = PaymentPage(payments=[PaymentView.of_payment(record) for record in records], next=cursor)
    if with_total:
        page.total = await operations.count(selection)
    return json_response(page)


@router.post(
    "/payments/{paymentId:path}/retry",
    summary="Send a failed payment again",
    response_model=PaymentShown,
    responses=documented(400, 403, 404, 409, 503),
    openapi_extra={"parameters": [path("paymentId", PAYMENT_ID)]},
)
async def retry(request: Request) -> Response:
    """A FAILED payment is sent again. An UNKNOWN one is first decided by the downstream's status inquiry: a payment
    that was executed there is not sent again. 409 in any other status. Recorded in `/admin/audit`.

    Where four eyes are required, the retry of a payment that is or was UNKNOWN is recorded first (`retryRequestedBy`),
    and happens when another person sends the same request; 403 for the same person.
    """
    payments, payment_id = payments_of(request), request.path_params["paymentId"]
    try:
        await payments.operations.retry(payment_id, by=request.scope["state"]["caller"])
    except Conflict as error:
        raise Problem(409, "payment-not-retried", "Payment Not Retried", str(error)) from None
    except SecondPersonRequired as error:
        raise second_person_required(error) from None
    except DownstreamBusy as error:
        headers = {"Retry-After": "10"}
        raise Problem(503, "downstream-unavailable", "Downstream Unavailable", str(error), headers=headers) from None
    return await _payment_response(payments, payment_id)


@router.delete(
    "/payments/{paymentId:path}",
    summary="Cancel a payment",
    response_model=PaymentShown,
    responses=documented(400, 404, 409),
    openapi_extra={"parameters": [path("paymentId", PAYMENT_ID)]},
)
async def cancel(request: Request) -> Response:
    """Cancels the payment and its slot; 409 once its execution has begun."""
    payments, payment_id = payments_of(request), request.path_params["paymentId"]
    try:
        with submitted(request.scope["state"]["caller"]):
            await payments.operations.cancel(payment_id)
    except Conflict as error:
        raise Problem(409, "payment-on-its-way", "Payment On Its Way", str(error)) from None
    return await _payment_response(payments, payment_id)


async def _payment_response(payments: Payments, payment_id: str) -> Response:
    return json_response(PaymentShown.of_record(*await payments.operations.show(payment_id)))


def _exists(error: PaymentExists) -> Problem:
    return Problem(409, "payment-exists", "Payment Exists", str(error), field="paymentId")


async def body_blocks(receive: Receive) -> AsyncIterator[bytes]:
    """The body of a request, block by block."""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        more = message.get("more_body", False)
        yield message.get("body", b"")


def _rejection(rejected: Rejection, *, first: bool) -> bytes:
    reason = rejected.reason.encode("utf-8", "replace").decode()
    line = RejectedLine(line=rejected.line, reason=reason).dump_json()
    return line if first else b"," + line


async def _answer(send: Send, tally: Tally, rejections: Any) -> None:
    """Sends the result; rejections are read from their temporary file, however many there are."""
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    head = f'{{"accepted":{tally.accepted},"duplicates":{tally.duplicates},"rejected":['.encode()
    await send({"type": "http.response.body", "body": head, "more_body": True})
    while piece := rejections.read(PIECE):
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b"]}"})
