"""Who may call, and a record of what they change under `/admin`."""

from __future__ import annotations

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headgate.errors import HeadgateError
from headgate.server.access.model import ANYONE, Caller, needed_scope
from headgate.server.http import problem
from headgate.server.http.browser import refuse_other_names, refuse_other_sites, session_secret
from headgate.server.http.problem import Problem
from headgate.server.http.services import Services, services

GUARDED = ("/api", "/admin")
READING = ("GET", "HEAD", "OPTIONS")
HARMLESS = ("/health/", "/q/health/")
MOST_HEADER_BYTES = 32 * 1024
MOST_NOTED_BYTES = 4000
"""Of a body, for the audit: enough for a thousand characters."""


class AccessGuard:
    """Lets a request pass if its bearer token, or the token its session stands for, has the scope it needs, or if there
    are no tokens at all; and if its caller is within the service's own limits. No body is read before that.

    A change under `/admin` is recorded with the token's name before it is made, and with its status and the beginning
    of its body after: one that can't be recorded is not made.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._log = structlog.get_logger()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close"})  # there is none here
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        told = services(scope)
        guarded = scope["path"].startswith(GUARDED)
        try:
            caller = await (_identified(told, scope) if guarded else _anyone(told, scope))
        except Problem as refusal:
            await refusal.response()(scope, receive, send)
            return
        except HeadgateError as error:
            await problem.of(error).response()(scope, receive, send)
            return
        if scope["path"].startswith("/admin") and scope["method"] not in READING:
            await self._audited(told, caller, scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _audited(self, told: Services, caller: Caller, scope: Scope, receive: Receive, send: Send) -> None:
        status = 500
        asked = b""

        async def heard() -> Message:
            nonlocal asked
            message = await receive()
            asked += message.get("body", b"")[: MOST_NOTED_BYTES - len(asked)]
            return message

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        request_id = scope.get("state", {}).get("request_id", "")
        try:
            number = await told.audit.begin(caller.name, scope["method"], scope["path"], request_id)
        except HeadgateError as error:
            refusal = problem.of(error)
            self._log.error(
                "a change could not be recorded, and was not made",
                path=scope["path"],
                error=repr(error),
                status=refusal.status,
                request_id=request_id,
            )
            await refusal.response()(scope, receive, send)
            return
        try:
            await self._app(scope, heard, noted)
        finally:
            try:
                await told.audit.end(number, status, asked.decode("utf-8", "replace") or None)
            except HeadgateError:
                self._log.warning("an audit entry was left open", audit=number, status=status, request_id=request_id)


async def _anyone(told: Services, scope: Scope) -> Caller:
    """Admits a request to a path that asks for no token."""
    if told.gate.is_open and not scope["path"].startswith(HARMLESS):
        refuse_other_names(scope)
    await told.ingress.admit(scope, ANYONE)
    return ANYONE


async def _identified(told: Services, scope: Scope) -> Caller:
    """Admits a request to a path that asks for a token; who makes it."""
    method: str = scope["method"]
    secret = _presented(scope)
    session = session_secret(scope) if secret is None else None
    if session is None:
        caller = await told.gate.caller(secret or "")
    else:
        login = await told.sessions.find(session)
        caller = None if login is None else login.caller
    if caller is None:
        detail = "send Authorization: Bearer and a valid token" if session is None else "the session has ended"
        challenge = {"WWW-Authenticate": "Bearer"}
        raise await told.ingress.failed(scope) or Problem(
            401, "unauthorized", "Unauthorized", detail, headers=challenge
        )
    if caller is ANYONE:
        refuse_other_names(scope)
        refuse_other_sites(scope, with_cookie=False, reading=method in READING)
    elif session is not None and method not in READING:
        refuse_other_sites(scope, with_cookie=True)
    await told.ingress.admit(scope, caller)
    needed = needed_scope(method, scope["path"])
    if needed is not None and not caller.may(needed):
        raise Problem(403, "forbidden", "Forbidden", f"this needs a token with the scope {needed.value}")
    return caller


def _presented(scope: Scope) -> str | None:
    """The bearer token. Other schemes are none of ours: a proxy may have its own login beside the session's cookie."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, token = bytes(value).partition(b" ")
            if scheme.lower() == b"bearer":
                return token.strip().decode("latin-1")
    return None


class HeaderLimit:
    """Refuses requests whose header fields are larger, together, than anybody needs."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and sum(len(n) + len(v) for n, v in scope["headers"]) > MOST_HEADER_BYTES:
            detail = f"the header fields are larger than {MOST_HEADER_BYTES} bytes"
            refusal = Problem(431, "headers-too-large", "Request Header Fields Too Large", detail)
            await refusal.response()(scope, receive, send)
        else:
            await self._app(scope, receive, send)
