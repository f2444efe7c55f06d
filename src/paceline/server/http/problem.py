"""Errors as `application/problem+json` (RFC 9457): the one mapping from errors to statuses."""

from __future__ import annotations

import json
import math
import re
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

import orjson
import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from paceline.durations import format_instant
from paceline.errors import (
    Conflict,
    InvalidInput,
    NotFound,
    PacelineError,
    RateLimitExceeded,
    SlotInUse,
    SlotOwned,
    SlotsExhausted,
    StaleVersion,
    StoreError,
    StoreRefused,
    StoreUnavailable,
)
from paceline.server.access.names import OutsideNames
from paceline.server.apps import cancelling_route
from paceline.server.shapes.shape import InvalidMember

MEDIA_TYPE = "application/problem+json"
INVALID = "Missing/Invalid Arguments"
LONGEST_NAME = 128
LONGEST_DETAIL = 1024

SCHEMA: dict[str, Any] = {
    "title": "Problem",
    "description": "An error, as in RFC 9457.",
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "description": "The kind of problem: a name that never changes."},
        "title": {"type": "string"},
        "status": {"type": "integer", "minimum": 400, "maximum": 599},
        "detail": {"type": "string", "description": "The error, and how to correct it."},
        "field": {"type": "string", "description": "The member, parameter or header that is wrong."},
        "earliest": {
            "type": ["string", "null"],
            "description": "With 503 for lack of slots: the first free time after the horizon.",
        },
        "owner": {
            "type": ["string", "null"],
            "description": "With 409 for a slot that can't be cancelled here: the application that it belongs to.",
        },
    },
}


