"""`/admin/rate-limit`: configs, their history, and the cache of them."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from headgate.errors import InvalidInput
from headgate.server.http.body import read_object
from headgate.server.http.parameters import json_body, query
from headgate.server.http.problem import documented, invalid
from headgate.server.http.raw_routes import json_response
from headgate.server.http.services import services_of
from headgate.server.shapes.config import Config, ConfigRequest, Configs, Flushed, History
from headgate.server.shapes.members import CONFIG_NAME
from headgate.slots.model import checked_name

router = APIRouter(prefix="/admin/rate-limit", tags=["config"])

NAME = query("name", CONFIG_NAME | {"description": "Left out, the service's default config."})


@router.get(
    "/config",
    summary="Show the active config",
    response_model=Config,
    responses=documented(400, 404),
    openapi_extra={"parameters": [NAME]},
)
async def show(request: Request) -> Response:
    """The active version."""
    return json_response(Config.of_version(await services_of(request).slots.policy(_name(request))))


@router.post(
    "/config",
    summary="Create or change a config",
    response_model=Config,
    responses=documented(400, 409, 413, 415),
    openapi_extra=json_body(ConfigRequest),
)
async def configure(request: Request) -> Response:
    """Makes a new version active, from the next booking on any node. Booked slots stay where they are.

    A member that is not given keeps its value; `null` removes `calendar`, `maxDelay` or `spread` (then `jitter`). A new
    config needs `maxPerWindow` and a window.
    """
    change = ConfigRequest.parse(await read_object(request.scope, request.receive))
    try:
        version = await services_of(request).slots.change(change.config_name, change.changes())
    except InvalidInput as error:
        if error.field == "window":
            raise invalid("windowSize", error.problem) from None
        raise
    return json_response(Config.of_version(version))


@router.get("/configs", summary="List the configs", response_model=Configs)
async def show_all(request: Request) -> Response:
    """The active version of every config, by name."""
    versions = await services_of(request).slots.configs()
    return json_response(Configs(configs=[Config.of_version(version) for version in versions]))


@router.get(
    "/config/history",
    summary="Show every version of a config",
    response_model=History,
    responses=documented(400, 404),
    openapi_extra={"parameters": [NAME]},
)
async def history(request: Request) -> Response:
    """Every version, newest first; none is ever deleted."""
    return json_response(History.of_versions(await services_of(request).slots.history(_name(request))))


@router.post("/cache/flush", summary="Forget remembered configs", response_model=Flushed)
async def flush(request: Request) -> Response:
    """The next look-up reads the database. Bookings never use the cache, so this matters for showing only."""
    services_of(request).slots.flush()
    return json_response(Flushed(flushed=True))


def _name(request: Request) -> str:
    return checked_name(request.query_params.get("name", services_of(request).settings.slots.default_config), "name")
