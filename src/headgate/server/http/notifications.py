"""`/api/config` and `/api/send`: the SMS gateway."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel
from starlette.types import Receive, Scope, Send

from headgate.apps.notifications.model import LARGEST, LONGEST_KEY, LONGEST_MESSAGE, Quota, Verdict
from headgate.durations import format_instant, from_ms
from headgate.errors import BrokerUnavailable, StoreError
from headgate.server.field_names import typed_as
from headgate.server.http import schemas
from headgate.server.http.body import only, read_object, required
from headgate.server.http.logs import about
from headgate.server.http.problem import Problem, documented, invalid
from headgate.server.http.raw_routes import add_raw_route, send_json
from headgate.server.http.services import services_of

_USER = {"type": "integer", "minimum": 0, "maximum": LARGEST, "example": 101}
CONFIG_REQUEST: dict[str, Any] = {
    "title": "NotificationConfigRequest",
    "type": "object",
    "required": ["userId", "rateLimit", "timeWindow"],
    "additionalProperties": False,
    "properties": {
        "userId": _USER,
        "rateLimit": {"type": "integer", "minimum": 1, "maximum": LARGEST, "example": 10},
        "timeWindow": {
            "type": "integer",
            "minimum": 1,
            "maximum": LARGEST,
            "description": "Minutes.",
            "example": 5,
        },
    },
}
SEND_REQUEST: dict[str, Any] = {
    "title": "NotificationRequest",
    "type": "object",
    "required": ["userId", "message"],
    "additionalProperties": False,
    "properties": {
        "userId": _USER,
        "message": {
            "type": "string",
            "minLength": 1,
            "maxLength": LONGEST_MESSAGE,
            "pattern": r"\S",
            "example": "Hello World",
        },
    },
}
IDEMPOTENCY_KEY: dict[str, Any] = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": LONGEST_KEY, "pattern": "^[!-~]+$"},
    "description": "The same key of the same user is sent, counted and answered once within a day.",
}
SENT = "Message Sent Successfully"


class _Shown(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel)


class NotificationConfig(_Shown):
    """A user's quota, as it is now."""

    user_id: int
    rate_limit: int
    time_window: int
    current_count: int
    last_refresh_time: str


class NotificationSent(_Shown):
    """The message is on its way."""

    status: str
    message_id: str


def install(app: FastAPI) -> None:
    """Adds the routes of this module."""
    add_raw_route(
        app,
        "/api/send",
        send_message,
        methods=["POST"],
        tags=["notifications"],
        summary="Send a message",
        response_model=NotificationSent,
        responses=documented(400, 404, 413, 415, 429, 503),
        openapi_extra=schemas.json_body(SEND_REQUEST) | {"parameters": [IDEMPOTENCY_KEY]},
    )
    add_raw_route(
        app,
        "/api/config",
        configure,
        methods=["POST"],
        tags=["notifications"],
        summary="Create or change a user's quota",
        response_model=NotificationConfig,
        responses=documented(400, 413, 415, 503),
        openapi_extra=schemas.json_body(CONFIG_REQUEST),
    )


async def configure(scope: Scope, receive: Receive, send: Send) -> None:
    """The user may send `rateLimit` messages in `timeWindow` minutes from now on; nothing counts as sent yet."""
    value = await read_object(scope, receive)
    only(value, tuple(CONFIG_REQUEST["properties"]))
    members = [required(value, member) for member in ("userId", "rateLimit", "timeWindow")]
    if isinstance(members[0], int):
        about(scope, user_id=members[0])
    with typed_as(user_id="userId", rate_limit="rateLimit", time_window="timeWindow"), name_outages():
        quota = await services_of(scope).notifications.intake.configure(*members)
    await send_json(send, orjson.dumps(shown(quota)))


async def send_message(scope: Scope, receive: Receive, send: Send) -> None:
    """Publishes the message if the user's quota allows it; otherwise 429, and `Retry-After` says when it will.

    With an `Idempotency-Key` a call may be repeated safely: the same key is sent and counted once.
    """
    value = await read_object(scope, receive)
    only(value, tuple(SEND_REQUEST["properties"]))
    user_id, message = required(value, "userId"), required(value, "message")
    if isinstance(user_id, int):
        about(scope, user_id=user_id)
    with typed_as(user_id="userId"), name_outages():
        verdict = await services_of(scope).notifications.intake.send(user_id, message, key=idempotency_key(scope))
    if not verdict.allowed:
        raise limited(verdict)
    about(scope, user_id=user_id, message_id=verdict.message_id)
    await send_json(send, orjson.dumps({"status": SENT, "messageId": verdict.message_id}))


def shown(quota: Quota) -> dict[str, Any]:
    """A quota as JSON has it."""
    return {
        "userId": quota.user_id,
        "rateLimit": quota.rate_limit,
        "timeWindow": quota.window_minutes,
        "currentCount": quota.count,
        "lastRefreshTime": format_instant(from_ms(quota.refreshed_ms)),
    }


def limited(verdict: Verdict) -> Problem:
    """429, with the time after which a call is admitted."""
    seconds = math.ceil(verdict.reset_after_ms / 1000)
    detail = f"{verdict.used} of {verdict.rate_limit} messages are sent; the window ends in {seconds} s"
    return Problem(429, "quota-exceeded", "Rate Limit Exceeded", detail, headers={"Retry-After": str(max(1, seconds))})


@contextmanager
def name_outages() -> Iterator[None]:
    """Inside, an outage of a store becomes a 503 with the title that the gateway's users know."""
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
