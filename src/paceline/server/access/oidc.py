"""Login with an organisation's account: OpenID Connect by discovery, with PKCE; groups decide scopes and names."""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

import httpx2 as httpx

from paceline.errors import PacelineError, StoreUnavailable
from paceline.server.access.model import Caller, Person, Scope, granted
from paceline.server.access.names import EVERY_NAME, Names

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

ALGORITHMS = ["RS256", "PS256", "ES256", "EdDSA", "RS384", "RS512", "ES384", "ES512", "PS384", "PS512"]
"""Accepted signature algorithms: asymmetric ones only, and not `none`."""
TIMEOUT_SECONDS = 10.0
LEEWAY_SECONDS = 60
"""The clock skew between provider and service that is tolerated."""
KEYS_AGE_SECONDS = 60.0
"""The shortest time between two reads of the provider's keys, when a token names an unknown key."""


class LoginRefused(PacelineError):
    """The provider's response is invalid, or the user has no scope here."""


class PendingLogin(NamedTuple):
    """The browser's state between the redirect to the provider and the callback."""

    state: str
    nonce: str
    verifier: str

    @classmethod
    def new(cls) -> PendingLogin:
        return cls(secrets.token_urlsafe(24), secrets.token_urlsafe(24), secrets.token_urlsafe(48))


class Group(NamedTuple):
    """What the members of a group may do, and with what."""

    scopes: frozenset[Scope]
    names: Names = EVERY_NAME


