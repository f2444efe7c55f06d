"""`/api/v1/console`: what the console's first page shows, in one answer each."""

from __future__ import annotations

import time

from fastapi import Request, Response

from paceline.server.http.parameters import WholeNumber, api_router, query
from paceline.server.http.problem import documented, invalid
from paceline.server.http.raw_routes import json_response
from paceline.server.http.services import services_of
from paceline.server.rollups.history import RANGES
from paceline.server.shapes import members
from paceline.server.shapes.console import HeatMapShown, HistoryShown, OverviewShown
from paceline.slots.forecast.heat_map import MAX_DAYS

router = api_router("/api/v1/console", "console")

AHEAD_POINTS = 24
AHEAD_SHARE = 3
"""What is planned covers a third of the span of the history."""
MAX_NAMES = 200
"""Configs that a chart offers."""
DAYS = WholeNumber("days", 1, MAX_DAYS, default=7)
RANGE = {
    "type": "string",
    "enum": list(RANGES),
    "default": "PT15M",
    "description": "How far back: a quarter of an hour, six hours, a day, a week.",
}


@router.get("/overview", summary="The installation at a glance", response_model=OverviewShown)
async def overview(request: Request) -> Response:
    """Dependencies, numbers of all processes, queues, and the next windows of the default config."""
    return json_response(await services_of(request).overview.read())


@router.get(
    "/history",
    summary="What happened over time",
    response_model=HistoryShown,
    responses=documented(400),
    openapi_extra={"parameters": [query("range", RANGE)]},
)
async def history(request: Request) -> Response:
    """What all processes booked, decided and executed: by the minute up to six hours, by ten minutes beyond. Other
    processes write once a minute, so the last minute may still grow."""
    services, chosen = services_of(request), request.query_params.get("range", "PT15M")
    if chosen not in RANGES:
        raise invalid("range", f"must be one of {', '.join(RANGES)}")
    lines = await services.rollups.history(RANGES[chosen])
    now = int(time.time())
    times = [now + RANGES[chosen] // AHEAD_SHARE * n // AHEAD_POINTS for n in range(AHEAD_POINTS + 1)]
    item_types = [config.item_type for config in await services.queue.configs()]
    configs = await services.slots.search_configs(template="", limit=MAX_NAMES)
    left = {name: (await services.flows.queue(name)).left(times) for name in item_types}
    return json_response(
        HistoryShown.of_history(
            lines,
            limit_per_second=sum(sum(app.call_limits.values()) for app in services.apps.values()) or None,
            ahead={name: list(zip(times, counts, strict=True)) for name, counts in left.items() if counts[0]},
            config_names=[config.version.name for config in configs],
            plan_names=await services.admission.plans.all(),
            item_types=item_types,
        )
    )


@router.get(
    "/heat-map",
    summary="How full the next days are",
    response_model=HeatMapShown,
    responses=documented(400, 404),
    openapi_extra={"parameters": [query("configName", members.CONFIG_NAME), DAYS.document()]},
)
async def show_heat_map(request: Request) -> Response:
    """What is booked in each hour of the next days, and how much may be."""
    services = services_of(request)
    name = request.query_params.get("configName", services.settings.slots.default_config)
    return json_response(HeatMapShown.of_heat_map(await services.slots.heat_map(name, DAYS.of(request))))
