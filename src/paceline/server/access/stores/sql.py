"""Tokens and the audit of administration in a database."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from paceline.errors import Conflict, NotFound
from paceline.server.access.audit_chain import (
    AuditRow,
    Verification,
    begin_contents,
    end_contents,
    verify,
)
from paceline.server.access.model import Scope, Token
from paceline.server.access.names import Names
from paceline.server.access.ports import AuditEntry
from paceline.server.access.stores.sessions import SqlSessionStore
from paceline.server.access.stores.tables import admin_audit, audit_chain, token
from paceline.sql.engine import Database
from paceline.sql.hash_chain import GENESIS, link_hash
from paceline.sql.schema import now

LONGEST_DETAIL = 1000
CHAIN = "admin"

R = TypeVar("R")


class SqlAccessStore:
    """A `TokenStore` and an `AdminAudit` over a database that its caller closes."""

    def __init__(self, database: Database, audit_key: bytes = b"") -> None:
        self._database = database
        self._audit_key = audit_key
        self.sessions = SqlSessionStore(database)

    async def add(self, added: Token) -> Token:
        return await self._database.write(_add, added)

    async def revoke(self, name: str) -> Token:
        return await self._database.write(_revoke, name)

    async def tokens(self) -> list[Token]:
        return await self._database.read(_tokens)

    async def rotate(self, name: str, digest: str, overlap: timedelta) -> Token:
        return await self._database.write(_rotate, name, digest, overlap)

    async def begin(self, caller: str, method: str, path: str, request_id: str, address: str | None = None) -> int:
        requested = (_plain(caller)[:64], method[:8], _plain(path)[:512], request_id[:64], address and address[:64])
        return await self._in_chain(_begin, *requested)

    async def end(self, number: int, status: int, detail: str | None = None) -> None:
        shown = None if detail is None else _plain(detail)[:LONGEST_DETAIL]
        await self._in_chain(_end, number, status, shown)

    async def verify_audit(self, kept: str | None = None) -> Verification:
        """Compares the audit with its chain of hashes, and with a hash that was kept; reads all of it."""
        return await self._database.read_aside(_verify, self._audit_key, kept)

    async def _in_chain(self, work: Callable[..., R], *arguments: object) -> R:
        """Adds a link. If the first links of several processes conflict, the later one is retried."""
        try:
            return await self._database.write(work, self._audit_key, *arguments)
        except Conflict:
            return await self._database.write(work, self._audit_key, *arguments)

    async def recent(self, limit: int, before: int | None = None) -> list[tuple[int, AuditEntry]]:
        return await self._database.read(_recent, limit, before)


def _plain(text: str) -> str:
    # PostgreSQL's text can't hold NUL, which a path may contain, nor lone surrogates, which arguments may.
    return text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()


def _add(connection: Connection, added: Token) -> Token:
    if connection.execute(sa.select(token.c.name).where(token.c.name == added.name)).first() is not None:
        raise Conflict(f"there is a token named {added.name!r} already, or there was; choose another name")
    created_at = now(connection)
    scopes = " ".join(sorted(added.scopes))
    connection.execute(
        token.insert().values(
            name=added.name,
            scopes=scopes,
            digest=added.digest,
            created_at=created_at,
            expires_at=added.expires_at,
            names=" ".join(added.names.patterns) or None,
            rate=added.rate,
        )
    )
    return replace(added, created_at=created_at)


def _rotate(connection: Connection, name: str, digest: str, overlap: timedelta) -> Token:
    moment = now(connection)
    good = (token.c.name == name) & token.c.revoked_at.is_(None)
    row = connection.execute(sa.select(token).where(good).with_for_update()).first()
    if row is None:
        raise NotFound("token", name)
    changes = {"digest": digest, "earlier_digest": row.digest, "earlier_until": moment + overlap}
    connection.execute(token.update().where(good).values(changes))
    return _token(connection.execute(sa.select(token).where(token.c.name == name)).one())


def _revoke(connection: Connection, name: str) -> Token:
    good = (token.c.name == name) & token.c.revoked_at.is_(None)
    if connection.execute(token.update().where(good).values(revoked_at=now(connection))).rowcount == 0:
        raise NotFound("token", name)
    return _token(connection.execute(sa.select(token).where(token.c.name == name)).one())


def _tokens(connection: Connection) -> list[Token]:
    return [_token(row) for row in connection.execute(sa.select(token).order_by(token.c.name))]


def _token(row: Row[Any]) -> Token:
    scopes = frozenset(Scope(scope) for scope in row.scopes.split())
    earlier = (row.expires_at, row.earlier_digest, row.earlier_until)
    bounds = (Names(tuple((row.names or "").split())), row.rate)
    return Token(row.name, scopes, row.digest, row.created_at, row.revoked_at, *earlier, *bounds)


def _begin(
    connection: Connection, key: bytes, caller: str, method: str, path: str, request_id: str, address: str | None
) -> int:
    entry = AuditEntry(now(connection), caller, method, path, request_id, None, None, address)
    facts = {"at": entry.at, "caller": caller, "method": method, "path": path, "request_id": request_id}
    inserted = connection.execute(admin_audit.insert().values(**facts, address=address)).inserted_primary_key
    assert inserted is not None
    number = int(inserted[0])
    place, link = _add_link(connection, begin_contents(number, entry), key)
    connection.execute(admin_audit.update().where(admin_audit.c.id == number).values(begin_link=place, begin_hash=link))
    return number


def _end(connection: Connection, key: bytes, number: int, status: int, detail: str | None) -> None:
    place, link = _add_link(connection, end_contents(number, status, detail), key)
    connection.execute(
        admin_audit.update()
        .where(admin_audit.c.id == number)
        .values(status=status, detail=detail, end_link=place, end_hash=link)
    )


def _add_link(connection: Connection, contents: Sequence[object], key: bytes) -> tuple[int, str]:
    """Makes a link the chain's last one. Its row is locked, so links are serialised."""
    chain = audit_chain.c.name == CHAIN
    last = connection.execute(sa.select(audit_chain).where(chain).with_for_update()).first()
    place = 1 if last is None else last.link + 1
    added = link_hash(GENESIS if last is None else last.hash, place, contents, key)
    if last is None:
        connection.execute(audit_chain.insert().values(name=CHAIN, link=place, hash=added))
    else:
        connection.execute(audit_chain.update().where(chain).values(link=place, hash=added))
    return place, added


