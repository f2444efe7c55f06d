"""The stores that access needs: of tokens, of sessions, of the audit."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple, Protocol

from paceline.server.access.model import Token


class AuditEntry(NamedTuple):
    """One change that was requested. `status` is None while it is in progress, or if its process died."""

    at: datetime
    caller: str
    method: str
    path: str
    request_id: str
    status: int | None
    detail: str | None = None
    """The beginning of the request's body, or a command's options. None while it is in progress."""
    address: str | None = None
    """The client's address; None for a command."""


class TokenStore(Protocol):
    """Stores tokens by name."""

    async def add(self, token: Token) -> Token:
        """Keeps a new token; `Conflict` if the name was ever used."""
        ...

    async def rotate(self, name: str, digest: str, overlap: timedelta) -> Token:
        """Gives a token another secret; the earlier one stays valid for `overlap`. `NotFound` if no valid token has
        that name."""
        ...

    async def revoke(self, name: str) -> Token:
        """Revokes a token; `NotFound` if no valid token has that name."""
        ...

    async def tokens(self) -> list[Token]:
        """Every token, revoked ones too, by name."""
        ...


class Session(NamedTuple):
    """A session as it is stored: the digest of its secret, and the seal that ties it to its token."""

    digest: str
    token_name: str
    seal: str
    expires_at: datetime
    scopes: str | None = None
    """The scopes of a person without a token; None if the token has them."""


class SessionStore(Protocol):
    """Stores the sessions of the console. Time is the store's own clock."""

    async def key(self) -> bytes:
        """The key that marks sessions as ours; the same for every process, made at first use."""
        ...

    async def open(
        self, digest: str, token_name: str, seal: str, lifetime: timedelta, scopes: str | None = None
    ) -> Session:
        """Stores a new session, and deletes expired ones."""
        ...

    async def find(self, digest: str) -> Session | None:
        """The session, unless it was closed or has expired."""
        ...

    async def close(self, digest: str) -> None:
        """Ends a session, if there is one."""
        ...


class AdminAudit(Protocol):
    """Records changes. The entry is written before the change is made: one that can't be recorded is not made."""

    async def begin(self, caller: str, method: str, path: str, request_id: str, address: str | None = None) -> int:
        """Records that a change was requested; returns the entry's number."""
        ...

    async def end(self, number: int, status: int, detail: str | None = None) -> None:
        """Records the status of the response, and the beginning of the request's body."""
        ...

    async def recent(self, limit: int, before: int | None = None) -> list[tuple[int, AuditEntry]]:
        """The last entries with their numbers, newest first; `before` continues an earlier page."""
        ...
