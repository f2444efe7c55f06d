"""`Gate`: who is calling? Remembers the tokens for a few seconds, so that asking costs a digest and no round trip."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from headgate.clock import Clock, SystemClock
from headgate.errors import StoreError
from headgate.server.access.model import (
    ANYONE,
    Caller,
    Keyring,
    Token,
    checked_scopes,
    checked_token_name,
    digest,
    new_secret,
)
from headgate.server.access.ports import TokenStore

REMEMBERED_US = 5_000_000
"""A token revoked elsewhere is refused here after this long at the latest."""
ASK_AGAIN_US = 250_000
"""A secret nobody knows may belong to a token made a moment ago: the store is asked again, this often at most."""

_log = logging.getLogger(__name__)


class Gate:
    """Tells callers by their secrets.

    Open to anyone if only this machine can reach it (`local`) and there never was a token. One that was closed stays
    closed: who revokes the last token wants fewer callers, not all of them.
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
        self._keyring = Keyring(self._fixed)
        self._closed = not local or self._keyring.had_any
        self._read_us: int | None = None
        self._reading = asyncio.Lock()

    async def caller(self, secret: str) -> Caller | None:
        """Who presents this secret; None if it is nobody's."""
        keyring = await self.keyring()
        if self.is_open:
            return ANYONE
        return keyring.caller(secret) or (await self.keyring(ASK_AGAIN_US)).caller(secret)

    @property
    def is_open(self) -> bool:
        """Whether anyone may call, by the tokens as they were read last."""
        return not self._closed

    async def keyring(self, remembered_us: int = REMEMBERED_US) -> Keyring:
        """The tokens that are good now, at most so old. If their store is away, the last known ones."""
        if self._store is not None and self._is_older(remembered_us):
            async with self._reading:
                if self._is_older(remembered_us):
                    await self._read(self._store)
        return self._keyring

    def _is_older(self, age_us: int) -> bool:
        return self._read_us is None or self._clock.monotonic_us() - self._read_us > age_us

    async def _read(self, store: TokenStore) -> None:
        try:
            self._keyring = Keyring([*self._fixed, *await store.tokens()])
            self._closed = self._closed or self._keyring.had_any
        except StoreError:
            if self._read_us is None:
                raise  # never seen: letting anyone in would be a guess
            _log.warning("tokens can't be read; the last known ones stay good")
        self._read_us = self._clock.monotonic_us()


async def create_token(store: TokenStore, name: str, scopes: Iterable[str]) -> tuple[str, Token]:
    """A new token and its secret, which is shown this once and kept nowhere."""
    secret = new_secret()
    return secret, await store.add(Token(checked_token_name(name), checked_scopes(scopes), digest(secret)))
