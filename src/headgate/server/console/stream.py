"""`/api/v1/console/stream`: the overview as server-sent events, each part when it changes.

An event's id says which version of each part its reader has by then. A reader that comes back with that id gets what
has changed since, from whichever process it reaches.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from headgate.clock import uptime
from headgate.errors import HeadgateError
from headgate.server.access.model import Scope as AccessScope
from headgate.server.http.auth import bearer_token
from headgate.server.http.browser import session_secret
from headgate.server.http.logs import STREAM_BEGAN
from headgate.server.http.parameters import query
from headgate.server.http.problem import Problem, documented, invalid
from headgate.server.http.services import Services, services_of
from headgate.server.http.streams import Streams
from headgate.server.shapes.console import PARTS, OverviewShown

MAX_STREAMS = 100
"""Per process. Readers beyond that poll."""
EVERY_SECONDS = 2.0
ALIVE_SECONDS = 5.0
"""A stream is not silent for longer: its reader can tell that it is dead."""
ACCESS_SECONDS = 2.0
"""How often it is checked whether the reader may still read."""
RETRY_MS = 2000
VERSION = r"([0-9a-f]{12}(\.[0-9a-f]{12}){3})?"
router = APIRouter(prefix="/api/v1/console", tags=["console"])

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
    openapi_extra={"parameters": [query("lastEventId", LAST_ID)]},
)
async def stream(request: Request) -> Response:
    """The overview as server-sent events of the type `overview`, each with the parts that changed. `end` is sent when
    the session or the token has ended."""
    services = services_of(request)
    if services.streams.open >= MAX_STREAMS:
        detail = f"{MAX_STREAMS} readers are connected to this process; read /api/v1/console/overview instead"
        raise Problem(503, "too-many-streams", "Too Many Streams", detail, headers={"Retry-After": "30"})
    last_id = request.headers.get("last-event-id") or request.query_params.get("lastEventId", "")
    if not re.fullmatch(VERSION, last_id):
        raise invalid("lastEventId", "is no id of an event; leave it out to begin anew")
    scope, ended = request.scope, services.streams.ended
    events = overview_events(services.overview.read, lambda: may_read(services, scope), ended, last_id)
    return OverviewStream(events, services.streams)


class OverviewStream(StreamingResponse):
    """A response that is counted among the streams as long as it goes on."""

    def __init__(self, events: AsyncIterator[bytes], streams: Streams) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The time that an answer takes ends here, for metrics: a stream is no slow answer.
        scope["state"][STREAM_BEGAN] = time.perf_counter()
        self._streams.open += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams.open -= 1


async def overview_events(
    read: Callable[[], Awaitable[OverviewShown]],
    may_read: Callable[[], Awaitable[bool]],
    ended: asyncio.Event,
    last_id: str = "",
    *,
    every: float = EVERY_SECONDS,
    clock: Callable[[], float] = uptime,
) -> AsyncIterator[bytes]:
    """Events until `ended` is set, or until the reader may not read any more."""
    versions = dict(zip(PARTS, last_id.split("."), strict=False))
    yield b"retry: %d\n\n" % RETRY_MS
    sent_at = checked_at = clock()
    while not ended.is_set():
        if clock() - checked_at >= ACCESS_SECONDS:
            checked_at = clock()
            if not await may_read():
                yield b"event: end\ndata: {}\n\n"
                return
        shown = await read()
        current = dict(zip(PARTS, shown.version.split("."), strict=True))
        changed = [part for part in PARTS if versions.get(part) != current[part]]
        if changed:
            versions = current
            yield _event("overview", shown.dump(), ["at", *changed], shown.version)
            sent_at = clock()
        elif clock() - sent_at >= ALIVE_SECONDS:
            yield _event("alive", shown.dump(), ["at"])
            sent_at = clock()
        try:
            await asyncio.wait_for(ended.wait(), every)
        except TimeoutError:
            continue


def _event(kind: str, members: dict[str, Any], names: list[str], event_id: str | None = None) -> bytes:
    data = json.dumps({name: members[name] for name in names}, separators=(",", ":"))
    head = "" if event_id is None else f"id: {event_id}\n"
    return f"{head}event: {kind}\ndata: {data}\n\n".encode()


async def may_read(services: Services, scope: Scope) -> bool:
    """Whether the token or the session that the stream was opened with is still good. While the store does not answer,
    it counts as good: then there is nothing to read, either."""
    secret = bearer_token(scope)
    try:
        if secret is not None:
            caller = await services.authenticator.caller(secret)
        else:
            login = await services.sessions.find(session_secret(scope) or "")
            caller = None if login is None else login.caller
    except HeadgateError:
        return True
    return caller is not None and caller.may(AccessScope.READ)
