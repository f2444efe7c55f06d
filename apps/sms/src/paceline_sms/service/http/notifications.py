"""`/api/config` and `/api/send`: the SMS gateway."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from paceline.errors import BrokerUnavailable, StoreError
from paceline.server.http.body import read_object
from paceline.server.http.logs import about
from paceline.server.http.parameters import json_body
from paceline.server.http.problem import Problem, documented, invalid
from paceline.server.http.raw_routes import add_raw_route, send_json
from paceline_sms.model import LONGEST_KEY, KeyReused, OptedOut, Verdict
from paceline_sms.service.http.parts import gateway_of
from paceline_sms.service.shapes.notifications import (
    SENT,
    NotificationConfig,
    NotificationConfigRequest,
    NotificationRequest,
    NotificationSent,
)
from paceline_sms.service.wiring.notifications import Notifications
from paceline_sms.templates import VariablesWrong

OPTIONAL = ("algorithm", "unit", "phone", "locale", "zone")
"""Members of a configuration that keep their values if they are left out."""
IDEMPOTENCY_KEY: dict[str, Any] = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": LONGEST_KEY, "pattern": "^[!-~]+$"},
    "description": "The same key of the same user is sent, counted and answered once within a day.",
}


def install(routes: list[BaseRoute]) -> None:
    """Adds the routes of this module."""
    add_raw_route(
        routes,
        "/api/send",
        send_message,
        methods=["POST"],
        tags=["notifications"],
        summary="Send a message",
        response_model=NotificationSent,
        responses=documented(400, 403, 404, 413, 415, 422, 429, 503),
        openapi_extra=json_body(NotificationRequest) | {"parameters": [IDEMPOTENCY_KEY]},
    )
    add_raw_route(
        routes,
        "/api/config",
        configure,
        methods=["POST"],
        tags=["notifications"],
        summary="Create or change a user's quota",
        response_model=NotificationConfig,
        responses=documented(400, 413, 415, 503),
        openapi_extra=json_body(NotificationConfigRequest),
    )


async def configure(scope: Scope, receive: Receive, send: Send) -> None:
    """The user may send `rateLimit` messages in `timeWindow` minutes from now on; nothing counts as sent yet.

    Members that are left out keep their values; null is the default."""
    request = NotificationConfigRequest.parse(await read_object(scope, receive))
    about(scope, user_id=request.user_id)
    with name_outages():
        quota = await gateway_of(scope).intake.configure(
            request.user_id,
            request.rate_limit,
            request.time_window,
            **{name: getattr(request, name) for name in OPTIONAL if name in request.model_fields_set},
        )
    await send_json(send, NotificationConfig.of_quota(quota).dump_json())


async def send_message(scope: Scope, receive: Receive, send: Send) -> None:
    """Accepts the message if the user's quota allows it; otherwise 429, with `Retry-After`.

    An accepted message is counted and will be sent. With an `Idempotency-Key`, retries are safe: a message of the same
    key is sent and counted once; 422 if the key comes with another message.
    """
    request = NotificationRequest.parse(await read_object(scope, receive))
    about(scope, user_id=request.user_id)
    sent = await accept(gateway_of(scope), request, idempotency_key(scope))
    about(scope, user_id=request.user_id, message_id=sent.message_id)
    await send_json(send, sent.dump_json())


async def accept(gateway: Notifications, request: NotificationRequest, key: str | None) -> NotificationSent:
    """Accepts a message.

    Raises:
        Problem: It is not accepted: 403, 422, 429, 503.
        InvalidInput: A member can't be used.
        NotFound: The user has no quota.
    """
    text = _text(gateway, request)
    with name_outages():
        try:
            verdict = await gateway.intake.send(
                request.user_id,
                text,
                key=key,
                to=request.to,
                priority=request.priority,
                expires_in=request.expires_in,
                send_at=request.send_at,
            )
        except KeyReused as error:
            detail = f"{error.field}: {error.problem}"
            raise Problem(
                422, "idempotency-key-reused", "Idempotency Key Reused", detail, messageId=error.message_id
            ) from error
        except OptedOut as error:
            raise Problem(403, "opted-out", "Recipient Opted Out", str(error)) from error
    if not verdict.allowed:
        raise limited(verdict)
    return NotificationSent(status=SENT, message_id=verdict.message_id, segments=verdict.segments)


def _text(gateway: Notifications, request: NotificationRequest) -> str:
    """The message, or that of its template.

    Raises:
        Problem: 422, a variable is missing or unknown.
        InvalidInput: There is neither, or both; or the template is not known.
    """
    if request.template is None:
        if request.variables is not None:
            raise invalid("variables", "are those of a template; name it")
        if request.message is None:
            raise invalid("message", "is required, or a template")
        return request.message
    if request.message is not None:
        raise invalid("template", "stands in place of message; give one of them")
    try:
        return gateway.templates.render(request.template, request.variables or {})
    except VariablesWrong as error:
        raise Problem(422, "template-variables", "Template Variables Wrong", str(error), field=error.field) from error


def limited(verdict: Verdict) -> Problem:
    """429, with the time after which a call is admitted."""
    seconds = math.ceil(verdict.reset_after_ms / 1000)
    detail = f"{verdict.used} of {verdict.rate_limit} {verdict.unit}s are sent; the window ends in {seconds} s"
    return Problem(429, "quota-exceeded", "Rate Limit Exceeded", detail, headers={"Retry-After": str(max(1, seconds))})


@contextmanager
def name_outages() -> Iterator[None]:
    """Turns an outage of a store, inside the block, into a 503 with the SMS API's own title."""
    try:
        yield
    except BrokerUnavailable as error:
        detail = "the message was not accepted by the broker; try again"
        raise _unavailable("broker-unavailable", "Kafka Down : Service Unavailable", detail) from error
    except StoreError as error:
        detail = "the database does not answer, or is busy with a conflicting write; try again"
        raise _unavailable("store-unavailable", "Postgres Down : Service Unavailable", detail) from error


def _unavailable(kind: str, title: str, detail: str) -> Problem:
    return Problem(503, kind, title, detail, headers={"Retry-After": "1"})


def idempotency_key(scope: Scope) -> str | None:
    """The header's value; None if there is none."""
    for name, value in scope["headers"]:
        if name == b"idempotency-key":
            try:
                return bytes(value).decode("ascii")
            except UnicodeDecodeError:
                raise invalid("Idempotency-Key", f"must be 1 to {LONGEST_KEY} printable ASCII characters") from None
    return None
