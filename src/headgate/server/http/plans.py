"""`/admin/plans`: the plans of the limiter, changed at run time."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict

from headgate.limits.model import MOST, MOST_LOGGED
from headgate.limits.plan_documents import plan_from
from headgate.server.http import schemas
from headgate.server.http.body import read_object
from headgate.server.http.limits import PLAN_NAME
from headgate.server.http.problem import documented, encoded, invalid
from headgate.server.http.services import services_of
from headgate.server.shapes import members
from headgate.server.wire import plan_json

router = APIRouter(prefix="/admin/plans", tags=["plans"])

_RATE = {
    "description": "Tokens a second: a number above 0, or a fraction such as `2/3`.",
    "anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string", "pattern": r"^[1-9][0-9]*/[1-9][0-9]*$"}],
}
_BUCKET = {"capacity": {"type": "integer", "minimum": 1, "maximum": MOST}, "perSecond": _RATE}
_WINDOW = {"limit": {"type": "integer", "minimum": 1, "maximum": MOST}, "window": members.DURATION}
_OPTIONS: dict[str, Any] = {
    "name": PLAN_NAME | {"description": "If given, the same as in the path."},
    "onError": {"type": ["string", "null"], "enum": ["open", "closed", "fallback", None]},
    "shadow": {"type": ["boolean", "null"], "description": "Decide and count, but never deny."},
}
_LOG = _WINDOW | {"limit": {"type": "integer", "minimum": 1, "maximum": MOST_LOGGED}}
_SPECS: dict[tuple[str, ...], dict[str, Any]] = {
    ("token_bucket",): _BUCKET,
    ("fixed_window", "sliding_window"): _WINDOW,
    ("sliding_log",): _LOG,
}


def _spec(algorithms: tuple[str, ...], required: tuple[str, ...], **more: Any) -> dict[str, Any]:
    own = _SPECS[algorithms]
    return {
        "type": "object",
        "required": [*required, *own],
        "additionalProperties": False,
        "properties": {"algorithm": {"type": "string", "enum": list(algorithms)}, **own, **more},
    }


def _shape(algorithms: tuple[str, ...]) -> dict[str, Any]:
    """A plan with one of these algorithms. Its overrides have the same, unless they name another."""
    others = [_spec(each, ("algorithm",)) for each in _SPECS if each != algorithms]
    overrides = {
        "type": ["object", "null"],
        "description": "Limits of single keys: `{key: {capacity, perSecond}}` or `{key: {limit, window}}`.",
        "additionalProperties": {"anyOf": [_spec(algorithms, ()), *others]},
    }
    return _spec(algorithms, ("algorithm",), **_OPTIONS, overrides=overrides)


PLAN: dict[str, Any] = {
    "title": "PlanRequest",
    "oneOf": [_shape(each) for each in _SPECS],
    "example": {"algorithm": "token_bucket", "capacity": 10, "perSecond": 1},
}
NAME = {"name": "name", "in": "path", "required": True, "schema": PLAN_NAME}


class PlanShown(BaseModel):
    """A plan: `capacity` and `perSecond` of a token bucket, `limit` and `window` of the others."""

    model_config = ConfigDict(extra="allow")

    name: str
    algorithm: str


class PlansShown(BaseModel):
    """All plans, by name."""

    plans: list[PlanShown]


@router.get("", summary="Show all plans", response_model=PlansShown)
async def show_all(request: Request) -> Response:
    """Every plan, sorted by name."""
    plans = await services_of(request).admission.plans.all()
    return _json({"plans": [plan_json(plans[name]) for name in sorted(plans)]})


@router.get(
    "/{name:path}",
    summary="Show a plan",
    response_model=PlanShown,
    responses=documented(404),
    openapi_extra={"parameters": [NAME]},
)
async def show(request: Request) -> Response:
    """The plan of this name."""
    return _json(plan_json(await services_of(request).admission.plans.find(request.path_params["name"])))


@router.put(
    "/{name:path}",
    summary="Create or replace a plan",
    response_model=PlanShown,
    responses=documented(400, 409, 413, 415),
    openapi_extra=schemas.json_body(PLAN) | {"parameters": [NAME]},
)
async def put(request: Request) -> Response:
    """In force here when this is answered, and in every other process within a second or so. What keys have spent
    stays spent: a lowered limit clips it, a raised one adds room at once."""
    name = request.path_params["name"]
    document = await read_object(request.scope, request.receive)
    if document.pop("name", name) != name:
        raise invalid("name", f"is not {name!r}, as the path has it; leave it out")
    plan = plan_from(name, document)
    await services_of(request).admission.plans.put(plan)
    return _json(plan_json(plan))


@router.delete(
    "/{name:path}",
    summary="Delete a plan",
    response_model=PlanShown,
    responses=documented(404, 409),
    openapi_extra={"parameters": [NAME]},
)
async def delete(request: Request) -> Response:
    """Deletes the plan and shows what it was. Calls that name it get 404 from now on."""
    return _json(plan_json(await services_of(request).admission.plans.delete(request.path_params["name"])))


def _json(value: Any) -> Response:
    return Response(encoded(value), media_type="application/json")