def _verify(connection: Connection, key: bytes, kept: str | None = None) -> Verification:
    # The head first: links that are added meanwhile lie beyond it, and are left out.
    last = connection.execute(sa.select(audit_chain).where(audit_chain.c.name == CHAIN)).first()
    end = sys.maxsize if last is None else last.link
    rows = connection.execution_options(yield_per=1000).execute(sa.select(admin_audit).order_by(admin_audit.c.id))
    known = (_until(end, row) for row in rows if row.begin_link is None or row.begin_link <= end)
    return verify(known, None if last is None else (end, last.hash), key, kept)


def _until(end: int, row: Row[Any]) -> AuditRow:
    """The row as of the link `end`."""
    ended = row.end_link is None or row.end_link <= end
    status, detail = (row.status, row.detail) if ended else (None, None)
    entry = AuditEntry(row.at, row.caller, row.method, row.path, row.request_id, status, detail, row.address)
    links = (row.end_link, row.end_hash) if ended else (None, None)
    return AuditRow(row.id, entry, row.begin_link, row.begin_hash, *links)


def _recent(connection: Connection, limit: int, before: int | None) -> list[tuple[int, AuditEntry]]:
    query = sa.select(admin_audit).order_by(admin_audit.c.id.desc()).limit(limit)
    if before is not None:
        query = query.where(admin_audit.c.id < before)
    return [(row.id, _entry(row)) for row in connection.execute(query)]


def _entry(row: Row[Any]) -> AuditEntry:
    facts = (row.at, row.caller, row.method, row.path, row.request_id, row.status, row.detail, row.address)
    return AuditEntry(*facts)
