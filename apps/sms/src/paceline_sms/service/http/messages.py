"""Accepted messages: status, opt-outs, batches; and quotas to read and delete."""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from fastapi import Request, Response

from paceline.durations import EPOCH, MICROSECOND
from paceline.errors import InvalidInput, NotFound, PacelineError
from paceline.server.http import problem
from paceline.server.http.body import media_type, read_large_object, read_object
from paceline.server.http.parameters import WholeNumber, api_router, choice_of, flag, json_body, path, query, text_of
from paceline.server.http.problem import Problem, documented
from paceline.server.http.raw_routes import json_response
from paceline_sms.model import LARGEST
from paceline_sms.ports import MessageFilter, Status
from paceline_sms.recipients import checked_phone
from paceline_sms.service.http.notifications import IDEMPOTENCY_KEY, accept, idempotency_key, name_outages
from paceline_sms.service.http.parts import gateway_of
from paceline_sms.service.shapes.notifications import (
    BatchedNotificationRequest,
    KnownOptOut,
    MessagePage,
    MessageStatus,
    NotificationBatch,
    NotificationBatchRequest,
    NotificationConfig,
    NotificationRefused,
    NotificationSent,
    OptOut,
    OptOutPage,
    OptOutRequest,
)
from paceline_sms.service.wiring.notifications import Notifications

AT_ONCE = 100
"""The number of messages of a batch that are decided together. Redis has a timeout of half a second, also while this
process is busy with the others."""
USER = WholeNumber("userId", 0, LARGEST)
MESSAGE = path("messageId", {"type": "string", "minLength": 1, "maxLength": 64})
MESSAGE_ID = {"type": "string", "minLength": 1, "maxLength": 64, "pattern": r"^[^\u0000]+$"}
SHOWN_STATUSES = [status.value.lower() for status in Status]
STATUS = query("status", {"type": "string", "enum": SHOWN_STATUSES, "description": "By default all."})
OF_USER = WholeNumber("userId", 0, LARGEST, description="By default all users.")
PREFIX = query("prefix", MESSAGE_ID | {"description": "What their ids begin with."})
SORTS = ("acceptedAt", "-acceptedAt")
SORT = query("sort", {"type": "string", "enum": list(SORTS), "description": "With -, descending: the default."})
TOTAL = query("total", {"type": "boolean", "description": "Count how many match, up to 100,001."})
LIMIT = WholeNumber("limit", 1, 1000, default=100)
CURSOR = query(
    "cursor", {"type": "string", "pattern": "^[0-9]{1,16}-.{1,64}$", "description": "`next` of the page before."}
)
PHONE = path(
    "phone", {"type": "string", "pattern": r"^\+[1-9][0-9]{6,14}$", "description": "E.164.", "example": "+491701234567"}
)

AFTER = query("after", {"type": "string", "pattern": r"^-?[0-9]{1,19}$", "description": "`next` of the page before."})

router = api_router("/api", "notifications")


@router.post(
    "/send/batch",
    summary="Send several messages",
    response_model=NotificationBatch,
    responses=documented(400, 413, 415, 503),
    openapi_extra=json_body(NotificationBatchRequest) | {"parameters": [IDEMPOTENCY_KEY]},
)
async def send_batch(request: Request) -> Response:
    """Each message is decided independently, those of one user in order. The response is 200 also if some were
    refused. With an `Idempotency-Key`, or a key of its own, a message that was accepted is not sent again."""
    value = await read_large_object(request.scope, request.receive)
    messages = NotificationBatchRequest.parse(value).messages
    key = idempotency_key(request.scope)
    parsed = [_message(message, index, key) for index, message in enumerate(messages)]
    return json_response(NotificationBatch(results=await _outcomes(gateway_of(request), parsed)))


async def _outcomes(
    gateway: Notifications, messages: Sequence[BatchedNotificationRequest]
) -> list[NotificationSent | NotificationRefused]:
    """One outcome per message, in order. Messages that are decided at once share a round trip, in the order of their
    calls. A user's first message goes before the others if it may have to load the user's quota into the cache."""
    if gateway.intake.keeps_order:
        return list(await asyncio.gather(*(_outcome(gateway, message) for message in messages)))
    first = {message.user_id: index for index, message in reversed(list(enumerate(messages)))}
    later = [index for index, message in enumerate(messages) if first[message.user_id] != index]
    outcomes: dict[int, NotificationSent | NotificationRefused] = {}
    for indices in (list(first.values()), later):
        for begin in range(0, len(indices), AT_ONCE):
            portion = indices[begin : begin + AT_ONCE]
            decided = await asyncio.gather(*(_outcome(gateway, messages[index]) for index in portion))
            outcomes.update(zip(portion, decided, strict=True))
    return [outcomes[index] for index in range(len(messages))]


