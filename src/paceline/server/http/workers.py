"""`/admin/workers`: the workers of each queue."""

from __future__ import annotations

from fastapi import Request, Response

from paceline.server.http.parameters import api_router
from paceline.server.http.raw_routes import json_response
from paceline.server.http.services import services_of
from paceline.server.shapes.dispatch import WorkersShown

router = api_router("/admin/workers", "dispatch")


@router.get("", summary="List the workers", response_model=WorkersShown)
async def workers(request: Request) -> Response:
    """Every worker with its last heartbeat. `unattended` has the item types without live workers."""
    return json_response(WorkersShown.of_workers(*await services_of(request).queue.workers()))
