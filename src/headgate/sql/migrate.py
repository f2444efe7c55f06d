"""Brings a database to the schema this version needs. Safe to run from many processes at once."""

from __future__ import annotations

import io
from pathlib import Path

import alembic.command
import alembic.config
import alembic.runtime.migration
import alembic.script
from sqlalchemy.engine import Connection

from headgate.errors import ConfigurationError
from headgate.sql.engine import Database

_LOCK = 0x68656164
"""The advisory lock that makes concurrent starters take turns ("head")."""


async def upgrade(database: Database) -> list[str]:
    """Applies what is missing, oldest first, and returns its names; an up-to-date database is left alone."""
    if not await database.read(pending):
        return []
    return await database.write_unhurried(_upgrade)


async def status(database: Database) -> tuple[str | None, list[str]]:
    """The revision the database is at, and the names of those it still lacks."""
    return await database.read(_current), await database.read(pending)


def pending(connection: Connection) -> list[str]:
    """The revisions the database lacks, oldest first."""
    script = alembic.script.ScriptDirectory.from_config(_config())
    current = _current(connection)
    known = [revision.revision for revision in reversed(list(script.walk_revisions()))]
    if current is not None and current not in known:
        raise ConfigurationError(
            "database_url", f"the database is at {current}, which this headgate does not know; upgrade headgate"
        )
    return known if current is None else known[known.index(current) + 1 :]


def _upgrade(connection: Connection) -> list[str]:
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
    missing = pending(connection)
    if missing:
        config = _config()
        config.attributes["connection"] = connection
        alembic.command.upgrade(config, "head")
    return missing


def _current(connection: Connection) -> str | None:
    context = alembic.runtime.migration.MigrationContext.configure(
        connection, opts={"version_table": "headgate_schema_version"}
    )
    return context.get_current_revision()


def _config() -> alembic.config.Config:
    config = alembic.config.Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")))
    return config


def script(dialect: str) -> str:
    """The SQL an upgrade from nothing would run on `dialect`, for a database administrator to review."""
    config = _config()
    config.output_buffer = buffer = io.StringIO()
    config.attributes["dialect"] = dialect
    alembic.command.upgrade(config, "head", sql=True)
    return buffer.getvalue()
