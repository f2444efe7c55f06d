"""Migrations: equal to the tables, safe to run at once, reviewable."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import re
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import alembic.command
import psycopg
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.engine import Connection

import paceline
from paceline.errors import ConfigurationError, PacelineError
from paceline.server.access.stores.sql import SqlAccessStore
from paceline.sql import migrate
from paceline.sql.databases import database as open_database
from paceline.sql.engine import Database
from paceline.sql.migration_policy import Migrations, permit_migrations
from paceline.sql.schema import metadata
from tests.acceptance.service import Service, run


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{request.getfixturevalue('tmp_path') / 'migrated.db'}"
    return str(request.getfixturevalue("empty_postgres_url"))


@pytest.fixture
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    """At this version's schema."""
    sqlite = f"sqlite:///{tmp_path / 'migrated.db'}"
    database = Database(sqlite if request.param == "sqlite" else request.getfixturevalue("postgres_url"))
    await migrate.upgrade(database)
    yield database
    await database.close()


on_every_store = pytest.mark.parametrize("database", ["sqlite", "postgresql"], indirect=True)


@pytest.fixture(autouse=True, scope="module")
def _every_table_is_known() -> None:
    package = Path(paceline.__file__).parent
    for file in package.rglob("*tables.py"):
        importlib.import_module(".".join(("paceline", *file.relative_to(package).with_suffix("").parts)))


async def test_migrations_make_exactly_the_tables_the_code_uses(url: str) -> None:
    def differences(connection: Connection) -> list[object]:
        context = MigrationContext.configure(
            connection,
            opts={
                "version_table": migrate.REVISION_TABLE,
                "compare_type": True,
                "include_object": lambda _object, name, *_: name != migrate.FLOOR_TABLE,
            },
        )
        return list(compare_metadata(context, metadata))

    database = Database(url)
    applied = await migrate.upgrade(database)
    assert applied[0] == "0001_slots"
    assert await database.read(differences) == []
    assert await migrate.status(database) == (applied[-1], [])
    assert await migrate.upgrade(database) == []
    await database.close()


def test_the_steps_are_applied_in_the_order_of_their_files() -> None:
    directory = ScriptDirectory.from_config(migrate._config())
    assert migrate._known() == [step.revision for step in reversed(list(directory.walk_revisions()))]


def _to(connection: Connection, revision: str) -> None:
    config = migrate._config()
    config.attributes["connection"] = connection
    alembic.command.downgrade(config, revision)


@on_every_store
async def test_slots_of_payments_get_their_owner_by_the_payment_and_not_by_their_name(database: Database) -> None:
    def fill(connection: Connection) -> None:
        at = datetime(2030, 3, 1, 16, tzinfo=UTC)
        row = dict.fromkeys(("requested_at", "window_start", "scheduled_at", "created_at"), at)
        slot, payment = metadata.tables["paceline_slot"], metadata.tables["paceline_payment"]
        names = ["payment:kept", "payment:theirs", "kept", "PAYMENT:kept", "invoices:kept"]
        unowned = [column for column in slot.columns if column.name != "owner"]
        connection.execute(
            sa.insert(sa.table("paceline_slot", *(sa.column(column.name, column.type) for column in unowned))),
            [row | {"event_id": name, "config_name": "default", "config_version": 1} for name in names],
        )
        texts = {
            column.name: "x" for column in payment.columns if isinstance(column.type, sa.String) and not column.nullable
        }
        numbers = dict.fromkeys(("amount_minor", "fee_minor", "fingerprint"), 1)
        times = dict.fromkeys(("execute_at", "scheduled_at", "created_at", "updated_at"), at)
        connection.execute(payment.insert(), [texts | numbers | times | {"payment_id": "kept"}])

    def owners(connection: Connection) -> dict[str, str | None]:
        slot = metadata.tables["paceline_slot"]
        return {row.event_id: row.owner for row in connection.execute(sa.select(slot.c.event_id, slot.c.owner))}

    await database.write(lambda connection: _to(connection, "0011_audit_details"))
    await database.write(fill)
    assert (await migrate.upgrade(database))[0] == "0012_slot_owner"
    others = dict.fromkeys(["payment:theirs", "kept", "PAYMENT:kept", "invoices:kept"])
    assert await database.read(owners) == {"payment:kept": "payments"} | others


async def test_many_processes_may_start_on_an_empty_database(url: str) -> None:
    databases = [Database(url) for _ in range(4)]
    try:
        applied = await asyncio.gather(*(migrate.upgrade(database) for database in databases))
    finally:
        for database in databases:
            await database.close()
    assert sorted(applied) == [[], [], [], migrate._known()]


async def test_a_transaction_sees_that_another_has_migrated_meanwhile(empty_postgres_url: str) -> None:
    """As after it has waited for its turn: PostgreSQL goes on answering `to_regclass` from a backend's cache."""

    def before_and_after(connection: Connection) -> tuple[str | None, str | None]:
        before = migrate.current(connection)
        with psycopg.connect(empty_postgres_url) as other:
            other.execute(f"CREATE TABLE {migrate.REVISION_TABLE} AS SELECT '0001_first' AS version_num")
        return before, migrate.current(connection)

    database = Database(empty_postgres_url)
    try:
        assert await database.write(before_and_after) == (None, "0001_first")
    finally:
        await database.close()


