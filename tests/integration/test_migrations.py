"""Migrations: equal to the tables, safe to run at once, reviewable."""

from __future__ import annotations

import asyncio
import importlib
import os
import re
from datetime import UTC, datetime
from pathlib import Path

import alembic.command
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy.engine import Connection

import headgate
from headgate.errors import ConfigurationError
from headgate.sql import migrate
from headgate.sql.engine import Database
from headgate.sql.schema import metadata


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{request.getfixturevalue('tmp_path') / 'migrated.db'}"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture(autouse=True)
def _every_table_is_known() -> None:
    package = Path(headgate.__file__).parent
    for file in package.rglob("*tables.py"):
        importlib.import_module(".".join(("headgate", *file.relative_to(package).with_suffix("").parts)))


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


def _to(connection: Connection, revision: str) -> None:
    config = migrate._config()
    config.attributes["connection"] = connection
    alembic.command.downgrade(config, revision)


async def test_slots_of_payments_get_their_owner_by_the_payment_and_not_by_their_name(url: str) -> None:
    def fill(connection: Connection) -> None:
        at = datetime(2030, 3, 1, 16, tzinfo=UTC)
        row = dict.fromkeys(("requested_at", "window_start", "scheduled_at", "created_at"), at)
        slot, payment = metadata.tables["headgate_slot"], metadata.tables["headgate_payment"]
        names = ["payment:kept", "payment:theirs", "kept"]
        unowned = [column for column in slot.columns if column.name != "owner"]
        connection.execute(
            sa.insert(sa.table("headgate_slot", *(sa.column(column.name, column.type) for column in unowned))),
            [row | {"event_id": name, "config_name": "default", "config_version": 1} for name in names],
        )
        texts = {
            column.name: "x" for column in payment.columns if isinstance(column.type, sa.String) and not column.nullable
        }
        numbers = dict.fromkeys(("amount_minor", "fee_minor", "fingerprint"), 1)
        times = dict.fromkeys(("execute_at", "scheduled_at", "created_at", "updated_at"), at)
        connection.execute(payment.insert(), [texts | numbers | times | {"payment_id": "kept"}])

    def owners(connection: Connection) -> dict[str, str | None]:
        slot = metadata.tables["headgate_slot"]
        return {row.event_id: row.owner for row in connection.execute(sa.select(slot.c.event_id, slot.c.owner))}

    database = Database(url)
    await migrate.upgrade(database)
    await database.write(lambda connection: _to(connection, "0011_audit_details"))
    await database.write(fill)
    assert (await migrate.upgrade(database))[0] == "0012_slot_owner"
    assert await database.read(owners) == {"payment:kept": "payments", "payment:theirs": None, "kept": None}
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


async def test_a_new_sqlite_database_is_its_owners_alone(tmp_path: Path) -> None:
    earlier = os.umask(0o022)
    try:
        database = Database(f"sqlite:///{tmp_path / 'new.db'}")
        await migrate.upgrade(database)
        names = ("new.db", "new.db-wal", "new.db-shm")
        assert [oct((tmp_path / name).stat().st_mode & 0o777) for name in names] == ["0o600"] * 3
        await database.close()
        # An operator who shares the file with a group has decided so.
        (tmp_path / "new.db").chmod(0o660)
        again = Database(f"sqlite:///{tmp_path / 'new.db'}")
        await migrate.upgrade(again)
        await again.close()
        assert oct((tmp_path / "new.db").stat().st_mode & 0o777) == "0o660"
    finally:
        os.umask(earlier)
