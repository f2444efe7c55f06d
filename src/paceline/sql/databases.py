"""Databases by URL: one pool per URL and event loop, migrated to this version's schema."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from paceline.errors import ConfigurationError
from paceline.sql import migrate
from paceline.sql.engine import Database
from paceline.sql.migrate import STEPS, Steps

CLOSING_SECONDS = 5.0


class _Databases:
    """The databases open on one event loop."""

    def __init__(self) -> None:
        self.opening = asyncio.Lock()
        self.by_url: dict[str, Database] = {}


_databases: WeakKeyDictionary[asyncio.AbstractEventLoop, _Databases] = WeakKeyDictionary()


async def database(
    url: str, *, pool_size: int = 10, timeout: float | None = None, steps: Sequence[Steps] = (STEPS,)
) -> Database:
    """The database at a URL, at this version's schema or a later one: with the tables that these steps make.

    Callers with the same URL on the same event loop share a pool: on SQLite, two pools in one process would wait for
    each other's locks by sleeping. `memory://` is a new database per call, gone when it is closed. A transaction on a
    server ends after `timeout` seconds; left out, after 10.

    Raises:
        ConfigurationError: The URL is no text, or not a database's.
        PacelineError: The schema is older, and this process may not migrate it.
    """
    if not isinstance(url, str):
        raise ConfigurationError("url", f"{url!r} is no text; give a database URL such as sqlite:///work.db")
    if url.startswith("memory:"):
        return await _migrated(Database("sqlite://"), steps)
    here = _databases.setdefault(asyncio.get_running_loop(), _Databases())
    # Serialised, so that no caller gets a database that is still being migrated.
    async with here.opening:
        known = here.by_url.get(url)
        if known is not None and not known.closed:
            return await _migrated(known.share(), steps)
        opened = here.by_url[url] = await _migrated(Database(url, pool_size=pool_size, deadline=timeout), steps)
        return opened


def hasten_databases(seconds: float = CLOSING_SECONDS) -> None:
    """Shortens the timeout of writes in flight on this event loop, because the process ends."""
    here = _databases.get(asyncio.get_running_loop())
    for opened in [] if here is None else here.by_url.values():
        opened.hasten(seconds)


async def _migrated(opened: Database, steps: Sequence[Steps]) -> Database:
    try:
        for missing in steps:
            await migrate.prepare_once(opened, missing)
    except BaseException:
        await opened.close()
        raise
    return opened
