"""`/api/v1/console/page`: all that a page of the console reads from the API, in one answer."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import unquote

import structlog
from fastapi import Request, Response
from starlette.types import ASGIApp, Message, Receive, Scope

from paceline.durations import format_instant
from paceline.server.access.model import Caller, refusal
from paceline.server.http.parameters import api_router, query
from paceline.server.http.problem import Problem, documented, encoded, invalid, unexpected
from paceline.server.http.services import FIELDS, SERVICES, services_of
from paceline.server.shapes.console import PageShown
from paceline.server.shared_reads import SharedReads

MAX_READS = 16
MAX_PART_BYTES = 4 * 1024 * 1024
TARGET = r"/(api|admin)/[!-~]{0,4000}"
NOT_READ = re.compile(r"/api/v1/console/(stream|page)(\?.*)?")
"""Streams and pages, which can't be parts of a page."""

router = api_router("/api/v1/console", "console")

READS: dict[str, Any] = {
    "type": "array",
    "items": {"type": "string", "pattern": f"^{TARGET}$"},
    "minItems": 1,
    "maxItems": MAX_READS,
    "description": "A path of this API, with its query, that answers GET with JSON. Given once for each part.",
}


KEPT = ("type", "asgi", "http_version", "app", SERVICES, "scheme", "client", "server")
"""The members of a page's ASGI scope that its parts inherit."""


class Part(NamedTuple):
    """What a path answered: JSON, or a problem document."""

    status: int
    body: bytes

    @property
    def version(self) -> str:
        """A short text that differs when the part does."""
        return hashlib.sha256(b"%d %b" % self).hexdigest()[:12]


class PageRead(NamedTuple):
    """The parts of a page at a time, by their paths."""

    at: str
    parts: dict[str, Part]

    @property
    def versions(self) -> dict[str, str]:
        return {target: part.version for target, part in self.parts.items()}

    def dump_json(self, targets: list[str], **members: str) -> bytes:
        """The parts of these paths as JSON, in one line."""
        parts = b",".join(b'%b:{"status":%d,"body":%b}' % (encoded(target), *self.parts[target]) for target in targets)
        head = json.dumps({**members, "at": self.at}, separators=(",", ":")).encode()
        return b'%b,"parts":{%b}}' % (head[:-1], parts)


def targets_of(request: Request) -> list[str]:
    """The paths that a request names, each once.

    Raises:
        Problem: There is none, there are too many, or one is no path of the API.
    """
    targets = list(dict.fromkeys(request.query_params.getlist("read")))
    if not 1 <= len(request.query_params.getlist("read")) <= MAX_READS:
        raise invalid("read", f"must be given 1 to {MAX_READS} times")
    for target in targets:
        if not re.fullmatch(TARGET, target):
            raise invalid("read", "must be a path under /api/ or /admin/, in ASCII, as in /api/v1/slots?limit=50")
    return targets


@router.get(
    "/page",
    summary="Several answers of the API in one",
    response_model=PageShown,
    responses=documented(400),
    openapi_extra={"parameters": [query("read", READS) | {"required": True}]},
)
async def page(request: Request) -> Response:
    """What GET of each path answers the caller, read at once. `version` is for the stream's `lastEventId`."""
    targets = targets_of(request)
    shown = await read_page(request, targets)
    body = shown.dump_json(targets, version=".".join(shown.versions.values()))
    return Response(body, media_type="application/json")


async def read_page(request: Request, targets: list[str], *, shared: bool = False) -> PageRead:
    """The parts as the caller of a request may see them, now; or at most a second ago, if reads may be `shared` with
    other callers with the same access."""
    reads: SharedReads[Part] = services_of(request).page_reads
    scopes = request.scope["state"]["scopes"]
    # Sequentially: a page takes one connection of the pool, however many parts it has.
    get = reads.get if shared else reads.renew
    parts = {target: await get((scopes, target), partial(_read, request, target)) for target in targets}
    return PageRead(format_instant(datetime.now(UTC)), parts)


async def _read(request: Request, target: str) -> Part:
    path = unquote(target.partition("?")[0])
    if NOT_READ.fullmatch(path):
        return _problem(invalid("read", f"{path} can't be a part of a page"))
    state = request.scope["state"]
    detail = refusal(Caller(state["caller"], state["scopes"], services_of(request).names), "GET", path)
    if detail is not None:
        return _problem(Problem(403, "forbidden", "Forbidden", detail))
    answer = _Answer()
    endpoints: ASGIApp = request.app.endpoints
    try:
        await endpoints(_scope(request, path, target), _no_body(), answer.send)
    except _Unreadable as refused:
        return _problem(invalid("read", f"{path} {refused}"))
    except Exception:
        structlog.get_logger().exception("a part of a page could not be read", path=path)
        return _problem(unexpected())
    return Part(answer.status, answer.body.replace(b"\n", b""))


class _Unreadable(Exception):
    """An answer that is no part of a page."""


class _Answer:
    """Collects an endpoint's response, and aborts it if it is no JSON document or too large."""

    def __init__(self) -> None:
        self.status = 500
        self.body = b""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if b"json" not in dict(message["headers"]).get(b"content-type", b"").split(b"x-ndjson")[0]:
                raise _Unreadable("does not answer with a JSON document")
        self.body += message.get("body", b"")
        if len(self.body) > MAX_PART_BYTES:
            raise _Unreadable(f"answers with more than {MAX_PART_BYTES} bytes")


def _scope(request: Request, path: str, target: str) -> Scope:
    scope = request.scope
    kept = {name: scope[name] for name in KEPT}
    state = {name: scope["state"][name] for name in ("caller", "scopes", "request_id")}
    raw_path, _, raw_query = target.partition("?")
    return {
        **kept,
        "method": "GET",
        "path": path,
        "raw_path": raw_path.encode(),
        "root_path": "",
        "query_string": raw_query.encode(),
        "headers": [],
        FIELDS: {},
        "state": state,
    }


def _no_body() -> Receive:
    """Receives an empty body, and then nothing more: the reader stays."""
    left = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Message:
        return left.pop() if left else await asyncio.get_running_loop().create_future()

    return receive


def _problem(refusal: Problem) -> Part:
    response = refusal.response()
    return Part(response.status_code, bytes(response.body))
