"""`/admin/audit`: the changes of operators."""

from __future__ import annotations

from fastapi import Request, Response

from paceline.server.http.parameters import WholeNumber, api_router
from paceline.server.http.problem import documented
from paceline.server.http.raw_routes import json_response
from paceline.server.http.services import services_of
from paceline.server.shapes.access import ChangeShown

router = api_router("/admin", "access")

LIMIT = WholeNumber("limit", 1, 1000, default=100)
BEFORE = WholeNumber("before", 1, 2**53)


@router.get(
    "/audit",
    summary="Who changed what",
    response_model=list[ChangeShown],
    responses=documented(400),
    openapi_extra={"parameters": [LIMIT.document(), BEFORE.document()]},
)
async def audit(request: Request) -> Response:
    """The last changes that were requested under `/admin` or by a command, newest first.

    `before` (an id) continues an earlier page.
    """
    entries = await services_of(request).audit.recent(LIMIT.of(request), BEFORE.find(request))
    return json_response([ChangeShown.of(entry, id=number) for number, entry in entries])
