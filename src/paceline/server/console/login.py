"""`/console/session`: login and logout. A token opens a session, whose secret is in an HttpOnly cookie."""

from __future__ import annotations

import structlog
from fastapi import Request, Response

from paceline.server.http.body import read_object
from paceline.server.http.browser import ended_cookie, refuse_other_sites, session_cookie, session_secret
from paceline.server.http.ingress import client_address
from paceline.server.http.parameters import api_router, json_body
from paceline.server.http.problem import Problem, documented
from paceline.server.http.raw_routes import json_response
from paceline.server.http.services import services_of
from paceline.server.settings import LONG_SECRET
from paceline.server.shapes.access import LoginRequest, SessionShown

MAX_BYTES = 4096
"""Of a login's body: enough for the longest token, however it is escaped."""

router = api_router("/console/session", "console")


@router.get("", summary="Who is logged in?", response_model=SessionShown)
async def show(request: Request) -> Response:
    """The name and the scopes of the token behind the session; no name without a login."""
    services = services_of(request)
    login = await services.sessions.find(session_secret(request.scope) or "")
    return json_response(SessionShown.of_login(login, openid=services.oidc is not None))


@router.post(
    "",
    summary="Log in",
    response_model=SessionShown,
    responses=documented(400, 401, 403, 413, 415, 429),
    openapi_extra=json_body(LoginRequest),
)
async def log_in(request: Request) -> Response:
    """Exchanges a token for a session, whose secret is set as a cookie. It ends with the token, when its time is over,
    or when it is logged out. Too many wrong tokens from one address get 429."""
    services, log = services_of(request), structlog.get_logger()
    refuse_other_sites(request.scope, with_cookie=False)
    login_request = LoginRequest.parse(await read_object(request.scope, request.receive, MAX_BYTES))
    if len(login_request.token) < LONG_SECRET:
        await services.ingress.admit_short_login(request.scope)
    login = await services.sessions.open(login_request.token, client_address(request.scope))
    if login is None:
        await services.ingress.record_failed_login(request.scope)
        log.warning("login refused", address=client_address(request.scope))
        raise Problem(401, "unauthorized", "Unauthorized", "no token that is good now has this secret")
    earlier = session_secret(request.scope)
    if earlier is not None:
        await services.sessions.close(earlier)
    answer = json_response(SessionShown.of_login(login, openid=services.oidc is not None))
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
