"""`/admin/sessions`: who is logged in to the console."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Request, Response

from paceline.server.http.parameters import api_router
from paceline.server.http.problem import documented
from paceline.server.http.raw_routes import json_response
from paceline.server.http.services import services_of
from paceline.server.shapes.access import OpenSession

router = api_router("/admin/sessions", "access")
Chosen = Annotated[str, Path(max_length=64, description="A session's id; or a caller's name, to end all of theirs.")]


@router.get("", summary="Who is logged in to the console", response_model=list[OpenSession])
async def list_sessions(request: Request) -> Response:
    """The sessions that have not ended, the newest first."""
    return json_response([OpenSession.of_session(each) for each in await services_of(request).sessions.all()])


@router.delete("/{chosen}", summary="End sessions", response_model=list[OpenSession], responses=documented(400, 404))
async def end_sessions(request: Request, chosen: Chosen) -> Response:
    """Ends a session, or all of a caller, in every process at once; the answer has those that were ended."""
    return json_response([OpenSession.of_session(each) for each in await services_of(request).sessions.end(chosen)])
