"""`/admin/rate-limit`: configs, their history, and the cache of them."""

from __future__ import annotations

import re
from collections.abc import Collection

from fastapi import Request, Response

from paceline.errors import InvalidInput
from paceline.server.http.body import read_object
from paceline.server.http.parameters import WholeNumber, api_router, json_body, query
from paceline.server.http.problem import documented, invalid
from paceline.server.http.raw_routes import json_response
from paceline.server.http.services import services_of
from paceline.server.shapes.config import Config, ConfigRequest, Configs, Flushed, History
from paceline.server.shapes.members import CONFIG_NAME
from paceline.slots.listing import MOST_LISTED
from paceline.slots.model import LONGEST_NAME, checked_name

router = api_router("/admin/rate-limit", "config")

ANY_VERSION = range(1, 2**31)
"""The versions of `If-Match: *`: the config exists."""
IF_MATCH = {"type": "string", "pattern": r'^(\*|"[0-9]{1,9}"(, ?"[0-9]{1,9}")*)$', "example": '"3"'}
IF_MATCH_MEANS = (
    "The version that you have seen, as the field `ETag` has it; 412 if another one is active. A dry run has no `ETag`."
)
SEARCH = query("search", {"type": "string", "maxLength": LONGEST_NAME, "description": "What their names hold."})
TEMPLATE = query(
    "template",
    {
        "type": "string",
        "maxLength": LONGEST_NAME,
        "description": "Only those that follow this template; empty: only those that follow none.",
    },
)
CURSOR = query("cursor", CONFIG_NAME | {"description": "`next` of the page before."})
LIMIT = WholeNumber("limit", 1, 1000, description="By default all; with another parameter 1000.")
NAME = query("name", CONFIG_NAME | {"description": "By default the service's default config."})


@router.get(
    "/config",
    summary="Show the active config",
    response_model=Config,
    responses=documented(400, 404),
    openapi_extra={"parameters": [NAME]},
)
async def show(request: Request) -> Response:
    """The active version."""
    return _tagged(Config.of_version(await services_of(request).slots.policy(_name(request))))


@router.post(
    "/config",
    summary="Create or change a config",
    response_model=Config,
    responses=documented(400, 409, 412, 413, 415),
    openapi_extra={
        **json_body(ConfigRequest),
        "parameters": [
            {"name": "If-Match", "in": "header", "required": False, "schema": IF_MATCH, "description": IF_MATCH_MEANS},
            {
                "name": "If-None-Match",
                "in": "header",
                "required": False,
                "schema": {"type": "string", "enum": ["*"]},
                "description": "Only create the config; 412 if it exists.",
            },
        ],
    },
)
async def configure(request: Request) -> Response:
    """Makes a new version active, from the next booking on any node. Booked slots stay where they are.

    A member that is not given keeps its value; `null` removes `calendar`, `maxDelay`, `follow`, `spread` (then
    `jitter`) or `firstWindow` (then `proportional`). A new config needs `maxPerWindow` and a window. `warnings` lists
    the booked slots that the change leaves past their horizon, in closed windows or above the limit; with `dryRun`
    nothing is changed. A calendar that closes every window is refused. With `If-Match`, 412 if another version is
    active; with `If-None-Match: *`, 412 if the config exists.
    """
    expected = _expected_versions(request)
    change = ConfigRequest.parse(await read_object(request.scope, request.receive))
    slots, changes = services_of(request).slots, change.changes()
    try:
        version, warnings = await slots.preview(change.config_name, changes, if_version=expected)
        if not change.dry_run:
            version = await slots.change(change.config_name, changes, if_version=expected)
    except InvalidInput as error:
        if error.field == "window":
            raise invalid("windowSize", error.problem) from None
        raise
    config = Config.of_change(version, warnings, dry_run=change.dry_run)
    # The version of a dry run does not exist: as a tag it would later match another caller's.
    return json_response(config) if change.dry_run else _tagged(config)


@router.get(
    "/configs",
    summary="List and search the configs",
    response_model=Configs,
    responses=documented(400),
    openapi_extra={"parameters": [SEARCH, TEMPLATE, LIMIT.document(), CURSOR]},
)
async def show_all(request: Request) -> Response:
    """The active versions of configs, by name: all of them, or with any parameter a page."""
    given, limit = request.query_params, LIMIT.find(request)
    slots, search, template = services_of(request).slots, given.get("search", ""), given.get("template")
    for name, text in (("search", search), ("template", template)):
        if text:
            checked_name(text, name)
    if limit is None and not given:
        return json_response(Configs(configs=[Config.of_version(version) for version in await slots.configs()]))
    limit, cursor = limit or MOST_LISTED, given.get("cursor")
    after = None if cursor is None else checked_name(cursor, "cursor")
    page = await slots.search_configs(search, template=template, after=after, limit=limit)
    following = page[-1].version.name if len(page) == limit else None
    return json_response(Configs(configs=[Config.of_listed(config) for config in page], next=following))


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


@router.post("/cache/flush", summary="Flush the cache of configs", response_model=Flushed)
async def flush(request: Request) -> Response:
    """Empties the cache: the next look-up reads the database. Bookings never use the cache."""
    services_of(request).slots.flush()
    return json_response(Flushed(flushed=True))


def _name(request: Request) -> str:
    return checked_name(request.query_params.get("name", services_of(request).settings.slots.default_config), "name")


def _tagged(config: Config) -> Response:
    """The response, with the version as its entity tag."""
    response = json_response(config)
    response.headers["ETag"] = f'"{config.version}"'
    return response


def _expected_versions(request: Request) -> Collection[int] | None:
    """The versions in `If-Match`; 0, for no version yet, with `If-None-Match: *`; None if neither is sent.

    Raises:
        Problem: a field is wrong, or both are sent.
    """
    values, unless = (request.headers.getlist(field) for field in ("If-Match", "If-None-Match"))
    if unless:
        if unless != ["*"]:
            raise invalid("If-None-Match", "must be *, which only creates; use If-Match for versions")
        if values:
            raise invalid("If-None-Match", "and If-Match exclude each other; send one of the two")
        return {0}
    if not values:
        return None
    text = ", ".join(values).strip()
    if text == "*":
        return ANY_VERSION
    tags = [tag.strip() for tag in text.split(",")]
    if len(text) > 1000 or not all(re.fullmatch(r'"[0-9]{1,9}"', tag) for tag in tags):
        raise invalid("If-Match", 'must be the version in quotes, such as "3", as the field ETag has it')
    # Versions count from 1; 0 would mean that there is none yet.
    return {int(tag[1:-1]) for tag in tags} - {0}
