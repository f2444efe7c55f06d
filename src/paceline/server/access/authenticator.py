"""`Authenticator`: finds the token of a secret. Tokens are cached: a call costs a digest and no round trip."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from datetime import datetime, timedelta

from paceline.clock import Clock, SystemClock
from paceline.errors import StoreError
from paceline.server.access.model import (
    ANYONE,
    Caller,
    Keyring,
    Token,
    checked_rate,
    checked_scopes,
    checked_token_name,
    digest,
    new_secret,
)
from paceline.server.access.names import checked_names
from paceline.server.access.ports import TokenStore

TOKEN_CACHE_SECONDS = 5.0
"""A token that is revoked elsewhere is rejected here within this time."""
REREAD_SECONDS = 0.25
"""How old the cache may be for an unknown secret, which may belong to a token that was created a moment ago."""

_log = logging.getLogger(__name__)


class Authenticator:
    """Maps secrets to callers.

    Open to anyone if only this machine can reach it (`local`) and there never was a token. Once tokens are required,
    they stay required: revoking the last token must not open the service to all callers.

        authenticator = Authenticator(store)
        caller = await authenticator.caller(secret)  # None: 401
    """

    def __init__(
        self,
        store: TokenStore | None,
        fixed: Iterable[Token] = (),
        clock: Clock | None = None,
        *,
        local: bool = True,
    ) -> None:
        self._store = store
        self._fixed = tuple(fixed)
        self._clock = clock or SystemClock()
        # Called directly: every request checks the cache's age.
        self._monotonic = time.monotonic if clock is None else lambda: clock.monotonic_us() / 1e6
        self._keyring = Keyring(self._fixed, self._clock)
        self._closed = not local or self._keyring.had_any
        self._read_at = float("-inf")
        self._lock = asyncio.Lock()

    async def caller(self, secret: str) -> Caller | None:
        """The caller with this secret; None if no valid token has it.

        Raises:
            StoreError: the store failed, and no tokens were ever read.
        """
        if self._store is not None and self._monotonic() - self._read_at > TOKEN_CACHE_SECONDS:
            await self.keyring()
        if not self._closed:
            return ANYONE
        return self._keyring.caller(secret) or (await self.keyring(REREAD_SECONDS)).caller(secret)

    @property
    def is_open(self) -> bool:
        """Whether anyone may call, by the cached tokens."""
        return not self._closed

    async def keyring(self, max_age: float = TOKEN_CACHE_SECONDS) -> Keyring:
        """The valid tokens, read `max_age` seconds ago at most. If their store is unavailable, the last known ones."""
        if self._store is not None and self._monotonic() - self._read_at > max_age:
            async with self._lock:
                if self._monotonic() - self._read_at > max_age:
                    await self._read(self._store)
        return self._keyring

    async def _read(self, store: TokenStore) -> None:
        try:
            self._keyring = Keyring([*self._fixed, *await store.tokens()], self._clock)
            self._closed = self._closed or self._keyring.had_any
        except StoreError:
            if self._read_at == float("-inf"):
                raise  # no tokens were ever read: fail closed
            _log.warning("tokens can't be read; the last known ones stay good")
        self._read_at = self._monotonic()


async def create_token(
    store: TokenStore,
    name: str,
    scopes: Iterable[str],
    expires_at: datetime | None = None,
    *,
    patterns: Iterable[str] = (),
    rate: str | None = None,
) -> tuple[str, Token]:
    """Creates a token; returns its secret, which is stored nowhere, and the token. With `patterns`, such as `team-a-*`,
    its callers see and change only what has such names. `rate` is how often it may be used.

    Raises:
        InvalidInput: the name, a scope, a pattern or the rate is wrong.
        Conflict: the name was used before.
    """
    secret = new_secret()
    named = Token(
        checked_token_name(name),
        checked_scopes(scopes),
        digest(secret),
        expires_at=expires_at,
        names=checked_names(patterns),
        rate=checked_rate(rate),
    )
    return secret, await store.add(named)


async def rotate_token(store: TokenStore, name: str, overlap: timedelta) -> tuple[str, Token]:
    """Gives a token another secret, and returns that; the earlier secret stays valid for `overlap`.

    Raises:
        NotFound: no valid token has that name.
    """
    secret = new_secret()
    return secret, await store.rotate(name, digest(secret), overlap)
