"""`/admin/audit`: who changed what."""

from __future__ import annotations

from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from headgate.durations import format_instant
from headgate.server.http.problem import documented, invalid
from headgate.server.http.services import services_of
from headgate.server.shapes import members

MAX_ENTRIES = 1000

router = APIRouter(prefix="/admin", tags=["access"])

ENTRIES: dict[str, Any] = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["id", "at", "caller", "method", "path", "requestId", "status", "detail"],
        "properties": {
            "id": {"type": "integer"},
            "at": members.INSTANT,
            "caller": {
                "type": "string",
                "description": "A token's name, `anyone` where none is asked for, or `cli:` and who ran a command.",
            },
            "method": {"type": "string", "description": "`CLI` for a command."},
            "path": {"type": "string", "description": "Or the command."},
            "requestId": {"type": "string"},
            "status": {"type": ["integer", "null"], "description": "null: under way, or its process died."},
            "detail": {
                "type": ["string", "null"],
                "description": "What exactly was asked for: the first thousand characters of the body, if it has one.",
            },
        },
    },
}


def _whole(name: str, maximum: int) -> dict[str, Any]:
    schema = {"type": "integer", "minimum": 1, "maximum": maximum}
    return {"name": name, "in": "query", "required": False, "schema": schema}


@router.get(
    "/audit",
    summary="Who changed what",
    responses={200: {"content": {"application/json": {"schema": ENTRIES}}}, **documented(400)},
    openapi_extra={"parameters": [_whole("limit", MAX_ENTRIES), _whole("before", 2**53)]},
)
async def audit(request: Request) -> Response:
    """The last changes asked for under `/admin` or by a command, newest first.

    `before` (an id) goes on from an earlier page.
    """
    limit = _number(request, "limit", MAX_ENTRIES) or 100
    entries = await services_of(request).audit.recent(limit, _number(request, "before", 2**53))
    shown = [
        {
            "id": number,
            "at": format_instant(entry.at),
            "caller": entry.caller,
            "method": entry.method,
            "path": entry.path,
            "requestId": entry.request_id,
            "status": entry.status,
            "detail": entry.detail,
        }
        for number, entry in entries
    ]
    return Response(orjson.dumps(shown), media_type="application/json")


def _number(request: Request, name: str, maximum: int) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 16 and 1 <= int(text) <= maximum):
        raise invalid(name, f"must be a whole number from 1 to {maximum}")
    return int(text)
