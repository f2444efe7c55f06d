"""`/console/session`: who is logged in. A token opens a session; its secret travels in a cookie no script can read."""

from __future__ import annotations

from typing import Any

import orjson
import structlog
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from headgate.durations import format_instant
from headgate.server.access.model import ANYONE
from headgate.server.access.sessions import Login
from headgate.server.http import schemas
from headgate.server.http.body import only, read_object, required
from headgate.server.http.browser import ended_cookie, refuse_other_sites, session_cookie, session_secret
from headgate.server.http.ingress import client_address
from headgate.server.http.problem import Problem, documented, invalid
from headgate.server.http.services import services_of

LONGEST_TOKEN = 512
MAX_BYTES = 4096
"""Of a login's body: enough for the longest token, however it is escaped."""
LOGIN: dict[str, Any] = {
    "title": "LoginRequest",
    "type": "object",
    "required": ["token"],
    "additionalProperties": False,
    "properties": {"token": {"type": "string", "minLength": 1, "maxLength": LONGEST_TOKEN, "format": "password"}},
}

router = APIRouter(prefix="/console/session", tags=["console"])


class SessionShown(BaseModel):
    """Who uses the console."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel)

    login_required: bool
    name: str | None
    scopes: list[str]
    expires_at: str | None


@router.get("", summary="Who is logged in?", response_model=SessionShown)
async def show(request: Request) -> Response:
    """The name and the scopes of the token behind the session; no name if nobody is logged in."""
    return _json(await services_of(request).sessions.find(session_secret(request.scope) or ""))


@router.post(
    "",
    summary="Log in",
    response_model=SessionShown,
    responses=documented(400, 401, 403, 413, 415, 429),
    openapi_extra=schemas.json_body(LOGIN),
)
async def log_in(request: Request) -> Response:
    """Exchanges a token for a session, whose secret is set as a cookie. It ends with the token, when its time is over,
    or when it is logged out. Too many wrong tokens from one address get 429."""
    services, log = services_of(request), structlog.get_logger()
    refuse_other_sites(request.scope, with_cookie=False)
    await services.ingress.admit_login(request.scope)
    token = await _token(request)
    login = await services.sessions.open(token)
    if login is None:
        log.warning("login refused", address=client_address(request.scope))
        raise Problem(401, "unauthorized", "Unauthorized", "no token that is good now has this secret")
    await services.ingress.refund_login(request.scope)
    earlier = session_secret(request.scope)
    if earlier is not None:
        await services.sessions.close(earlier)
    answer = _json(login)
    if login.expires_at is not None:
        log.info("logged in", token=login.caller.name, address=client_address(request.scope))
        answer.headers["Set-Cookie"] = session_cookie(request.scope, login.secret, login.expires_at)
    return answer


@router.delete("", summary="Log out", status_code=204, response_class=Response, responses=documented(403))
async def log_out(request: Request) -> Response:
    """Ends the session, in every process at once."""
    secret = session_secret(request.scope)
    refuse_other_sites(request.scope, with_cookie=secret is not None)
    if secret is not None:
        await services_of(request).sessions.close(secret)
    return Response(status_code=204, headers={"Set-Cookie": ended_cookie(request.scope)})


async def _token(request: Request) -> str:
    value = await read_object(request.scope, request.receive, MAX_BYTES)
    only(value, LOGIN["properties"])
    token = required(value, "token")
    if not isinstance(token, str) or not 1 <= len(token) <= LONGEST_TOKEN:
        raise invalid("token", f"must be a text of 1 to {LONGEST_TOKEN} characters")
    return token


def _json(login: Login | None) -> Response:
    body = {
        "loginRequired": login is None or login.caller is not ANYONE,
        "name": None if login is None else login.caller.name,
        "scopes": [] if login is None else sorted(login.caller.scopes),
        "expiresAt": None if login is None or login.expires_at is None else format_instant(login.expires_at),
    }
    return Response(orjson.dumps(body), media_type="application/json")
