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
    """A session as it is stored: the digest of its secret, and the seal that ties it to its token or person."""

    digest: str
    caller: str
    """The name of its token or person."""
    seal: str
    opened_at: datetime
    expires_at: datetime
    checked_at: datetime
    """When the provider last said what the groups of a person are."""
    address: str | None
    """From where it was opened."""
    member_of: str | None = None
    """The groups of a person, as a JSON list; None for the session of a token."""
    renewal: str | None = None
    """Encrypted with the session's secret: what the provider wants to see when it is asked again."""


class NewSession(NamedTuple):
    """A session to store."""

    digest: str
    caller: str
    seal: str
    lifetime: timedelta
    address: str | None
    member_of: str | None = None
    renewal: str | None = None


class SessionStore(Protocol):
    """Stores the sessions of the console. Time is the store's own clock."""

    async def key(self) -> bytes:
        """The key that marks sessions as ours; the same for every process, made at first use."""
        ...

    async def open(self, new: NewSession) -> Session:
        """Stores a new session, and deletes expired ones."""
        ...

    async def find(self, digest: str) -> Session | None:
        """The session, unless it was closed or has expired."""
        ...

    async def claim_check(self, known: Session, older_than: timedelta) -> bool:
        """Marks a session as checked now; False if its last check is not that old, or another process was first."""
        ...

    async def renew(self, digest: str, seal: str, member_of: str, renewal: str | None) -> None:
        """Stores what the provider says of a person now."""
        ...

    async def all(self) -> list[Session]:
        """The sessions that have not expired, the newest first."""
        ...

    async def close(self, digest: str) -> bool:
        """Ends a session; False if there is none."""
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
