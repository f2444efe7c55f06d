"""`/console/oidc`: log in with the organisation's account instead of a token."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from urllib.parse import urlsplit

import structlog
from fastapi import Request, Response

from paceline.server.access.oidc import LoginRefused, OidcProvider, PendingLogin
from paceline.server.http.browser import session_cookie, session_secret
from paceline.server.http.ingress import client_address
from paceline.server.http.parameters import api_router
from paceline.server.http.prefix import PREFIX
from paceline.server.http.problem import Problem, documented
from paceline.server.http.services import Services, services_of

COOKIE = "paceline-oidc"
PATH = "/console/oidc"
LIFETIME_SECONDS = 600
"""The time limit for logging in at the provider."""
BACK = '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url=../../"><title>paceline</title>'
"""A page instead of a redirect: that would be cross-site, and browsers would not send the session's cookie."""

router = api_router(PATH, "console")
_ANSWERS = documented(401, 403, 404, 503)


@router.get("/login", summary="Go to the OpenID provider", status_code=302, response_class=Response, responses=_ANSWERS)
async def begin(request: Request) -> Response:
    """Sends the browser to the OpenID provider of the settings; 404 if there is none."""
    services = services_of(request)
    pending = PendingLogin.new()
    try:
        url = await _provider(services).authorization_url(pending, _redirect_uri(request))
    except LoginRefused as error:
        raise Problem(403, "forbidden", "Forbidden", str(error)) from None
    value = await _sealed(services, pending)
    answer = Response(status_code=302, headers={"Location": url, "Cache-Control": "no-store"})
    # Lax: the provider's redirect must carry it.
    answer.headers["Set-Cookie"] = _cookie(request, value, LIFETIME_SECONDS)
    return answer


@router.get("/callback", summary="Come back from the OpenID provider", response_class=Response, responses=_ANSWERS)
async def complete(request: Request) -> Response:
    """Opens a session for the user of the provider's code, with the scopes of their groups."""
    services, log = services_of(request), structlog.get_logger()
    provider = _provider(services)
    pending = await _opened(services, request.cookies.get(COOKIE, ""))
    state, code = request.query_params.get("state", ""), request.query_params.get("code", "")
    if pending is None or not hmac.compare_digest(pending.state.encode(), state.encode()):
        detail = "this login was not begun here, or took too long; begin again"
        raise Problem(401, "unauthorized", "Unauthorized", detail)
    try:
        if not code:
            raise LoginRefused("the provider refused the login")
        person = await provider.person(pending, code, _redirect_uri(request))
    except LoginRefused as error:
        log.warning("login refused", address=client_address(request.scope), reason=str(error))
        raise Problem(403, "forbidden", "Forbidden", str(error)) from None
    earlier = session_secret(request.scope)
    if earlier is not None:
        await services.sessions.close(earlier)
    login = await services.sessions.open_person(person, client_address(request.scope))
    assert login.expires_at is not None
    log.info("logged in", token=person.name, address=client_address(request.scope))
    headers = {"Cache-Control": "no-store", "Content-Security-Policy": "default-src 'none'"}
    answer = Response(BACK, 200, headers, "text/html")
    answer.headers.append("Set-Cookie", session_cookie(request.scope, login.secret, login.expires_at))
    answer.headers.append("Set-Cookie", _cookie(request, "", 0))
    return answer


def _provider(services: Services) -> OidcProvider:
    if services.oidc is None:
        raise Problem(404, "no-such-path", "Not Found", "no OpenID provider is set; set PACELINE_OIDC_ISSUER")
    return services.oidc


def _redirect_uri(request: Request) -> str:
    """This service's callback as the browser reaches it. The provider accepts only registered ones."""
    url = urlsplit(str(request.url))
    return f"{url.scheme}://{url.netloc}{request.scope.get(PREFIX, '')}{PATH}/callback"


def _cookie(request: Request, value: str, seconds: int) -> str:
    secure = "; Secure" if request.scope.get("scheme") == "https" else ""
    path = f"{request.scope.get(PREFIX, '')}{PATH}"
    return f"{COOKIE}={value}; Max-Age={seconds}; Path={path}; HttpOnly; SameSite=Lax{secure}"


async def _sealed(services: Services, pending: PendingLogin) -> str:
    text = base64.urlsafe_b64encode(json.dumps(pending).encode()).decode()
    return f"{text}.{await _code(services, text)}"


async def _opened(services: Services, value: str) -> PendingLogin | None:
    text, _, code = value.partition(".")
    if not text or not hmac.compare_digest(code.encode(), (await _code(services, text)).encode()):
        return None
    return PendingLogin(*json.loads(base64.urlsafe_b64decode(text)))


async def _code(services: Services, text: str) -> str:
    return hmac.new(await services.sessions.key(), b"oidc" + text.encode(), hashlib.sha256).hexdigest()
