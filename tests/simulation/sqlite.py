"""A database in memory at this version's schema, made quickly: migrated once, and copied."""

from __future__ import annotations

import asyncio
import sqlite3
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from tests.every_schema import database


@lru_cache(maxsize=1)
def _image() -> bytes:
    """The bytes of a database that has the schema and no rows."""

    async def make() -> bytes:
        opened = await database("memory://")
        try:
            return await opened.read(_serialized)
        finally:
            await opened.close()

    return asyncio.run(make())


def _serialized(connection: sa.Connection) -> bytes:
    driver: Any = connection.connection.driver_connection
    image: bytes = driver.serialize()
    return image


def prepare() -> None:
    """Makes the image. It takes a second, threads and real time, so it is made before a simulation."""
    _image()


def fresh_engine() -> sa.Engine:
    """An engine on a database of its own."""
    connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
    connection.deserialize(_image())
    return sa.create_engine("sqlite://", creator=lambda: connection, poolclass=sa.pool.StaticPool)
