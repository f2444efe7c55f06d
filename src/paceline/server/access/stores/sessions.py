"""Sessions in a database."""

from __future__ import annotations

import secrets
from datetime import timedelta

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from paceline.errors import Conflict
from paceline.server.access.ports import Session
from paceline.server.access.stores.tables import key, session
from paceline.sql.engine import Database
from paceline.sql.schema import database_now, now

KEY = "sessions"


class SqlSessionStore:
    """A `SessionStore` over a database that its caller closes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def key(self) -> bytes:
        known = await self._database.read(_key)
        return bytes.fromhex(await self._made_key() if known is None else known)

    async def _made_key(self) -> str:
        try:
            return await self._database.write(_make_key, secrets.token_hex(32))
        except Conflict:
            value = await self._database.read(_key)  # another process made it first
            assert value is not None
            return value

    async def open(
        self, digest: str, token_name: str, seal: str, lifetime: timedelta, scopes: str | None = None
    ) -> Session:
        return await self._database.write(_open, digest, token_name, seal, lifetime, scopes)

    async def find(self, digest: str) -> Session | None:
        return await self._database.read(_find, digest)

    async def close(self, digest: str) -> None:
        await self._database.write(_close, digest)


def _key(connection: Connection) -> str | None:
    return connection.execute(sa.select(key.c.value).where(key.c.name == KEY)).scalar()


def _make_key(connection: Connection, value: str) -> str:
    connection.execute(key.insert().values(name=KEY, value=value))
    return value


def _open(
    connection: Connection, digest: str, token_name: str, seal: str, lifetime: timedelta, scopes: str | None
) -> Session:
    moment = now(connection)
    connection.execute(session.delete().where(session.c.expires_at <= moment))
    opened = Session(digest, token_name, seal, moment + lifetime, scopes)
    connection.execute(session.insert().values(opened._asdict()))
    return opened


def _find(connection: Connection, digest: str) -> Session | None:
    good = (session.c.digest == digest) & (session.c.expires_at > database_now())
    row = connection.execute(sa.select(session).where(good)).first()
    return None if row is None else Session(row.digest, row.token_name, row.seal, row.expires_at, row.scopes)


def _close(connection: Connection, digest: str) -> None:
    connection.execute(session.delete().where(session.c.digest == digest))
