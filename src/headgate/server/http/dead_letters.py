"""`/admin/sms/dead-letters`: messages that were refused, expired or could not be read."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from headgate.errors import InvalidInput
from headgate.server.http.body import read_object
from headgate.server.http.notifications import name_outages
from headgate.server.http.parameters import WholeNumber, check_query, json_body, query
from headgate.server.http.problem import documented
from headgate.server.http.raw_routes import json_response
from headgate.server.http.services import services_of
from headgate.server.shapes.notifications import DeadLetter, DeadLetters, DeadLetterSelection, Dropped, Redriven

LIMIT = WholeNumber("limit", 1, 1000, default=100, description="The most dead letters to show.")
CURSOR = query(
    "cursor", {"type": "string", "pattern": "^[0-9]{1,14}-.{1,64}$", "description": "`next` of the page before."}
)

router = APIRouter(prefix="/admin/sms/dead-letters", tags=["notifications"])


@router.get(
    "",
    summary="Dead letters",
    response_model=DeadLetters,
    responses=documented(400, 503),
    openapi_extra={"parameters": [LIMIT.document(), CURSOR]},
)
async def list_dead_letters(request: Request) -> Response:
    """The oldest first. Texts are not shown; `redrivable` is false for a record that was too long to keep."""
    check_query(request)
    limit, cursor = LIMIT.of(request), request.query_params.get("cursor")
    with name_outages():
        letters = await services_of(request).notifications.messages.dead_letters(limit, _place(cursor))
    following = f"{letters[-1].dead_ms}-{letters[-1].letter_id}" if len(letters) == limit else None
    return json_response(DeadLetters(dead_letters=[DeadLetter.of_letter(letter) for letter in letters], next=following))


@router.post(
    "/redrive",
    summary="Send dead letters again",
    response_model=Redriven,
    responses=documented(400, 413, 415, 503),
    openapi_extra=json_body(DeadLetterSelection),
)
async def redrive(request: Request) -> Response:
    """Each is sent as if it were new, with a new expiry and under its old id."""
    ids = await _selected(request)
    with name_outages():
        redriven, kept = await services_of(request).notifications.messages.redrive(ids)
    return json_response(Redriven(redriven=redriven, kept=kept))


@router.post(
    "/drop",
    summary="Delete dead letters",
    response_model=Dropped,
    responses=documented(400, 413, 415, 503),
    openapi_extra=json_body(DeadLetterSelection),
)
async def drop(request: Request) -> Response:
    """They are gone for good; their messages stay failed or expired."""
    ids = await _selected(request)
    with name_outages():
        return json_response(Dropped(dropped=await services_of(request).notifications.messages.drop(ids)))


async def _selected(request: Request) -> list[str] | None:
    """The ids that are meant; None: all."""
    selection = DeadLetterSelection.parse(await read_object(request.scope, request.receive))
    if len(selection.model_fields_set) != 1 or (selection.ids is None and selection.all is None):
        raise InvalidInput("ids", 'give either {"ids": […]} or {"all": true}')
    return selection.ids


def _place(cursor: str | None) -> tuple[int, str] | None:
    if cursor is None:
        return None
    at_ms, _, letter_id = cursor.partition("-")
    if not (at_ms.isascii() and at_ms.isdigit() and len(at_ms) <= 14 and 0 < len(letter_id) <= 64):
        raise InvalidInput("cursor", "is not what an answer gave as next")
    return int(at_ms), letter_id
