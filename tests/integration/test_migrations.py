"""Migrations: equal to the tables, safe to run at once, reviewable."""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
import re

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy.engine import Connection

import headgate.adapters.sql
from headgate.adapters.sql import migrate
from headgate.adapters.sql.engine import Database
from headgate.adapters.sql.tables import metadata
from headgate.errors import ConfigurationError


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{request.getfixturevalue('tmp_path') / 'migrated.db'}"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture(autouse=True)
def _every_table_is_known() -> None:
    for module in pkgutil.iter_modules(headgate.adapters.sql.__path__):
        if module.name.endswith("_tables"):
            importlib.import_module(f"headgate.adapters.sql.{module.name}")


async def test_migrations_make_exactly_the_tables_the_code_uses(url: str) -> None:
    def differences(connection: Connection) -> list[object]:
        context = MigrationContext.configure(
            connection, opts={"version_table": "headgate_schema_version", "compare_type": True}
        )
        return list(compare_metadata(context, metadata))

    database = Database(url)
    applied = await migrate.upgrade(database)
    assert applied[0] == "0001_slots"
    assert await database.read(differences) == []
    assert await migrate.status(database) == (applied[-1], [])
    assert await migrate.upgrade(database) == []
    await database.close()


async def test_many_processes_may_start_on_an_empty_database(url: str) -> None:
    databases = [Database(url) for _ in range(4)]
    applied = await asyncio.gather(*(migrate.upgrade(database) for database in databases))
    assert sorted(map(bool, applied)) == [False, False, False, True]
    for database in databases:
        await database.close()


async def test_a_database_newer_than_the_code_is_left_alone(url: str) -> None:
    database = Database(url)
    await migrate.upgrade(database)
    await database.write(lambda c: c.exec_driver_sql("UPDATE headgate_schema_version SET version_num = '9999_later'"))
    with pytest.raises(ConfigurationError, match=r"9999_later.*upgrade headgate"):
        await migrate.upgrade(database)
    await database.close()


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql", "oracle"])
def test_an_administrator_can_read_what_would_run(dialect: str) -> None:
    script = migrate.script(dialect)
    assert "CREATE TABLE headgate_slot " in script
    if dialect == "oracle":
        # DATE has no fractions of a second; a TIMESTAMP WITH TIME ZONE can't be part of a key (ORA-02329).
        assert not re.search(r"\bDATE\b|WITH TIME ZONE", script)