class Problem(Exception):
    """An error response."""

    def __init__(
        self,
        status: int,
        kind: str,
        title: str,
        detail: str,
        *,
        headers: dict[str, str] | None = None,
        **members: Any,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.headers = headers or {}
        self.body = {
            "type": f"urn:paceline:problem:{kind}",
            "title": title,
            "status": status,
            "detail": detail,
            **members,
        }

    def response(self) -> Response:
        return Response(encoded(self.body), self.status, self.headers, MEDIA_TYPE)


def invalid(field: str, problem: str) -> Problem:
    """400 for a member, parameter or header, by its name on the wire; the caller's own text is truncated."""
    field, problem = _cut(field, LONGEST_NAME), _cut(problem, LONGEST_DETAIL)
    return Problem(400, "invalid-input", INVALID, f"{field}: {problem}", field=field)


def _cut(text: str, maximum: int) -> str:
    return text if len(text) <= maximum else f"{text[:maximum]}…"


def unsupported(media_types: str) -> Problem:
    """415: the route does not take a body of this media type."""
    return Problem(415, "unsupported-media-type", "Unsupported Media Type", f"send Content-Type: {media_types}")


def too_large(limit: int) -> Problem:
    """413. The connection is closed, so that the rest of the body need not be read."""
    detail = f"the request body is larger than {limit} bytes; send less at once, or stream it as NDJSON"
    return Problem(413, "too-large", "Request Body Too Large", detail, headers={"Connection": "close"})


def unexpected() -> Problem:
    """500 without internal details; the log has them."""
    detail = "something failed inside paceline; its log tells more, under this answer's X-Request-ID"
    return Problem(500, "internal-error", "Internal Server Error", detail)


def of(error: PacelineError) -> Problem:
    """The problem that reports `error` to a caller."""
    match error:
        case InvalidMember(field=field, problem=problem):
            return invalid(field, problem)
        case InvalidInput(field=field, problem=problem):
            return invalid(wire_name(field), problem)
        case NotFound(kind=kind):
            return Problem(404, f"{kind.replace(' ', '-')}-not-found", f"{kind.title()} Not Found", str(error))
        case OutsideNames():
            return Problem(403, "forbidden", "Forbidden", str(error))
        case SlotsExhausted(earliest=earliest):
            return _exhausted(str(error), earliest)
        case RateLimitExceeded(decision=decision):
            headers = {"Retry-After": str(math.ceil(decision.retry_after))}
            return Problem(429, "quota-exceeded", "Rate Limit Exceeded", str(error), headers=headers)
        case SlotOwned():
            where = cancelling_route(error.owner or "")
            detail = f"{error}, by {where}" if where else str(error)
            return Problem(409, "slot-owned", "Slot Owned", detail, owner=error.owner)
        case SlotInUse():
            return Problem(409, "slot-in-use", "Slot In Use", str(error))
        case StaleVersion():
            return Problem(412, "stale-version", "Precondition Failed", str(error))
        case Conflict():
            return Problem(409, "conflict", "Conflict", "somebody else changed it at the same time; try again")
        case StoreUnavailable():
            detail = "a store that paceline needs can't be reached; try again, with the same ids"
            return Problem(503, "store-unavailable", "Store Unavailable", detail, headers={"Retry-After": "1"})
        case StoreRefused():
            detail = "a store refuses paceline's login, or does not permit it enough; its log names the setting"
            return Problem(500, "store-refused", "Store Refused", detail)
        case _:
            return unexpected()


def wire_name(field: str) -> str:
    """`max_per_window` as in JSON: `maxPerWindow`. Only the first part of a path is ours; the rest is the caller's."""
    first, rest = re.fullmatch(r"([^.\[]*)(.*)", field, re.DOTALL).groups()  # type: ignore[union-attr]
    head, *words = first.split("_")
    return head + "".join(word.capitalize() for word in words) + rest


def encoded(value: Any) -> bytes:
    """JSON. A lone surrogate, which only a JSON escape can contain, is escaped again instead of an error."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value).encode()


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI's `responses` for these problem statuses."""
    return {
        status: {
            "description": HTTPStatus(status).phrase,
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for status in statuses
    }


def install(app: FastAPI) -> None:
    """Makes every error of the app a problem."""
    app.add_exception_handler(Problem, _expected)
    app.add_exception_handler(PacelineError, _expected)
    app.add_exception_handler(Exception, _unexpected)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(HTTPException, _http)


def response_to(error: Problem | PacelineError, path: str) -> Response:
    """The response to a request to `path` that raised `error`. A store's failure is logged."""
    if isinstance(error, Problem):
        return error.response()
    problem = of(error)
    if isinstance(error, StoreError) and not isinstance(error, StaleVersion):  # which is the caller's error
        structlog.get_logger().error("store failed", path=path, error=repr(error), status=problem.status)
    return problem.response()


async def _expected(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem | PacelineError)
    return response_to(error, request.url.path)


async def _unexpected(_request: Request, _error: Exception) -> Response:
    """The error is raised again after this, and logged there."""
    return unexpected().response()


async def _validation(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    path = [str(part) for part in first["loc"][1:]] or [str(first["loc"][0])]
    return invalid(".".join(path), first["msg"]).response()


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    if error.status_code == 404:
        return Problem(404, "no-such-path", "Not Found", "nothing lives at this path; see /docs").response()
    if error.status_code == 405:
        headers = {"Allow": _allowed(request) or headers.get("Allow") or headers.get("allow") or ""}
        detail = f"this path takes {headers['Allow']}"
        return Problem(405, "method-not-allowed", "Method Not Allowed", detail, headers=headers).response()
    if error.status_code == 400:
        return invalid("body", str(error.detail)).response()
    title = HTTPStatus(error.status_code).phrase
    kind = title.lower().replace(" ", "-")
    return Problem(error.status_code, kind, title, str(error.detail), headers=headers).response()


def _allowed(request: Request) -> str:
    """Every method of the path. The framework's own 405 lists one route's only, and a path may have several."""
    paths = request.app.openapi()["paths"]
    own = request.url.path
    for path in sorted(paths, key=lambda template: ("{" in template, -len(template))):
        if re.fullmatch(re.sub(r"\\{\w+\\}", ".*", re.escape(path)), own):
            return ", ".join(sorted(method.upper() for method in paths[path]))
    return ""


def _exhausted(detail: str, earliest: datetime | None) -> Problem:
    headers = {}
    if earliest is not None:
        # The horizon moves with the clock: after this wait, that slot lies inside it.
        headers["Retry-After"] = str(max(1, math.ceil((earliest - datetime.now(UTC)).total_seconds())))
    return Problem(
        503,
        "slots-exhausted",
        "Slots Exhausted",
        detail,
        headers=headers,
        earliest=None if earliest is None else format_instant(earliest),
    )
