"""Databases with the tables of everything in this repository: paceline's and each application's."""

from __future__ import annotations

from paceline.server.wiring.database import installed_steps
from paceline.sql import databases, migrate
from paceline.sql.engine import Database


async def database(url: str) -> Database:
    """The database at a URL, with all tables."""
    return await databases.database(url, steps=installed_steps())


async def upgrade(opened: Database) -> None:
    """Makes all tables."""
    for steps in installed_steps():
        await migrate.upgrade(opened, steps)
