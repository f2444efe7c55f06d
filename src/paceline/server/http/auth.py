"""Authenticates requests, checks their scope, and records the changes of operators."""

from __future__ import annotations

from itertools import chain

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.errors import PacelineError
from paceline.server.access.model import ANYONE, Caller, granted, refusal
from paceline.server.access.model import Scope as AccessScope
from paceline.server.apps import is_audited_path
from paceline.server.bound.services import bound_services
from paceline.server.http import problem
from paceline.server.http.browser import (
    BROWSER_FIELDS,
    LONGEST_HOST,
    is_local_name,
    refuse_other_sites,
    session_secret,
)
from paceline.server.http.ingress import client_address
from paceline.server.http.parameters import CALLBACKS
from paceline.server.http.problem import Problem
from paceline.server.http.services import FIELDS, SERVICES, Services

TOKEN_PATHS = ("/api", "/admin")
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
METRICS_PATHS = ("/metrics", "/q/metrics")
HEALTH_PATHS = ("/health/", "/q/health/")
MAX_HEADER_BYTES = 32 * 1024
MAX_AUDIT_BYTES = 4000
"""The maximum of a body in the audit: enough for a thousand characters."""


class AccessGuard:
    """Lets a request pass if its bearer token, or its session's token, has the required scope, or if there are no
    tokens at all; and if its caller is within the service's own limits. No body is read before that. Too large header
    fields are refused first.

    A change under `/admin` is recorded with the token's name before it is made, and with its status and the beginning
    of its body after: one that can't be recorded is not made.
    """

    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app = app
        self._services = services
        self._log = structlog.get_logger()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close"})  # there are no WebSockets here
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if sum(map(len, chain.from_iterable(scope["headers"]))) > MAX_HEADER_BYTES:
            detail = f"the header fields are larger than {MAX_HEADER_BYTES} bytes"
            refusal = Problem(431, "headers-too-large", "Request Header Fields Too Large", detail)
            await refusal.response()(scope, receive, send)
            return
        admit = _authenticate if is_guarded(scope["path"]) or _names_itself(scope) else _admit_anonymous
        try:
            caller = await admit(self._services, scope)
        except Problem as refusal:
            await refusal.response()(scope, receive, send)
            return
        except PacelineError as error:
            await problem.of(error).response()(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state["caller"], state["scopes"] = caller.name, granted(caller.scopes)
        if caller.names:
            scope[SERVICES] = bound_services(self._services, caller.names)
        if is_audited(scope["method"], scope["path"]):
            await self._audit_change(caller, scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _audit_change(self, caller: Caller, scope: Scope, receive: Receive, send: Send) -> None:
        audit = self._services.audit
        status = 500
        body = b""

        async def receive_and_record() -> Message:
            nonlocal body
            message = await receive()
            body += message.get("body", b"")[: MAX_AUDIT_BYTES - len(body)]
            return message

        async def send_and_record(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        request_id = scope.get("state", {}).get("request_id", "")
        try:
            number = await audit.begin(caller.name, scope["method"], scope["path"], request_id, client_address(scope))
        except PacelineError as error:
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
            await self._app(scope, receive_and_record, send_and_record)
        finally:
            try:
                await audit.end(number, status, body.decode("utf-8", "replace") or None)
            except PacelineError:
                self._log.warning("an audit entry was left open", audit=number, status=status, request_id=request_id)


def check_may(scope: Scope, needed: AccessScope, what: str) -> None:
    """Raises 403 unless the caller of a request has a scope, which `what` needs."""
    if needed not in scope["state"]["scopes"]:
        raise Problem(403, "forbidden", "Forbidden", f"{what} needs a token with the scope {needed.value}")


def is_audited(method: str, path: str) -> bool:
    """Whether a request is an operator's change: under `/admin`, a re-plan, or what an application names."""
    if method in SAFE_METHODS:
        return False
    return path.startswith("/admin") or path == "/api/v1/slots/replan" or is_audited_path(path)


def is_guarded(path: str) -> bool:
    """Whether a path needs a token, once there are any."""
    return path.startswith(TOKEN_PATHS) and not path.startswith(CALLBACKS)


def _names_itself(scope: Scope) -> bool:
    """Whether a request for metrics, which need no token, comes with one: for the names in them."""
    return scope["path"] in METRICS_PATHS and (bearer_token(scope) is not None or session_secret(scope) is not None)


def refuse_other_names(scope: Scope) -> None:
    """Raises 403 unless `Host` is a name that no one else can own (DNS rebinding): an address, `localhost`, or a name
    without a domain.

    Without tokens, the service is open to all users of this machine, and a site may let its own name resolve to
    127.0.0.1: its page then has our origin, and may read the responses. Only the name shows such a read.
    """
    host = scope[FIELDS].get(b"host", b"")
    if len(host) > LONGEST_HOST or not is_local_name(host):
        detail = "without tokens, the service answers only under an address or a plain name of this machine; "
        raise Problem(403, "cross-site", "Cross-Site Request", detail + "create a token with `paceline tokens create`")


async def _admit_anonymous(services: Services, scope: Scope) -> Caller:
    """Admits a request to a path that needs no token."""
    if services.authenticator.is_open and not scope["path"].startswith(HEALTH_PATHS):
        refuse_other_names(scope)
    await services.ingress.admit(scope, ANYONE)
    return ANYONE


async def _authenticate(services: Services, scope: Scope) -> Caller:
    """Admits a request to a path that needs a token; returns its caller."""
    method: str = scope["method"]
    fields = scope[FIELDS]
    secret = bearer_token(scope) if b"authorization" in fields else None
    session = session_secret(scope) if secret is None and b"cookie" in fields else None
    if session is None:
        caller = await services.authenticator.caller(secret or "")
    else:
        login = await services.sessions.find(session)
        caller = None if login is None else login.caller
    if caller is None:
        detail = "send Authorization: Bearer and a valid token" if session is None else "the session has ended"
        challenge = {"WWW-Authenticate": "Bearer"}
        raise await services.ingress.record_failure(scope) or Problem(
            401, "unauthorized", "Unauthorized", detail, headers=challenge
        )
    if caller is ANYONE:
        refuse_other_names(scope)
        if not BROWSER_FIELDS.isdisjoint(fields):
            refuse_other_sites(scope, with_cookie=False, reading=method in SAFE_METHODS)
        if services.ingress.counts_requests:
            await services.ingress.admit(scope, caller)
        return caller
    if session is not None and method not in SAFE_METHODS:
        refuse_other_sites(scope, with_cookie=True)
    await services.ingress.admit(scope, caller, secret=secret)
    refused = refusal(caller, method, scope["path"])
    if refused is not None:
        raise Problem(403, "forbidden", "Forbidden", refused)
    return caller


def bearer_token(scope: Scope) -> str | None:
    """The bearer token. Other schemes are ignored: a proxy may have its own login beside the session's cookie."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, token = bytes(value).partition(b" ")
            if scheme.lower() == b"bearer":
                return token.strip().decode("latin-1")
    return None
