"""Tokens and the audit of administration in a database."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from headgate.errors import Conflict, NotFound
from headgate.server.access.model import Scope, Token
from headgate.server.access.ports import AuditEntry
from headgate.server.access.stores.sessions import SqlSessionStore
from headgate.server.access.stores.tables import admin_audit, token
from headgate.sql.engine import Database
from headgate.sql.schema import now

LONGEST_DETAIL = 1000


class SqlAccessStore:
    """A `TokenStore` and an `AdminAudit` over a database that somebody else closes."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.sessions = SqlSessionStore(database)

    async def add(self, added: Token) -> Token:
        return await self._database.write(_add, added)

    async def revoke(self, name: str) -> Token:
        return await self._database.write(_revoke, name)

    async def tokens(self) -> list[Token]:
        return await self._database.read(_tokens)

    async def begin(self, caller: str, method: str, path: str, request_id: str) -> int:
        return await self._database.write(_begin, caller, method[:8], _plain(path)[:512], request_id[:64])

    async def end(self, number: int, status: int, detail: str | None = None) -> None:
        shown = None if detail is None else _plain(detail)[:LONGEST_DETAIL]
        await self._database.write(_end, number, status, shown)

    async def recent(self, limit: int, before: int | None = None) -> list[tuple[int, AuditEntry]]:
        return await self._database.read(_recent, limit, before)


def _plain(text: str) -> str:
    # PostgreSQL's text holds no NUL, which a path may well do, and a command's words half a surrogate pair.
    return text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()


def _add(connection: Connection, added: Token) -> Token:
    if connection.execute(sa.select(token.c.name).where(token.c.name == added.name)).first() is not None:
        raise Conflict(f"there is a token named {added.name!r} already, or there was; choose another name")
    created_at = now(connection)
    scopes = " ".join(sorted(added.scopes))
    connection.execute(
        token.insert().values(name=added.name, scopes=scopes, digest=added.digest, created_at=created_at)
    )
    return Token(added.name, added.scopes, added.digest, created_at)


def _revoke(connection: Connection, name: str) -> Token:
    good = (token.c.name == name) & token.c.revoked_at.is_(None)
    if connection.execute(token.update().where(good).values(revoked_at=now(connection))).rowcount == 0:
        raise NotFound("token", name)
    return _token(connection.execute(sa.select(token).where(token.c.name == name)).one())


def _tokens(connection: Connection) -> list[Token]:
    return [_token(row) for row in connection.execute(sa.select(token).order_by(token.c.name))]


def _token(row: Row[Any]) -> Token:
    scopes = frozenset(Scope(scope) for scope in row.scopes.split())
    return Token(row.name, scopes, row.digest, row.created_at, row.revoked_at)


def _begin(connection: Connection, caller: str, method: str, path: str, request_id: str) -> int:
    inserted = connection.execute(
        admin_audit.insert().values(at=now(connection), caller=caller, method=method, path=path, request_id=request_id)
    )
    key = inserted.inserted_primary_key
    assert key is not None
    return int(key[0])


def _end(connection: Connection, number: int, status: int, detail: str | None) -> None:
    connection.execute(admin_audit.update().where(admin_audit.c.id == number).values(status=status, detail=detail))


def _recent(connection: Connection, limit: int, before: int | None) -> list[tuple[int, AuditEntry]]:
    query = sa.select(admin_audit).order_by(admin_audit.c.id.desc()).limit(limit)
    if before is not None:
        query = query.where(admin_audit.c.id < before)
    return [
        (row.id, AuditEntry(row.at, row.caller, row.method, row.path, row.request_id, row.status, row.detail))
        for row in connection.execute(query)
    ]
