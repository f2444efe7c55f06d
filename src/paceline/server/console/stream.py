"""`/api/v1/console/stream`: the overview, or any page of the console, as server-sent events: each part when it changes.

An event's id holds the version of each part. A reader that reconnects with that id gets what has changed since, from
any process.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import zip_longest
from typing import NamedTuple

from fastapi import Request, Response
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from paceline.clock import uptime
from paceline.errors import PacelineError
from paceline.server.access.model import Scope as AccessScope
from paceline.server.console.pages import MAX_READS, READS, read_page, targets_of
from paceline.server.http.auth import bearer_token
from paceline.server.http.browser import session_secret
from paceline.server.http.logs import STREAM_BEGAN
from paceline.server.http.parameters import WholeNumber, api_router, query
from paceline.server.http.problem import Problem, documented, invalid
from paceline.server.http.services import Services, services_of
from paceline.server.http.streams import Streams
from paceline.server.shapes.console import PARTS, OverviewShown

MAX_STREAMS = 100
"""Per process. Readers beyond that poll."""
EVERY_SECONDS = 2
TICK_SECONDS = 1.0
ALIVE_SECONDS = 5.0
"""The heartbeat interval of a stream: a reader detects a dead one."""
ACCESS_SECONDS = 2.0
"""How often the reader's access is checked."""
RETRY_MS = 2000
VERSION = rf"([0-9a-f]{{12}}(\.[0-9a-f]{{12}}){{0,{MAX_READS - 1}}})?"
router = api_router("/api/v1/console", "console")

EVERY = WholeNumber("every", 2, 60, default=EVERY_SECONDS, description="Seconds between two reads.")
LAST_ID = {
    "type": "string",
    "pattern": f"^{VERSION}$",
    "description": "As the header Last-Event-ID, for readers that can't set one: continues an earlier stream.",
}


@router.get(
    "/stream",
    summary="The installation at a glance, live",
    response_class=StreamingResponse,
    responses={
        200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}, "description": "Server-sent events"},
        **documented(400, 503),
    },
    openapi_extra={"parameters": [query("read", READS), EVERY.document(), query("lastEventId", LAST_ID)]},
)
async def stream(request: Request) -> Response:
    """The overview as server-sent events of the type `overview`, each with the parts that changed. With `read`, what
    those paths answer, as events of the type `page`. `end` is sent when the session or the token has ended."""
    services = services_of(request)
    if services.streams.open >= MAX_STREAMS:
        detail = f"{MAX_STREAMS} readers are connected to this process; read /api/v1/console/overview or page instead"
        raise Problem(503, "too-many-streams", "Too Many Streams", detail, headers={"Retry-After": "30"})
    last_id = request.headers.get("last-event-id") or request.query_params.get("lastEventId", "")
    if not re.fullmatch(VERSION, last_id):
        raise invalid("lastEventId", "is no id of an event; leave it out to begin anew")
    targets = targets_of(request) if "read" in request.query_params else []

    is_first = True

    async def read_parts() -> Snapshot:
        if not targets:
            return overview_snapshot(await services.overview.read())
        nonlocal is_first
        # The page's own read may be newer than a shared one.
        shown, is_first = await read_page(request, targets, shared=not is_first), False
        return Snapshot("page", shown.versions, shown.dump_json)

    events = changes(
        read_parts,
        lambda: may_read(services, request.scope),
        services.streams.ended,
        last_id,
        every=float(EVERY.of(request)),
    )
    return CountedStream(events, services.streams)


class CountedStream(StreamingResponse):
    """A response that is counted among the streams while it is open."""

    def __init__(self, events: AsyncIterator[bytes], streams: Streams) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # For metrics, the response time ends here: a stream is no slow response.
        scope["state"][STREAM_BEGAN] = time.perf_counter()
        self._streams.open += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams.open -= 1


class Snapshot(NamedTuple):
    """The state of a stream: the versions of its parts, and a function for the JSON of some of them."""

    kind: str
    versions: dict[str, str]
    dump_json: Callable[[list[str]], bytes]


def overview_snapshot(shown: OverviewShown) -> Snapshot:
    """The overview, in its parts."""
    members = shown.dump()

    def dump_json(names: list[str]) -> bytes:
        return json.dumps({name: members[name] for name in ["at", *names]}, separators=(",", ":")).encode()

    return Snapshot("overview", dict(zip(PARTS, shown.version.split("."), strict=True)), dump_json)


async def changes(
    read: Callable[[], Awaitable[Snapshot]],
    may_read: Callable[[], Awaitable[bool]],
    ended: asyncio.Event,
    last_id: str = "",
    *,
    every: float = EVERY_SECONDS,
    tick: float = TICK_SECONDS,
    clock: Callable[[], float] = uptime,
) -> AsyncIterator[bytes]:
    """Events until `ended` is set, or until the reader may not read any more. The parts are read `every` so many
    seconds; access and the heartbeat are checked at each tick."""
    known = last_id.split(".")
    yield b"retry: %d\n\n" % RETRY_MS
    sent_at = checked_at = clock()
    shown, read_at = await read(), clock()
    while not ended.is_set():
        if clock() - checked_at >= ACCESS_SECONDS:
            checked_at = clock()
            if not await may_read():
                yield b"event: end\ndata: {}\n\n"
                return
        if clock() - read_at >= every:
            shown, read_at = await read(), clock()
        current = list(shown.versions.values())
        changed = [
            name
            for name, version, before in zip_longest(shown.versions, current, known[: len(current)])
            if version != before
        ]
        if changed:
            known = current
            yield _event(shown.kind, shown.dump_json(changed), ".".join(current))
            sent_at = clock()
        elif clock() - sent_at >= ALIVE_SECONDS:
            yield _event("alive", shown.dump_json([]))
            sent_at = clock()
        try:
            await asyncio.wait_for(ended.wait(), tick)
        except TimeoutError:
            continue


def _event(kind: str, data: bytes, event_id: str | None = None) -> bytes:
    head = "" if event_id is None else f"id: {event_id}\n"
    return b"%bevent: %b\ndata: %b\n\n" % (head.encode(), kind.encode(), data)


async def may_read(services: Services, scope: Scope) -> bool:
    """Whether the stream's token or session is still valid. While the store does not answer, it counts as valid: then
    there is nothing to read, either."""
    secret = bearer_token(scope)
    try:
        if secret is not None:
            caller = await services.authenticator.caller(secret)
        else:
            login = await services.sessions.find(session_secret(scope) or "")
            caller = None if login is None else login.caller
    except PacelineError:
        return True
    return caller is not None and caller.may(AccessScope.READ)
