"""The downstreams that programs share through the stores of a settings tree."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from paceline.downstream.directory import Downstreams
from paceline.downstream.ports import DownstreamDirectory
from paceline.downstream.stores import open_directory
from paceline.downstream.stores.sql_states import SqlDirectory
from paceline.server.settings import Settings
from paceline.server.wiring.database import shared_database


@asynccontextmanager
async def open_downstreams(settings: Settings) -> AsyncIterator[Downstreams]:
    """Those of the database, and those of Redis, if there is one."""
    directories: dict[str, DownstreamDirectory] = {"database": SqlDirectory(await shared_database(settings))}
    if settings.redis_url is not None:
        directories["Redis"] = await open_directory(settings.redis_url)
    downstreams = Downstreams(directories)
    try:
        yield downstreams
    finally:
        await downstreams.close()
