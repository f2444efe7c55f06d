"""`/api/v1/payments`: one payment, a feed of them, and what became of one."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Sequence
from typing import Any

import orjson
from fastapi import APIRouter, FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel
from starlette.datastructures import QueryParams
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from headgate.apps.payments.currencies import MINOR_UNITS
from headgate.apps.payments.feed import FeedFormat, Rejection, Tally, initiate_feed
from headgate.apps.payments.model import IntakeResult, Payment, PaymentExists
from headgate.apps.payments.parsing import COLUMNS, LONGEST_IBAN, LONGEST_ID, LONGEST_NAME, payment_of_json
from headgate.errors import Conflict
from headgate.server.http import schemas
from headgate.server.http.body import media_type, read_object
from headgate.server.http.logs import about
from headgate.server.http.problem import Problem, documented, unsupported
from headgate.server.http.raw_routes import add_raw_route, send_json
from headgate.server.http.services import Services, services_of
from headgate.server.shapes import members

FORMATS = {
    b"text/csv": FeedFormat.CSV,
    b"application/x-ndjson": FeedFormat.JSONL,
    b"application/ndjson": FeedFormat.JSONL,
    b"application/jsonl": FeedFormat.JSONL,
}
IN_MEMORY = 1024 * 1024
"""Rejections kept in memory before they go to disk."""
PIECE = 64 * 1024

PAYMENT_ID = members.EVENT_ID | {
    "maxLength": LONGEST_ID,
    "description": "Your name for the payment: the same id with the same content is the same payment.",
}
PARTY: dict[str, Any] = {
    "type": "object",
    "required": ["name", "iban"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": LONGEST_NAME, "example": "Alice"},
        "iban": {"type": "string", "minLength": 1, "maxLength": LONGEST_IBAN, "example": "DE89370400440532013000"},
    },
}
PAYMENT_REQUEST: dict[str, Any] = {
    "title": "PaymentRequest",
    "type": "object",
    "required": ["paymentId", "amount", "currency", "payer", "payee", "executeAt"],
    "additionalProperties": False,
    "properties": {
        "paymentId": PAYMENT_ID,
        "amount": {
            "type": "string",
            "pattern": r"^(0|[1-9][0-9]{0,12})(\.[0-9]{1,4})?$",
            "description": "More than zero, with no more decimals than the currency has.",
            "example": "12.34",
        },
        "currency": {"type": "string", "enum": sorted(MINOR_UNITS), "example": "EUR"},
        "payer": PARTY,
        "payee": PARTY,
        "executeAt": members.INSTANT,
        "configName": members.CONFIG_NAME | {"type": ["string", "null"]},
    },
}
FEED = {"type": "string", "description": "One PaymentRequest a line."}
CSV_FEED = {
    "type": "string",
    "pattern": f"^{','.join(COLUMNS)}(\\r?\\n|$)",
    "description": "One payment a line; the first line names the columns.",
    "example": ",".join(COLUMNS),
}

router = APIRouter(prefix="/api/v1", tags=["payments"])


class _Shown(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel)


class AcceptedPayment(_Shown):
    """A payment that will be made at its time."""

    payment_id: str
    status: str
    scheduled_time: str


class RejectedLine(_Shown):
    """A line that is no payment, or one that can't be accepted."""

    line: int
    reason: str


class BulkResult(_Shown):
    """What came of a feed."""

    accepted: int
    duplicates: int
    rejected: list[RejectedLine]


class PaymentShown(_Shown):
    """A payment and its history."""

    payment_id: str
    amount: str
    currency: str
    payer: dict[str, str]
    payee: dict[str, str]
    execute_at: str
    status: str
    scheduled_time: str
    fee: str
    value_date: str
    config_name: str | None
    reference: str | None
    reason: str | None
    created_at: str
    updated_at: str
    audit: list[dict[str, Any]]


def install(app: FastAPI) -> None:
    """Adds the routes of this module."""
    add_raw_route(
        app,
        "/api/v1/payments",
        submit,
        methods=["POST"],
        tags=["payments"],
        summary="Accept a payment",
        status_code=202,
        response_model=AcceptedPayment,
        responses=documented(400, 404, 409, 413, 415),
        openapi_extra=schemas.json_body(PAYMENT_REQUEST),
    )
    add_raw_route(
        app,
        "/api/v1/payments/bulk",
        submit_feed,
        methods=["POST"],
        tags=["payments"],
        summary="Accept a feed of payments",
        response_model=BulkResult,
        responses=documented(400, 404, 415),
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {"text/csv": {"schema": CSV_FEED}, "application/x-ndjson": {"schema": FEED}},
            },
            "parameters": [schemas.query("configName", members.CONFIG_NAME)],
        },
    )
    app.include_router(router)


