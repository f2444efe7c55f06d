"""`/admin/plans`: the plans of the limiter, changed at run time."""

from __future__ import annotations

from fastapi import Request, Response

from paceline.limits.plan_documents import plan_from
from paceline.server.http.body import read_json
from paceline.server.http.parameters import api_router, json_body, path
from paceline.server.http.problem import documented, invalid
from paceline.server.http.raw_routes import json_response
from paceline.server.http.services import services_of
from paceline.server.shapes.limits import MAX_OVERRIDES, PLAN_NAME, PLAN_REQUEST, PlanShown, PlansShown

router = api_router("/admin/plans", "plans")

NAME = path("name", PLAN_NAME)


@router.get("", summary="Show all plans", response_model=PlansShown)
async def show_all(request: Request) -> Response:
    """Every plan, sorted by name."""
    plans = await services_of(request).admission.plans.all()
    return json_response(PlansShown(plans=[PlanShown.of_plan(plans[name]) for name in sorted(plans)]))


@router.get(
    "/{name:path}",
    summary="Show a plan",
    response_model=PlanShown,
    responses=documented(404),
    openapi_extra={"parameters": [NAME]},
)
async def show(request: Request) -> Response:
    """The plan of this name."""
    plan = await services_of(request).admission.plans.find(request.path_params["name"])
    return json_response(PlanShown.of_plan(plan))


@router.put(
    "/{name:path}",
    summary="Create or replace a plan",
    response_model=PlanShown,
    responses=documented(400, 409, 413, 415),
    openapi_extra=json_body(PLAN_REQUEST) | {"parameters": [NAME]},
)
async def put(request: Request) -> Response:
    """Applies in this process at once, and in every other within about a second. Keys keep what they have spent: a
    lowered limit clips it, a raised one adds room at once."""
    name = request.path_params["name"]
    document = await read_json(request.scope, request.receive)
    if isinstance(document, str):
        document = {"rate": document}
    elif not isinstance(document, dict):
        raise invalid("body", 'must be a JSON object, or a rate such as "10/minute"')
    if document.pop("name", name) != name:
        raise invalid("name", f"is not {name!r}, as the path has it; leave it out")
    overrides = document.get("overrides")
    if isinstance(overrides, dict) and len(overrides) > MAX_OVERRIDES:
        fix = "give keys with the same limit a plan of their own, or divide the keys among several plans"
        raise invalid("overrides", f"has {len(overrides)} keys; over HTTP, a plan has at most {MAX_OVERRIDES}: {fix}")
    plan = plan_from(name, document)
    await services_of(request).admission.plans.put(plan)
    return json_response(PlanShown.of_plan(plan))


@router.delete(
    "/{name:path}",
    summary="Delete a plan",
    response_model=PlanShown,
    responses=documented(404, 409),
    openapi_extra={"parameters": [NAME]},
)
async def delete(request: Request) -> Response:
    """Deletes the plan and returns it. Calls with its name get 404 from now on."""
    plan = await services_of(request).admission.plans.delete(request.path_params["name"])
    return json_response(PlanShown.of_plan(plan))
