"""`/admin/flow`: what arrives, waits, runs and leaves."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fastapi import Request, Response

from paceline.dispatch.config import checked_type
from paceline.server.access.ports import AuditEntry
from paceline.server.http.parameters import api_router, query
from paceline.server.http.problem import documented, invalid
from paceline.server.http.raw_routes import json_response
from paceline.server.http.services import Services, services_of
from paceline.server.rollups.flows import Minutes
from paceline.server.shapes import dispatch, members
from paceline.server.shapes.flow import FlowShown, members_of

router = api_router("/admin/flow", "flow")

MIN_LIMIT, MAX_LIMIT = 0.001, 1_000_000
MARKS = 1000
"""Entries of the audit that are searched for changes of a flow's settings."""
ITEM_TYPE = query("itemType", dispatch.ITEM_TYPE | {"description": "The flow of this queue, …"})
TRIED = query(
    "limit",
    {
        "type": "number",
        "minimum": MIN_LIMIT,
        "maximum": MAX_LIMIT,
        "description": "With `itemType`: `limit` and `doneBy` as if so many might begin in a second.",
    },
)
CONFIG = query("configName", members.CONFIG_NAME | {"description": "… or of this config."})


@router.get(
    "",
    summary="What arrives, waits, runs and leaves",
    response_model=FlowShown,
    responses=documented(400, 404),
    openapi_extra={"parameters": [ITEM_TYPE, CONFIG, TRIED]},
)
async def show(request: Request) -> Response:
    """A queue or a config now, per second in the last quarter of an hour, per minute in the last 24 hours, and what is
    due in the next quarter of an hour. All processes show the same: it is counted in the database."""
    services, parameters = services_of(request), request.query_params
    item_type, name = parameters.get("itemType"), parameters.get("configName")
    if (item_type is None) == (name is None):
        raise invalid("itemType", "give itemType or configName, and not both")
    if item_type is not None:
        flow = await services.flows.queue(checked_type(item_type))
        periods = await services.rollups.flow_minutes(item_type)
        minutes = Minutes.of(periods, item_type, flow.at.timestamp())
        if (tried := _tried(parameters.get("limit"))) is not None:
            flow = flow.under(tried)
    elif "limit" in parameters:
        raise invalid("limit", "is tried with itemType; of a config, POST /api/v1/slots/replan tries one with dryRun")
    else:
        flow, minutes = await services.flows.config(await services.slots.policy(name or "")), None
    return json_response(FlowShown.of_all(flow, minutes, await _marks(services, flow.name, flow.arrived.start)))


async def _marks(services: Services, name: str, since: int) -> Sequence[AuditEntry]:
    """The changes since then whose path, command or config names the flow; without what was only tried."""
    named = re.compile(rf"(^|[/ =]){re.escape(name)}($|[/ ?])")
    marks = []
    for _, entry in await services.audit.recent(MARKS):
        members = members_of(entry)
        names_it = named.search(entry.path) or members.get("configName") == name
        if names_it and entry.at.timestamp() >= since and entry.method != "GET" and members.get("dryRun") is not True:
            marks.append(entry)
    return marks[::-1]


def _tried(text: str | None) -> float | None:
    """The limit that is tried.

    Raises:
        Problem: it is no such number.
    """
    if text is None:
        return None
    try:
        limit = float(text)
    except ValueError:
        limit = 0.0
    if not MIN_LIMIT <= limit <= MAX_LIMIT:
        raise invalid("limit", f"must be a number from {MIN_LIMIT} to {MAX_LIMIT}")
    return limit