async def submit(scope: Scope, receive: Receive, send: Send) -> None:
    """Checks the payment, books its slot and queues it; it is made at `scheduledTime`.

    Idempotent: the same payment again gets the same answer; another payment of the same `paymentId` is a 409. 503 if
    no slot is free before the config's horizon.
    """
    services = services_of(scope)
    payment = payment_of_json(await read_object(scope, receive))
    about(scope, item_id=payment.payment_id)
    try:
        accepted = await services.payments.intake.submit(payment)
    except PaymentExists as error:
        raise _exists(error) from None
    await send_json(send, orjson.dumps(accepted.to_json()), 202)


async def submit_feed(scope: Scope, receive: Receive, send: Send) -> None:
    """Accepts each good line of a feed of any length, read while it arrives; bad lines are reported with their number.

    As `text/csv` with the columns paymentId, amount, currency, payerName, payerIban, payeeName, payeeIban, executeAt,
    or as `application/x-ndjson` with a PaymentRequest a line. A feed that broke off can be sent again: what was
    accepted counts as a duplicate. `configName` in the query names the config of lines that name none.
    """
    kind = FORMATS.get(media_type(scope))
    if kind is None:
        raise unsupported("text/csv or application/x-ndjson")
    services = services_of(scope)
    config_name = QueryParams(scope["query_string"]).get("configName")
    if config_name is not None:
        await services.slots.policy(config_name)

    async def initiate(payments: Sequence[Payment]) -> list[IntakeResult]:
        if config_name is not None:
            payments = [
                payment._replace(config_name=config_name) if payment.config_name is None else payment
                for payment in payments
            ]
        return await services.payments.intake.initiate(payments)

    tally = Tally()
    with tempfile.SpooledTemporaryFile(max_size=IN_MEMORY) as rejections:
        async for progress in initiate_feed(_blocks(receive), kind, initiate):
            for rejected in progress.rejected:
                rejections.write(_rejection(rejected, first=rejections.tell() == 0))
            tally.add(progress)
        rejections.seek(0)
        await _answer(send, tally, rejections)


@router.get(
    "/payments/{paymentId:path}",
    summary="Show a payment",
    response_model=PaymentShown,
    responses=documented(400, 404),
    openapi_extra={"parameters": [{"name": "paymentId", "in": "path", "required": True, "schema": PAYMENT_ID}]},
)
async def show(request: Request) -> Response:
    """The payment, where it stands, and how it got there."""
    return await _payment_response(services_of(request), request.path_params["paymentId"])


@router.delete(
    "/payments/{paymentId:path}",
    summary="Cancel a payment",
    response_model=PaymentShown,
    responses=documented(400, 404, 409),
    openapi_extra={"parameters": [{"name": "paymentId", "in": "path", "required": True, "schema": PAYMENT_ID}]},
)
async def cancel(request: Request) -> Response:
    """Calls the payment off and gives its slot back; 409 once it is on its way."""
    services, payment_id = services_of(request), request.path_params["paymentId"]
    try:
        await services.payments.queries.cancel(payment_id)
    except Conflict as error:
        raise Problem(409, "payment-on-its-way", "Payment On Its Way", str(error)) from None
    return await _payment_response(services, payment_id)


async def _payment_response(services: Services, payment_id: str) -> Response:
    record, history = await services.payments.queries.show(payment_id)
    body = {**record.to_json(), "audit": [entry.to_json() for entry in history]}
    return Response(orjson.dumps(body), media_type="application/json")


def _exists(error: PaymentExists) -> Problem:
    return Problem(409, "payment-exists", "Payment Exists", str(error), field="paymentId")


async def _blocks(receive: Receive) -> AsyncIterator[bytes]:
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        more = message.get("more_body", False)
        yield message.get("body", b"")


def _rejection(rejected: Rejection, *, first: bool) -> bytes:
    line = orjson.dumps({"line": rejected.line, "reason": rejected.reason.encode("utf-8", "replace").decode()})
    return line if first else b"," + line


async def _answer(send: Send, tally: Tally, rejections: Any) -> None:
    """Sends the result; rejections come from the file they wait in, however many there are."""
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    head = f'{{"accepted":{tally.accepted},"duplicates":{tally.duplicates},"rejected":['.encode()
    await send({"type": "http.response.body", "body": head, "more_body": True})
    while piece := rejections.read(PIECE):
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b"]}"})
