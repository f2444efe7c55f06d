"""Sessions in a database."""

from __future__ import annotations

import secrets
from datetime import timedelta

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from paceline.errors import Conflict
from paceline.server.access.ports import NewSession, Session
from paceline.server.access.stores.tables import key, session
from paceline.sql.engine import Database
from paceline.sql.schema import database_now, now

KEY = "sessions"
COLUMNS = [session.c[name] for name in Session._fields]


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

    async def open(self, new: NewSession) -> Session:
        return await self._database.write(_open, new)

    async def find(self, digest: str) -> Session | None:
        return await self._database.read(_find, digest)

    async def claim_check(self, known: Session, older_than: timedelta) -> bool:
        return await self._database.write(_claim_check, known, older_than)

    async def renew(self, digest: str, seal: str, member_of: str, renewal: str | None) -> None:
        await self._database.write(_renew, digest, {"seal": seal, "member_of": member_of, "renewal": renewal})

    async def all(self) -> list[Session]:
        return await self._database.read(_all)

    async def close(self, digest: str) -> bool:
        return await self._database.write(_close, digest)


def _key(connection: Connection) -> str | None:
    return connection.execute(sa.select(key.c.value).where(key.c.name == KEY)).scalar()


def _make_key(connection: Connection, value: str) -> str:
    connection.execute(key.insert().values(name=KEY, value=value))
    return value


def _open(connection: Connection, new: NewSession) -> Session:
    moment = now(connection)
    connection.execute(session.delete().where(session.c.expires_at <= moment))
    expires_at = moment + new.lifetime
    opened = Session(
        new.digest, new.caller, new.seal, moment, expires_at, moment, new.address, new.member_of, new.renewal
    )
    connection.execute(session.insert().values(opened._asdict()))
    return opened


def _find(connection: Connection, digest: str) -> Session | None:
    valid = (session.c.digest == digest) & (session.c.expires_at > database_now())
    row = connection.execute(sa.select(*COLUMNS).where(valid)).first()
    return None if row is None else Session(*row)


def _claim_check(connection: Connection, known: Session, older_than: timedelta) -> bool:
    moment = now(connection)
    if known.checked_at > moment - older_than:
        return False
    unchanged = (session.c.digest == known.digest) & (session.c.checked_at == known.checked_at)
    return connection.execute(session.update().where(unchanged).values(checked_at=moment)).rowcount == 1


def _renew(connection: Connection, digest: str, values: dict[str, str | None]) -> None:
    connection.execute(session.update().where(session.c.digest == digest).values(values))


def _all(connection: Connection) -> list[Session]:
    valid = sa.select(*COLUMNS).where(session.c.expires_at > database_now())
    return [Session(*row) for row in connection.execute(valid.order_by(session.c.opened_at.desc(), session.c.digest))]


def _close(connection: Connection, digest: str) -> bool:
    return connection.execute(session.delete().where(session.c.digest == digest)).rowcount == 1