@on_every_store
@pytest.mark.parametrize(("floor", "runs"), [(migrate.OLDEST_RUNNABLE, True), ("9998_contracted", False)])
async def test_a_version_runs_on_the_schema_of_the_next_one_until_that_takes_something_away(
    database: Database, floor: str, runs: bool
) -> None:
    def move_on(connection: Connection) -> None:
        connection.exec_driver_sql(f"UPDATE {migrate.REVISION_TABLE} SET version_num = '9999_later'")
        connection.exec_driver_sql(f"UPDATE {migrate.FLOOR_TABLE} SET version_num = '{floor}'")

    await database.write(move_on)
    if runs:
        assert await migrate.upgrade(database) == []
        await migrate.prepare(database)
        with pytest.raises(PacelineError, match="9999_later was applied by a later version"):
            await migrate.downgrade(database)
    else:
        with pytest.raises(ConfigurationError, match=r"9999_later.*9998_contracted; upgrade paceline"):
            await migrate.upgrade(database)
    assert await database.read(migrate.current) == "9999_later"


@on_every_store
async def test_a_database_of_the_previous_release_is_taken_over(database: Database) -> None:
    """Version 0.2.0 kept its revision in the table that now holds the compatible versions."""
    await database.write(lambda connection: _to(connection, "0012_slot_owner"))
    await database.write(lambda connection: connection.exec_driver_sql(f"DROP TABLE {migrate.REVISION_TABLE}"))
    applied = await migrate.upgrade(database)
    assert applied[0] == "0013_payment_lifecycle"
    assert await migrate.status(database) == (applied[-1], [])


@on_every_store
async def test_the_last_step_can_be_undone_and_done_again(database: Database) -> None:
    applied = migrate._known()
    undone = [await migrate.downgrade(database) for _ in range(2)]
    assert undone == applied[: -len(undone) - 1 : -1]
    assert await migrate.status(database) == (applied[-3], applied[-2:])
    assert await migrate.upgrade(database) == applied[-2:]


@on_every_store
async def test_a_step_whose_data_would_be_lost_is_undone_only_with_discard_data(database: Database) -> None:
    await database.write(lambda connection: _to(connection, "0021_access"))
    store = SqlAccessStore(database)
    await store.sessions.key()
    with pytest.raises(PacelineError, match=r"lose the data of paceline_key; an earlier version also runs.*--discard"):
        await migrate.downgrade(database)
    assert await migrate.status(database) == ("0021_access", (await migrate.status(database))[1])
    assert await migrate.downgrade(database, discard_data=True) == "0021_access"


async def test_every_step_can_be_undone(url: str) -> None:
    database = Database(url)
    applied = await migrate.upgrade(database)
    assert [await migrate.downgrade(database) for _ in applied] == applied[::-1]
    with pytest.raises(PacelineError, match="nothing to undo"):
        await migrate.downgrade(database)
    assert await migrate.upgrade(database) == applied
    await database.close()


@on_every_store
@pytest.mark.parametrize("when", list(Migrations))
async def test_opening_migrates_only_what_it_may(database: Database, when: Migrations) -> None:
    undone = await migrate.downgrade(database)
    url = database.url.render_as_string(hide_password=False)
    permit_migrations(when)
    try:
        embedded = url.startswith("sqlite") and when is Migrations.EMBEDDED
        if when is Migrations.ALWAYS or embedded:
            await (await open_database(url)).close()
            assert (await migrate.status(database))[1] == []
        else:
            with pytest.raises(PacelineError, match=f"lacks {undone}; run `paceline migrate up`"):
                await open_database(url)
            assert (await migrate.status(database))[1] == [undone]
    finally:
        permit_migrations(Migrations.ALWAYS)


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql", "oracle"])
def test_an_administrator_can_read_what_would_run(dialect: str) -> None:
    script = migrate.script(dialect)
    assert "CREATE TABLE paceline_slot " in script
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


def test_commands_migrate_a_shared_database_only_with_migrate(empty_postgres_url: str, tmp_path: Path) -> None:
    variables = {"PACELINE_DATABASE_URL": empty_postgres_url}
    assert run(tmp_path, "config", "get", "default", **variables).returncode == 1, "reading makes no schema either"
    assert "0001_slots" in run(tmp_path, "migrate", "status", **variables).stdout
    assert run(tmp_path, "migrate", "up", **variables).returncode == 0
    undone = json.loads(run(tmp_path, "migrate", "down", "--json", **variables).stdout)["undone"]
    for words in (
        ["config", "get", "default"],
        ["serve", "--port", "0"],
        ["worker"],
        ["config", "set", "c", "--max", "1"],
    ):
        refused = run(tmp_path, *words, **variables)
        assert refused.returncode == 1, words
        assert f"lacks {undone}; run `paceline migrate up`" in refused.stderr
    status = json.loads(run(tmp_path, "migrate", "status", "--json", **variables).stdout)
    assert status["pending"] == [undone]
    with Service(tmp_path, "--migrate", **variables):
        assert run(tmp_path, "migrate", "status", **variables).returncode == 0


async def test_a_slow_step_is_not_taken_for_a_frozen_process(
    empty_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def adopt_slowly(connection: Connection) -> None:
        # As if loading the steps took long: the session idles in its transaction.
        time.sleep(0.1)
        adopt(connection)

    adopt = migrate._adopt
    monkeypatch.setattr(migrate, "_adopt", adopt_slowly)
    monkeypatch.setattr("paceline.sql.engine.IDLE_TIMEOUT_SECONDS", 0.02)
    database = Database(empty_postgres_url)
    try:
        assert await migrate.upgrade(database)
    finally:
        await database.close()