def _message(value: Any, index: int, key: str | None) -> BatchedNotificationRequest:
    """The message, with its key: its own, or the one it gets from that of the batch by its place."""
    if not isinstance(value, dict):
        raise InvalidInput(f"messages[{index}]", "must be an object")
    message = BatchedNotificationRequest.parse(value, f"messages[{index}].")
    if message.idempotency_key is None and key is not None:
        of_batch = hashlib.sha256(key.encode()).hexdigest()
        return message.model_copy(update={"idempotency_key": f"batch:{of_batch}:{index}"})
    return message


async def _outcome(
    gateway: Notifications, message: BatchedNotificationRequest
) -> NotificationSent | NotificationRefused:
    try:
        return await accept(gateway, message, message.idempotency_key)
    except Problem as refusal:
        return _refusal_shown(refusal)
    except PacelineError as error:
        return _refusal_shown(problem.of(error))


def _refusal_shown(refusal: Problem) -> NotificationRefused:
    body = refusal.body
    further = {"field": body["field"]} if "field" in body else {}
    if "Retry-After" in refusal.headers:
        further["retry_after"] = math.ceil(float(refusal.headers["Retry-After"]))
    return NotificationRefused(status=refusal.status, title=body["title"], detail=body["detail"], **further)


@router.get(
    "/config/{userId}",
    summary="A user's quota",
    response_model=NotificationConfig,
    responses=documented(400, 404, 503),
    openapi_extra={"parameters": [USER.document("path")]},
)
async def quota(request: Request) -> Response:
    """The current quota: the count in the window, and when that began."""
    user_id = USER.of(request)
    with name_outages():
        return json_response(NotificationConfig.of_quota(await gateway_of(request).intake.quota(user_id)))


@router.delete(
    "/config/{userId}",
    summary="Delete a user's quota",
    status_code=204,
    responses=documented(400, 404, 503),
    openapi_extra={"parameters": [USER.document("path")]},
)
async def delete_quota(request: Request) -> Response:
    """Deletes the quota: the user can't send any more; accepted messages are still sent."""
    user_id = USER.of(request)
    with name_outages():
        await gateway_of(request).intake.delete(user_id)
    return Response(status_code=204)


@router.get(
    "/messages",
    summary="List messages",
    response_model=MessagePage,
    responses=documented(400, 503),
    openapi_extra={"parameters": [STATUS, OF_USER.document(), PREFIX, SORT, TOTAL, LIMIT.document(), CURSOR]},
)
async def list_messages(request: Request) -> Response:
    """Messages, newest first; `next` of one page is the `cursor` of the next one in the same order. Texts and numbers
    are not shown."""
    given, limit, with_total = request.query_params, LIMIT.of(request), flag(request, "total")
    oldest_first = choice_of(request, "sort", SORTS) == "acceptedAt"
    selection = MessageFilter(
        _status(given.get("status")), OF_USER.find(request), text_of(request, "prefix", MESSAGE_ID)
    )
    after = None if "cursor" not in given else place_of(given["cursor"])
    messages = gateway_of(request).messages
    with name_outages():
        page = await messages.page(selection, limit + 1, after, oldest_first=oldest_first)
        total = {"total": await messages.count_matching(selection)} if with_total else {}
    last = page[limit - 1] if len(page) > limit else None
    following = None if last is None else cursor_of(last.accepted_at, last.message_id)
    shown = [MessageStatus.of(known) for known in page[:limit]]
    return json_response(MessagePage(messages=shown, next=following, **total))


def _status(text: str | None) -> Status | None:
    if text is not None and text not in SHOWN_STATUSES:
        raise InvalidInput("status", f"must be one of {', '.join(SHOWN_STATUSES)}")
    return None if text is None else Status(text.upper())


def cursor_of(at: datetime, message_id: str) -> str:
    """The cursor of a message in a list by time."""
    return f"{(at - EPOCH) // MICROSECOND}-{message_id}"


def place_of(cursor: str) -> tuple[datetime, str]:
    """The inverse of `cursor_of`.

    Raises:
        InvalidInput: it is no such cursor.
    """
    at, _, message_id = cursor.partition("-")
    if not (at.isascii() and at.isdigit() and len(at) <= 16 and 0 < len(message_id) <= 64 and "\0" not in message_id):
        raise InvalidInput("cursor", "is not what an answer gave as next")
    return EPOCH + int(at) * MICROSECOND, message_id


