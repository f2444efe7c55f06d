"""`/admin/sms/dead-letters`: messages that were refused, have expired or could not be read."""

from __future__ import annotations

from fastapi import Request, Response

from paceline.errors import InvalidInput
from paceline.server.http.body import read_large_object
from paceline.server.http.parameters import WholeNumber, api_router, choice_of, flag, json_body, query
from paceline.server.http.problem import documented
from paceline.server.http.raw_routes import json_response
from paceline_sms.service.http.messages import cursor_of, place_of
from paceline_sms.service.http.notifications import name_outages
from paceline_sms.service.http.parts import gateway_of
from paceline_sms.service.shapes.notifications import DeadLetter, DeadLetters, DeadLetterSelection, Dropped, Redriven

LIMIT = WholeNumber("limit", 1, 1000, default=100, description="The maximum of dead letters to return.")
SORTS = ("deadAt", "-deadAt")
SORT = query("sort", {"type": "string", "enum": list(SORTS), "description": "With -, in descending order."})
TOTAL = query("total", {"type": "boolean", "description": "Also return their number, up to 100,001."})
CURSOR = query(
    "cursor", {"type": "string", "pattern": "^[0-9]{1,16}-.{1,64}$", "description": "`next` of the page before."}
)

router = api_router("/admin/sms/dead-letters", "notifications")


@router.get(
    "",
    summary="Dead letters",
    response_model=DeadLetters,
    responses=documented(400, 503),
    openapi_extra={"parameters": [SORT, TOTAL, LIMIT.document(), CURSOR]},
)
async def list_dead_letters(request: Request) -> Response:
    """The oldest first; `next` of one page is the `cursor` of the next one in the same order. Texts
    are not shown; `redrivable` is false for a record that was too long to keep."""
    limit, cursor, with_total = LIMIT.of(request), request.query_params.get("cursor"), flag(request, "total")
    newest_first = choice_of(request, "sort", SORTS) == "-deadAt"
    messages = gateway_of(request).messages
    with name_outages():
        letters = await messages.dead_letters(
            limit, None if cursor is None else place_of(cursor), newest_first=newest_first
        )
        total = {"total": await messages.count_dead_letters()} if with_total else {}
    following = cursor_of(letters[-1].dead_at, letters[-1].letter_id) if len(letters) == limit else None
    shown = [DeadLetter.of_letter(letter) for letter in letters]
    return json_response(DeadLetters(dead_letters=shown, next=following, **total))


@router.post(
    "/redrive",
    summary="Send dead letters again",
    response_model=Redriven,
    responses=documented(400, 413, 415, 503),
    openapi_extra=json_body(DeadLetterSelection),
)
async def redrive(request: Request) -> Response:
    """Each is sent again as a new message, with a new expiry and the same id."""
    ids = await _selected(request)
    with name_outages():
        redriven, kept = await gateway_of(request).messages.redrive(ids)
    return json_response(Redriven(redriven=redriven, kept=kept))


@router.post(
    "/drop",
    summary="Delete dead letters",
    response_model=Dropped,
    responses=documented(400, 413, 415, 503),
    openapi_extra=json_body(DeadLetterSelection),
)
async def drop(request: Request) -> Response:
    """Deletes them; their messages stay failed or expired."""
    ids = await _selected(request)
    with name_outages():
        return json_response(Dropped(dropped=await gateway_of(request).messages.drop(ids)))


async def _selected(request: Request) -> list[str] | None:
    """The ids in the body; None for all."""
    selection = DeadLetterSelection.parse(await read_large_object(request.scope, request.receive))
    if len(selection.model_fields_set) != 1 or (selection.ids is None and selection.all is None):
        raise InvalidInput("ids", 'give either {"ids": […]} or {"all": true}')
    return selection.ids
