"""The database of a settings tree, and what it reports about itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import NamedTuple

from paceline.errors import InvalidInput, PacelineError, StoreFull, StoreLagging, StoreReadOnly, StoreUnavailable
from paceline.server.access.stores.sql import SqlAccessStore
from paceline.server.apps import app_parts
from paceline.server.settings import Settings
from paceline.sql import migrate
from paceline.sql import schema as sql_tables
from paceline.sql.databases import database
from paceline.sql.engine import Database
from paceline.sql.migrate import STEPS, Steps
from paceline.sql.migration_policy import Migrations, permitted_migrations
from paceline.sql.pooler import check_pooler
from paceline.sql.url import with_listen_url
from paceline.sql.write_check import WriteCheck


def embedded_url(settings: Settings) -> str:
    """The database of a settings tree; for `memory://`, one that lives in this process."""
    if settings.database_url.startswith("memory:"):
        return "sqlite://"
    return with_listen_url(settings.database_url, settings.database_listen_url)


def installed_steps() -> list[Steps]:
    """What makes the tables of all that is installed: paceline, and each application."""
    return [STEPS, *app_parts("migrations")]


def steps_with_work() -> list[Steps]:
    """What makes the tables that change with slots and items. A command that only reads those needs paceline's."""
    return [STEPS] if permitted_migrations() is Migrations.NEVER else installed_steps()


async def shared_database(settings: Settings, *further: Steps) -> Database:
    """The database of a settings tree, with paceline's tables and those of `further` steps, and the pool that all
    of this process share."""
    return await database(
        embedded_url(settings),
        pool_size=settings.database_pool_size,
        timeout=settings.database_timeout_seconds,
        steps=[STEPS, *further],
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
    revisions: dict[str, str | None]
    """The last migration of paceline (`schema`) and of each application."""
    pending: list[str]
    """Migrations that are installed here and that the database lacks."""
    lagging: list[str]
    """Those of them that change tables the database has."""
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
        return [applied for steps in installed_steps() for applied in await migrate.upgrade(opened, steps)]
    finally:
        await opened.close()


async def migrate_down(url: str, of: str, *, discard_data: bool) -> str:
    """Undoes the last migration of paceline (`schema`) or of an application; returns its name."""
    by_name = {steps.name: steps for steps in installed_steps()}
    if of not in by_name:
        raise InvalidInput("of", f"{of} has no tables here; give one of {', '.join(by_name)}")
    opened = Database(url)
    try:
        return await migrate.downgrade(opened, discard_data=discard_data, steps=by_name[of])
    finally:
        await opened.close()


async def database_info(url: str) -> DatabaseInfo:
    """Reads facts about a database. It is left as it was: the row that is written, to see whether that works, is
    deleted in the same transaction."""
    opened = Database(url)
    try:
        status = {steps.name: await migrate.status(opened, steps) for steps in installed_steps()}
        pending = [name for _, missing in status.values() for name in missing]
        lagging = [name for revision, missing in status.values() if revision is not None for name in missing]
        now = await opened.read(sql_tables.now)
        version = await opened.read(lambda connection: connection.dialect.server_version_info)
        _, own = status[STEPS.name]
        known = [] if own else await SqlAccessStore(opened).tokens()
        good = sum(token.revoked_at is None for token in known)
        refused = None if own else await _refused_write(opened)
        fails = await check_pooler(opened) if opened.is_pooled else None
        numbers = ".".join(map(str, version or ()))
        return DatabaseInfo(
            opened.dialect,
            numbers,
            now,
            {name: revision for name, (revision, _) in status.items()},
            pending,
            lagging,
            good,
            refused,
            opened.is_pooled,
            fails,
        )
    finally:
        await opened.close()


async def _refused_write(opened: Database) -> StoreUnavailable | None:
    try:
        await WriteCheck(opened).check()
    except (StoreReadOnly, StoreFull, StoreLagging) as error:
        return error
    return None


def migration_script(dialect: str) -> str:
    """The SQL that would make all tables on `dialect`, for a database administrator to review."""
    return "\n".join(migrate.script(dialect, steps) for steps in installed_steps())
