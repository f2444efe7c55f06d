"""Databases: one pool a URL and event loop, migrated before anybody sees it."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from headgate.adapters.sql import migrate
from headgate.adapters.sql import tables as sql_tables
from headgate.adapters.sql.access import SqlAccessStore
from headgate.adapters.sql.engine import Database
from headgate.settings import Settings

if TYPE_CHECKING:
    pass


class _Databases:
    """The databases open on one event loop."""

    def __init__(self) -> None:
        self.opening = asyncio.Lock()
        self.by_url: dict[str, Database] = {}


_databases: WeakKeyDictionary[asyncio.AbstractEventLoop, _Databases] = WeakKeyDictionary()


async def database(url: str, *, pool_size: int = 10) -> Database:
    """The database at a URL, migrated to this version's schema.

    Whoever asks for the same URL on the same event loop gets the same pool: on SQLite, two pools in one process would
    wait for each other's locks by sleeping.
    """
    here = _databases.setdefault(asyncio.get_running_loop(), _Databases())
    # One after the other, so that nobody is handed a database that is still being migrated.
    async with here.opening:
        known = here.by_url.get(url)
        if known is not None and not known.closed:
            return known.share()
        opened = Database(url, pool_size=pool_size)
        try:
            await migrate.upgrade(opened)
        except BaseException:
            await opened.close()
            raise
        here.by_url[url] = opened
        return opened


def embedded_url(settings: Settings) -> str:
    """The database of a settings tree; for `memory://`, one that lives in this process."""
    return "sqlite://" if settings.database_url.startswith("memory:") else settings.database_url


class DatabaseFacts(NamedTuple):
    """What a database says about itself."""

    dialect: str
    version: str
    now: datetime
    revision: str | None
    pending: list[str]
    """Migrations this version of headgate knows and the database lacks."""
    tokens: int
    """How many tokens callers may present."""


async def migrate_up(url: str) -> list[str]:
    """Migrates a database and returns the names of what was applied."""
    opened = Database(url)
    try:
        return await migrate.upgrade(opened)
    finally:
        await opened.close()


async def database_facts(url: str) -> DatabaseFacts:
    """Asks a database about itself, changing nothing."""
    opened = Database(url)
    try:
        revision, pending = await migrate.status(opened)
        now = await opened.read(sql_tables.now)
        version = await opened.read(lambda connection: connection.dialect.server_version_info)
        known = [] if pending else await SqlAccessStore(opened).tokens()
        good = sum(token.revoked_at is None for token in known)
        return DatabaseFacts(opened.dialect, ".".join(map(str, version or ())), now, revision, pending, good)
    finally:
        await opened.close()


def migration_script(dialect: str) -> str:
    """The SQL that would make the schema on `dialect`, for a database administrator to review."""
    return migrate.script(dialect)