@router.get(
    "/messages/{messageId}",
    summary="Where a message is",
    response_model=MessageStatus,
    responses=documented(404, 503),
    openapi_extra={"parameters": [MESSAGE]},
)
async def status(request: Request) -> Response:
    """`queued`, `sent`, `delivered`, `failed`, `expired`, `cancelled` or `unknown`, with the time of each step."""
    message_id = request.path_params["messageId"]
    with name_outages():
        known = await gateway_of(request).messages.status(message_id[:64].replace("\0", ""))
    if known is None:
        raise NotFound("message", message_id[:64])
    return json_response(MessageStatus.of(known))


@router.delete(
    "/messages/{messageId}",
    summary="Cancel a message",
    response_model=MessageStatus,
    responses=documented(404, 409, 503),
    openapi_extra={"parameters": [MESSAGE]},
)
async def cancel(request: Request) -> Response:
    """Cancels a message that no sender has taken yet, also one that waits for its time. It stays counted in the quota.
    409, with `messageStatus`, if a sender has taken it or it is decided. A second call gets the same response."""
    gateway, message_id = gateway_of(request), request.path_params["messageId"]
    with name_outages():
        if gateway.intake.cached is not None:
            await gateway.intake.cached.rows.flush()
        cancelled = await gateway.messages.cancel(message_id[:64].replace("\0", ""))
    if cancelled is None:
        raise NotFound("message", message_id[:64])
    if cancelled.refusal is not None:
        status = cancelled.message.status.value.lower()
        detail = f"it can't be cancelled any more: {cancelled.refusal}"
        raise Problem(409, "message-not-cancelled", "Message Not Cancelled", detail, messageStatus=status)
    return json_response(MessageStatus.of(cancelled.message))


@router.get(
    "/optouts",
    summary="List opt-outs",
    response_model=OptOutPage,
    responses=documented(400, 503),
    openapi_extra={"parameters": [LIMIT.document(), AFTER]},
)
async def list_opt_outs(request: Request) -> Response:
    """Numbers that get no messages, each once; `next` of one page is `after` of the next one."""
    limit = LIMIT.of(request)
    after = _place_of(request.query_params["after"]) if "after" in request.query_params else None
    with name_outages():
        page = await gateway_of(request).messages.opt_outs(limit + 1, after)
    following = str(page[limit - 1].place) if len(page) > limit else None
    return json_response(OptOutPage(optouts=[KnownOptOut.of(entry) for entry in page[:limit]], next=following))


def _place_of(after: str) -> int:
    digits = after.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19 and -(2**63) <= int(after) < 2**63):
        raise InvalidInput("after", "is not what an answer gave as next")
    return int(after)


@router.get(
    "/optouts/{phone}",
    summary="Whether a number has opted out",
    response_model=KnownOptOut,
    responses=documented(400, 404, 503),
    openapi_extra={"parameters": [PHONE]},
)
async def find_opt_out(request: Request) -> Response:
    """The reason, and since when."""
    phone = checked_phone(request.path_params["phone"])
    with name_outages():
        entry = await gateway_of(request).messages.find_opt_out(phone)
    if entry is None:
        raise Problem(404, "optout-not-found", "Opt-out Not Found", "this number has not opted out")
    return json_response(KnownOptOut.of(entry))


@router.put(
    "/optouts/{phone}",
    summary="Send nothing to a number",
    response_model=OptOut,
    responses=documented(400, 413, 415, 503),
    openapi_extra={
        "parameters": [PHONE],
        "requestBody": {**json_body(OptOutRequest)["requestBody"], "required": False},
    },
)
async def opt_out(request: Request) -> Response:
    """From now on no message of any user goes to this number. A second call changes the reason."""
    phone = checked_phone(request.path_params["phone"])
    body = {}
    if media_type(request.scope) or request.headers.get("content-length", "0") != "0":
        body = await read_object(request.scope, request.receive)
    reason = OptOutRequest.parse(body).reason
    with name_outages():
        await gateway_of(request).messages.opt_out(phone, reason)
    return json_response(OptOut(phone=phone, reason=reason))


@router.delete(
    "/optouts/{phone}",
    summary="Opt a number in again",
    status_code=204,
    responses=documented(400, 404, 503),
    openapi_extra={"parameters": [PHONE]},
)
async def opt_in(request: Request) -> Response:
    """Removes a number from the opt-outs."""
    phone = checked_phone(request.path_params["phone"])
    with name_outages():
        if not await gateway_of(request).messages.opt_in(phone):
            raise Problem(404, "optout-not-found", "Opt-out Not Found", "this number has not opted out")
    return Response(status_code=204)
