"""`/admin/rate-limit`: configs, their history, and the cache of them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from headgate.server.field_names import typed_as
from headgate.server.http import schemas
from headgate.server.http.body import only, read_object, required
from headgate.server.http.problem import documented, invalid
from headgate.server.http.services import services_of
from headgate.server.shapes import members
from headgate.server.wire import config_json

MEMBERS = ("configName", "maxPerWindow", "windowSize", "windowSizeSecs", "spread", "calendar", "maxDelay")
FIELDS = {"maxPerWindow": "max_per_window", "spread": "spread", "calendar": "calendar", "maxDelay": "max_delay"}

router = APIRouter(prefix="/admin/rate-limit", tags=["config"])

_CLOCK = {"type": "string", "pattern": "^(([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9])?|24:00)$"}
CALENDAR: dict[str, Any] = {
    "type": ["object", "null"],
    "required": ["zone"],
    "additionalProperties": False,
    "description": "Open time; null, always. Work is deferred to it, never dropped.",
    "properties": {
        "zone": {"type": "string", "minLength": 1, "description": "An IANA name, such as America/New_York."},
        "open": {
            "type": "array",
            "minItems": 1,
            "maxItems": 1000,
            "description": "When it is open; left out, day and night. `to` at or before `from` is the next day.",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "days": {
                        "type": "array",
                        "minItems": 1,
                        "items": {"enum": ["MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN"]},
                    },
                    "from": _CLOCK,
                    "to": _CLOCK,
                },
            },
        },
        "holidays": {"type": ["string", "null"], "description": "A country whose bank holidays are closed: US, US-NY."},
        "blackouts": {
            "type": "array",
            "maxItems": 1000,
            "items": {
                "type": "object",
                "required": ["from", "to"],
                "additionalProperties": False,
                "properties": {"from": members.INSTANT, "to": members.INSTANT},
            },
        },
    },
}
CONFIG_REQUEST: dict[str, Any] = {
    "title": "ConfigRequest",
    "type": "object",
    "required": ["configName"],
    "description": "What is not given stays as it is; `null` removes. A new config needs `maxPerWindow` and the "
    "window's length, as `windowSize` or as `windowSizeSecs`.",
    "not": {"required": ["windowSize", "windowSizeSecs"]},
    "additionalProperties": False,
    "properties": {
        "configName": members.CONFIG_NAME | {"description": "The config to create or change.", "example": "payments"},
        "maxPerWindow": {"type": "integer", "minimum": 1, "maximum": 2**31 - 1},
        "windowSize": members.DURATION,
        "windowSizeSecs": {"type": "number", "minimum": 0.01, "maximum": 366 * 86_400, "multipleOf": 0.001},
        "spread": {"type": ["string", "null"], "enum": ["jitter", "even", None]},
        "calendar": CALENDAR,
        "maxDelay": members.DURATION | {"type": ["string", "null"]},
    },
}
NAME = schemas.query("name", members.CONFIG_NAME | {"description": "Left out, the service's default config."})


@router.get(
    "/config",
    summary="Show the active config",
    response_model=schemas.Config,
    responses=documented(400, 404),
    openapi_extra={"parameters": [NAME]},
)
async def show(request: Request) -> Response:
    """The active version."""
    services = services_of(request)
    with typed_as(config_name="name"):
        version = await services.slots.policy(_name(request))
    return Response(orjson.dumps(config_json(version, active=True)), media_type="application/json")


@router.post(
    "/config",
    summary="Create or change a config",
    response_model=schemas.Config,
    responses=documented(400, 409, 413, 415),
    openapi_extra=schemas.json_body(CONFIG_REQUEST),
)
async def configure(request: Request) -> Response:
    """Makes a new version active, from the next booking on any node. Booked slots stay where they are.

    A member that is not given keeps its value; `null` removes `calendar`, `maxDelay` or `spread` (then `jitter`). A new
    config needs `maxPerWindow` and a window.
    """
    value = await read_object(request.scope, request.receive)
    only(value, MEMBERS)
    name = required(value, "configName")
    with typed_as(window="windowSize", max_per_window="maxPerWindow", max_delay="maxDelay", config_name="configName"):
        version = await services_of(request).slots.change(name, changes_of(value))
    return Response(orjson.dumps(config_json(version, active=True)), media_type="application/json")


@router.get("/configs", summary="List the configs", response_model=schemas.Configs)
async def show_all(request: Request) -> Response:
    """The active version of every config, by name."""
    body = {"configs": [config_json(version, active=True) for version in await services_of(request).slots.configs()]}
    return Response(orjson.dumps(body), media_type="application/json")


@router.get(
    "/config/history",
    summary="Show every version of a config",
    response_model=schemas.History,
    responses=documented(400, 404),
    openapi_extra={"parameters": [NAME]},
)
async def history(request: Request) -> Response:
    """Every version, newest first; none is ever deleted."""
    name = _name(request)
    with typed_as(config_name="name"):
        versions = await services_of(request).slots.history(name)
    body = {"configName": name, "versions": [config_json(each, active=each is versions[0]) for each in versions]}
    return Response(orjson.dumps(body), media_type="application/json")


@router.post("/cache/flush", summary="Forget remembered configs", response_model=schemas.Flushed)
async def flush(request: Request) -> Response:
    """The next look-up reads the database. Bookings never use the cache, so this matters for showing only."""
    services_of(request).slots.flush()
    return Response(orjson.dumps({"flushed": True}), media_type="application/json")


def changes_of(value: dict[str, Any]) -> dict[str, Any]:
    """What a config request changes, by the names of `WindowPolicy`."""
    calendar = value.get("calendar")
    if calendar is not None and not isinstance(calendar, dict):
        raise invalid("calendar", "must be an object")
    changes = {name: value[member] for member, name in FIELDS.items() if member in value}
    if "windowSize" in value or "windowSizeSecs" in value:
        changes["window"] = _window(value)
    return changes


def _window(value: dict[str, Any]) -> str | timedelta:
    if "windowSize" in value and "windowSizeSecs" in value:
        raise invalid("windowSize", "and windowSizeSecs say the same; give one of the two")
    if "windowSize" in value:
        text: str = value["windowSize"]
        return text
    seconds = value["windowSizeSecs"]
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise invalid("windowSizeSecs", "must be a number of seconds")
    if not 0.01 <= seconds <= 366 * 86_400:
        raise invalid("windowSizeSecs", "must be from 0.01 to 31622400 seconds")
    milliseconds = round(seconds * 1000)
    if abs(milliseconds - seconds * 1000) > 1e-6:
        raise invalid("windowSizeSecs", "must be a whole number of milliseconds")
    return timedelta(milliseconds=milliseconds)


def _name(request: Request) -> str:
    return request.query_params.get("name", services_of(request).settings.slots.default_config)