class OidcProvider:
    """A provider, by its issuer's URL. `groups` are those of its groups whose members may do something here, by name.

    provider = OidcProvider("https://login.example.com", "paceline", "secret", {"ops": Group(frozenset({Scope.ADMIN}))})
    url = await provider.authorization_url(pending, "https://paceline.example.com/console/oidc/callback")
    person = await provider.person(pending, code, "https://paceline.example.com/console/oidc/callback")
    """

    def __init__(
        self,
        issuer: str,
        client_id: str,
        client_secret: str | None,
        groups: Mapping[str, Group],
        *,
        groups_claim: str = "groups",
        request_scopes: str = "openid profile email",
    ) -> None:
        self._issuer = issuer
        self._client_id = client_id
        self._client_secret = client_secret
        self._groups = groups
        self._groups_claim = groups_claim
        self._request_scopes = request_scopes
        self._configuration: dict[str, Any] | None = None
        self._keys: KeySet | None = None
        self._keys_at = float("-inf")

    async def check(self) -> None:
        """Reads the provider's discovery document and keys, as a login does.

        Raises:
            StoreUnavailable: The provider does not answer.
            LoginRefused: It is another issuer, or answers otherwise.
        """
        await self._key_set()

    async def authorization_url(self, pending: PendingLogin, redirect_uri: str) -> str:
        """The URL to which the browser is redirected to log in.

        Raises:
            StoreUnavailable: The provider does not answer.
        """
        digest = hashlib.sha256(pending.verifier.encode()).digest()
        query = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": redirect_uri,
            "scope": self._request_scopes,
            "state": pending.state,
            "nonce": pending.nonce,
            "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        endpoint = str((await self._discover())["authorization_endpoint"])
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}"

    async def person(self, pending: PendingLogin, code: str, redirect_uri: str) -> Person:
        """The person of this code.

        Raises:
            LoginRefused: The code or the token is invalid, or no group has a scope here.
            StoreUnavailable: The provider does not answer.
        """
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": pending.verifier,
        }
        answer = await self._token(form)
        return self._person(await self._claims(answer, pending.nonce), answer.get("refresh_token"))

    async def renewed(self, known: str, renewal: str) -> Person:
        """The person named `known` as the provider describes them now: after a login, without their browser.

        Raises:
            LoginRefused: The provider no longer vouches for them, or no group has a scope here.
            StoreUnavailable: The provider does not answer.
        """
        answer = await self._token({"grant_type": "refresh_token", "refresh_token": renewal})
        claims = await self._claims(answer, None) if "id_token" in answer else await self._user_info(answer)
        person = self._person(claims, answer.get("refresh_token") or renewal)
        if person.name.rpartition("#")[2] != known.rpartition("#")[2]:
            raise LoginRefused("the provider's answer is about somebody else")
        return person._replace(name=known)

    def caller(self, name: str, groups: Iterable[str]) -> Caller:
        """What the person of this name, a member of these groups, may do by the settings of now.

        Whoever is in a group with names sees the names of such groups only, and may do there what all of those groups
        permit: none gives a scope over another's names. Groups without names give their scopes, and lift no bound.
        """
        known = [self._groups[group] for group in groups if group in self._groups]
        bound = {group.scopes for group in known if group.names}
        common = frozenset.intersection(*map(granted, bound)) if len(bound) > 1 else frozenset[Scope]().union(*bound)
        patterns = dict.fromkeys(pattern for group in known for pattern in group.names.patterns)
        return Caller(name, common.union(*(group.scopes for group in known if not group.names)), Names(tuple(patterns)))

    async def _token(self, form: dict[str, str]) -> dict[str, Any]:
        form["client_id"] = self._client_id
        if self._client_secret is not None:
            form["client_secret"] = self._client_secret
        return await self._call("POST", (await self._discover())["token_endpoint"], form)

    def _person(self, claims: Mapping[str, Any], renewal: Any) -> Person:
        groups = claims.get(self._groups_claim) or []
        groups = (groups,) if isinstance(groups, str) else tuple(str(group) for group in groups)
        name = str(claims.get("preferred_username") or claims.get("email") or claims["sub"])
        if not self.caller(name, groups).scopes:
            raise LoginRefused(
                f"no group of {name} has a scope here, or those with names have none in common; "
                "PACELINE_OIDC_SCOPES maps groups to scopes"
            )
        # People choose what they are called; only issuer and subject identify an account.
        account = hashlib.sha256(f"{self._issuer}\n{claims['sub']}".encode()).hexdigest()[:8]
        readable = re.sub(r"[^A-Za-z0-9._@+-]", "_", name)[:50]
        return Person(f"oidc:{readable}#{account}", groups, renewal if isinstance(renewal, str) else None)

    async def _claims(self, answer: Mapping[str, Any], nonce: str | None) -> Mapping[str, Any]:
        """The claims of a token endpoint's ID token; a renewed one needs no nonce."""
        token = answer.get("id_token")
        if not isinstance(token, str):
            raise LoginRefused("the provider gave no ID token")
        # Imported here, as below: the library is an extra, and only logins need it.
        from joserfc import jwt
        from joserfc.errors import JoseError

        registry = jwt.JWTClaimsRegistry(
            leeway=LEEWAY_SECONDS,
            iss={"essential": True, "value": self._issuer},
            aud={"essential": True, "value": self._client_id},
            exp={"essential": True},
            sub={"essential": True},
            nonce={"essential": False} if nonce is None else {"essential": True, "value": nonce},
        )
        try:
            try:
                decoded = jwt.decode(token, await self._key_set(), algorithms=ALGORITHMS)
            except (JoseError, ValueError):
                # The provider may have rotated its keys.
                decoded = jwt.decode(token, await self._key_set(renew=True), algorithms=ALGORITHMS)
            registry.validate(decoded.claims)
        except (JoseError, ValueError) as error:
            raise LoginRefused(f"the provider's ID token is not good: {type(error).__name__}") from error
        audience = decoded.claims["aud"]
        if isinstance(audience, list) and len(audience) > 1 and decoded.claims.get("azp") != self._client_id:
            raise LoginRefused("the provider's ID token has another audience, too")
        return decoded.claims

    async def _user_info(self, answer: Mapping[str, Any]) -> Mapping[str, Any]:
        endpoint, token = (await self._discover()).get("userinfo_endpoint"), answer.get("access_token")
        if endpoint is None or not isinstance(token, str):
            raise LoginRefused("the provider says nothing of the person when it is asked again")
        claims = await self._call("GET", endpoint, token=token)
        if "sub" not in claims:
            raise LoginRefused("the provider's answer names nobody")
        return claims

    async def _key_set(self, *, renew: bool = False) -> KeySet:
        from joserfc.jwk import KeySet

        age = time.monotonic() - self._keys_at
        if self._keys is None or (renew and age > KEYS_AGE_SECONDS):
            self._keys = KeySet.import_key_set(await self._call("GET", (await self._discover())["jwks_uri"]))  # type: ignore[arg-type]
            self._keys_at = time.monotonic()
        return self._keys

    async def _discover(self) -> dict[str, Any]:
        if self._configuration is None:
            configuration = await self._call("GET", f"{self._issuer.rstrip('/')}/.well-known/openid-configuration")
            if configuration.get("issuer") != self._issuer:
                raise LoginRefused("the provider is another issuer than PACELINE_OIDC_ISSUER; write it as it does")
            self._configuration = configuration
        return self._configuration

    async def _call(
        self, method: str, url: str, form: dict[str, str] | None = None, *, token: str | None = None
    ) -> dict[str, Any]:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        try:
            async with httpx.AsyncClient(timeout=TIMEOUT_SECONDS) as client:
                answer = await client.request(method, url, data=form, headers=headers)
        except httpx.TransportError as error:
            raise StoreUnavailable(f"the OpenID provider does not answer: {type(error).__name__}") from error
        if answer.status_code >= 500:
            raise StoreUnavailable(f"the OpenID provider answers with {answer.status_code}")
        try:
            document = answer.json()
        except ValueError:
            document = None
        if answer.status_code != 200 or not isinstance(document, dict):
            raise LoginRefused(f"the OpenID provider answers with {answer.status_code}")
        return document
