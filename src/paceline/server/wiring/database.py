"""The database of a settings tree, and what it reports about itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import NamedTuple

from paceline.errors import PacelineError, StoreFull, StoreLagging, StoreReadOnly, StoreUnavailable
from paceline.server.access.stores.sql import SqlAccessStore
from paceline.server.settings import Settings
from paceline.sql import migrate
from paceline.sql import schema as sql_tables
from paceline.sql.databases import database
from paceline.sql.engine import Database
from paceline.sql.pooler import check_pooler
from paceline.sql.url import with_listen_url
from paceline.sql.write_check import WriteCheck


def embedded_url(settings: Settings) -> str:
    """The database of a settings tree; for `memory://`, one that lives in this process."""
    if settings.database_url.startswith("memory:"):
        return "sqlite://"
    return with_listen_url(settings.database_url, settings.database_listen_url)


async def shared_database(settings: Settings) -> Database:
    """The database of a settings tree, with the pool that all of this process share."""
    return await database(
        embedded_url(settings), pool_size=settings.database_pool_size, timeout=settings.database_timeout_seconds
    )


@asynccontextmanager
async def open_write_check(settings: Settings) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Checks that the database of a settings tree can be read and written; for memory, that is certain."""
    if settings.database_url.startswith("memory:"):
        yield _certain
        return
    opened = await shared_database(settings)
    try:
        yield WriteCheck(opened).check
    finally:
        await opened.close()


async def _certain() -> None:
    return


class DatabaseInfo(NamedTuple):
    """Facts about a database."""

    dialect: str
    version: str
    now: datetime
    revision: str | None
    pending: list[str]
    """Migrations this version of paceline knows and the database lacks."""
    tokens: int
    """How many valid tokens there are."""
    refuses_writes: StoreUnavailable | None
    """Why it can be read and not written. Not found out while migrations are pending."""
    is_pooled: bool
    """Whether it is behind a pooler, such as PgBouncer."""
    pooler_fails: PacelineError | None
    """Why statements fail behind the pooler."""


async def migrate_up(url: str) -> list[str]:
    """Migrates a database and returns the names of what was applied."""
    opened = Database(url)
    try:
        return await migrate.upgrade(opened)
    finally:
        await opened.close()


async def migrate_down(url: str, *, discard_data: bool) -> str:
    """Undoes the last migration and returns its name."""
    opened = Database(url)
    try:
        return await migrate.downgrade(opened, discard_data=discard_data)
    finally:
        await opened.close()


async def database_info(url: str) -> DatabaseInfo:
    """Reads facts about a database. It is left as it was: the row that is written, to see whether that works, is
    deleted in the same transaction."""
    opened = Database(url)
    try:
        revision, pending = await migrate.status(opened)
        now = await opened.read(sql_tables.now)
        version = await opened.read(lambda connection: connection.dialect.server_version_info)
        known = [] if pending else await SqlAccessStore(opened).tokens()
        good = sum(token.revoked_at is None for token in known)
        refused = None if pending else await _refused_write(opened)
        fails = await check_pooler(opened) if opened.is_pooled else None
        numbers = ".".join(map(str, version or ()))
        return DatabaseInfo(opened.dialect, numbers, now, revision, pending, good, refused, opened.is_pooled, fails)
    finally:
        await opened.close()


async def _refused_write(opened: Database) -> StoreUnavailable | None:
    try:
        await WriteCheck(opened).check()
    except (StoreReadOnly, StoreFull, StoreLagging) as error:
        return error
    return None


def migration_script(dialect: str) -> str:
    """The SQL that would make the schema on `dialect`, for a database administrator to review."""
    return migrate.script(dialect)
