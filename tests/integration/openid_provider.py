"""An OpenID provider on this machine: discovery, authorization code with PKCE, RS256. It authenticates nobody."""

from __future__ import annotations

import base64
import hashlib
import secrets
import time
from functools import cache
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

CLIENT = "paceline"
SECRET = "the-client-secret"


@cache
def first_key() -> RSAKey:
    return RSAKey.generate_key(2048, {"kid": "first"}, private=True)


class OpenIdProvider:
    """Serve `app` at `issuer`. `person` has the claims of the next login; `changes` corrupt the ID token."""

    def __init__(self, issuer: str) -> None:
        self.issuer = issuer
        self.person: dict[str, Any] = {"sub": "u1", "preferred_username": "anna", "groups": ["ops"]}
        self.changes: dict[str, Any] = {}
        self.key = first_key()
        self.signing = self.key
        self.redirects: set[str] = set()
        self.refreshes = True
        """Whether it gives refresh tokens, each for one use."""
        self._refresh_tokens: set[str] = set()
        self._codes: dict[str, dict[str, str]] = {}
        self.app = Starlette(
            routes=[
                Route("/.well-known/openid-configuration", self.discovery),
                Route("/keys", self.keys),
                Route("/authorize", self.authorize),
                Route("/token", self.token, methods=["POST"]),
            ]
        )

    async def discovery(self, _request: Request) -> Response:
        paths = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "keys"}
        return JSONResponse({"issuer": self.issuer} | {name: f"{self.issuer}/{path}" for name, path in paths.items()})

    async def keys(self, _request: Request) -> Response:
        return JSONResponse(KeySet([self.key]).as_dict(private=False))

    async def authorize(self, request: Request) -> Response:
        asked = dict(request.query_params)
        assert (asked["client_id"], asked["response_type"]) == (CLIENT, "code")
        assert asked["code_challenge_method"] == "S256"
        self.redirects.add(asked["redirect_uri"])
        code = secrets.token_urlsafe(8)
        self._codes[code] = asked
        return RedirectResponse(f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}")

    async def token(self, request: Request) -> Response:
        form = {name: values[0] for name, values in parse_qs((await request.body()).decode()).items()}
        if form["grant_type"] == "refresh_token":
            if form["refresh_token"] not in self._refresh_tokens:
                return JSONResponse({"error": "invalid_grant"}, 400)
            self._refresh_tokens.remove(form["refresh_token"])
            return self._tokens({})
        asked = self._codes.pop(form["code"], None)
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if asked is None or asked["code_challenge"] != challenge or asked["redirect_uri"] != form["redirect_uri"]:
            return JSONResponse({"error": "invalid_grant"}, 400)
        if form["client_secret"] != SECRET:
            return JSONResponse({"error": "invalid_client"}, 400)
        return self._tokens({"nonce": asked["nonce"]})

    def leave(self) -> None:
        """The person's account is closed."""
        self._refresh_tokens.clear()

    def _tokens(self, more: dict[str, str]) -> Response:
        now = int(time.time())
        claims = {"iss": self.issuer, "aud": CLIENT, "iat": now, "exp": now + 300} | more
        header = {"alg": self.changes.get("alg", "RS256"), "kid": self.signing.kid}
        spoilt = {name: value for name, value in self.changes.items() if name != "alg"}
        answer = {"id_token": jwt.encode(header, claims | self.person | spoilt, self.signing)}
        if self.refreshes:
            answer["refresh_token"] = secrets.token_urlsafe(8)
            self._refresh_tokens.add(answer["refresh_token"])
        return JSONResponse(answer)


def path_and_query(url: str) -> str:
    """Of a redirect's target."""
    parts = urlsplit(url)
    return f"{parts.path}?{parts.query}"
