"""Sessions: a token is sent once, at login; then a random session secret replaces it, until either expires.

The store keeps a digest of that secret, and a seal made of the secret and the token. A reader of the store can neither
hijack a session nor learn anything about a token.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from datetime import datetime, timedelta
from typing import NamedTuple

from paceline.server.access.authenticator import Authenticator
from paceline.server.access.model import ANYONE, Caller, Scope, Token, digest
from paceline.server.access.ports import SessionStore


class Login(NamedTuple):
    """An open login."""

    caller: Caller
    expires_at: datetime | None
    """None where no token is required."""
    secret: str = ""
    """The session's secret; returned once, when the session opens."""


class Sessions:
    """Opens, finds and closes sessions. All state is in the store: any process knows every session."""

    def __init__(self, store: SessionStore, authenticator: Authenticator, lifetime: timedelta) -> None:
        self._store = store
        self._authenticator = authenticator
        self._lifetime = lifetime
        self._key: bytes | None = None

    async def open(self, token_secret: str) -> Login | None:
        """Opens a session for the token with this secret; None if no valid token has it."""
        caller = await self._authenticator.caller(token_secret)
        if caller is ANYONE:
            return Login(caller, None)
        token = (await self._authenticator.keyring()).token(token_secret)
        if caller is None or token is None:
            return None
        secret = _new_secret(await self.key())
        session = await self._store.open(digest(secret), token.name, _seal(secret, token), self._lifetime)
        return Login(caller, session.expires_at, secret)

    async def open_person(self, caller: Caller) -> Login:
        """Opens a session for a person without a token, whom an identity provider has authenticated."""
        secret, scopes = _new_secret(await self.key()), " ".join(sorted(caller.scopes))
        seal = _person_seal(secret, caller.name, scopes)
        session = await self._store.open(digest(secret), caller.name, seal, self._lifetime, scopes)
        return Login(caller, session.expires_at, secret)

    async def find(self, secret: str) -> Login | None:
        """The login with this session's secret; None if there is none.

        Tokens are read from the store each time: the session of a revoked token ends with its next request, not seconds
        later. A forged secret costs no read.
        """
        await self._authenticator.keyring()
        if self._authenticator.is_open:
            return Login(ANYONE, None)
        if not secret or not _is_ours(secret, await self.key()):
            return None
        keyring = await self._authenticator.keyring(max_age=0)
        session = await self._store.find(digest(secret))
        if session is not None and session.scopes is not None:
            expected = _person_seal(secret, session.token_name, session.scopes)
            if not hmac.compare_digest(session.seal, expected):
                return None
            scopes = frozenset(Scope(scope) for scope in session.scopes.split())
            return Login(Caller(session.token_name, scopes), session.expires_at)
        token = keyring.named(session.token_name) if session is not None else None
        if session is None or token is None or not hmac.compare_digest(session.seal, _seal(secret, token)):
            return None
        return Login(Caller(token.name, token.scopes), session.expires_at)

    async def close(self, secret: str) -> None:
        """Ends the session, everywhere."""
        if _is_ours(secret, await self.key()):
            await self._store.close(digest(secret))

    async def key(self) -> bytes:
        """The key that authenticates cookies."""
        if self._key is None:
            self._key = await self._store.key()
        return self._key


def _new_secret(key: bytes) -> str:
    """128 random bits, and their authentication code under the shared key: a forged secret fails without a read."""
    random = secrets.token_bytes(16)
    return base64.urlsafe_b64encode(random + _code(random, key)).rstrip(b"=").decode()


def _is_ours(secret: str, key: bytes) -> bool:
    try:
        decoded = base64.urlsafe_b64decode(secret + "=")
    except ValueError:
        return False
    return len(decoded) == 32 and hmac.compare_digest(decoded[16:], _code(decoded[:16], key))


def _code(random: bytes, key: bytes) -> bytes:
    return hmac.new(key, random, hashlib.sha256).digest()[:16]


def _person_seal(secret: str, name: str, scopes: str) -> str:
    """Ties scopes to the session's secret: a writer to the store can't add scopes to a session."""
    return hmac.new(secret.encode(), f"{name}\n{scopes}".encode(), hashlib.sha256).hexdigest()


def _seal(secret: str, token: Token) -> str:
    """Differs when a token of the same name, from the settings, has another secret now."""
    return hmac.new(secret.encode(), token.digest.encode(), hashlib.sha256).hexdigest()
