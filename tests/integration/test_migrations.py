"""Migrations: equal to the tables, safe to run at once, reviewable."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.engine import Connection

from paceline.dispatch.queue import DispatchQueue
from paceline.errors import ConfigurationError, PacelineError
from paceline.server.wiring.database import installed_steps, migrate_up
from paceline.sql import databases, migrate
from paceline.sql.engine import Database
from paceline.sql.migrate import STEPS, Steps
from paceline.sql.migration_policy import Migrations, permitting
from tests import later_version
from tests.acceptance.service import Service, run
from tests.later_version import ADDED
from tests.models.every_table import TABLES_OF, every_table, tables_of

IDLE = "idle_in_transaction_session_timeout"


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


@pytest.fixture
def later(tmp_path: Path) -> Steps:
    """The steps of a later version."""
    return later_version.steps(tmp_path / "later versions")


each_set = pytest.mark.parametrize("steps", installed_steps(), ids=lambda steps: steps.name)
on_every_store = pytest.mark.parametrize("database", ["sqlite", "postgresql"], indirect=True)


@pytest.fixture(autouse=True, scope="module")
def _every_table_is_known() -> None:
    every_table()


@each_set
async def test_migrations_make_exactly_the_tables_the_code_uses(url: str, steps: Steps) -> None:
    def differences(connection: Connection) -> list[object]:
        context = MigrationContext.configure(
            connection,
            opts={
                "version_table": steps.revision_table,
                "compare_type": True,
                "include_object": lambda _object, name, *_: name != steps.floor_table,
            },
        )
        return list(compare_metadata(context, tables_of(steps.name)))

    database = Database(url)
    applied = await migrate.upgrade(database, steps)
    assert applied == steps.names
    assert await database.read(differences) == []
    assert await migrate.status(database, steps) == (applied[-1], [])
    assert await migrate.upgrade(database, steps) == []
    await database.close()


def test_every_table_is_made_by_one_set_of_steps() -> None:
    made = [name for steps in installed_steps() for name in tables_of(steps.name).tables]
    assert sorted(made) == sorted(every_table().tables)


@each_set
def test_the_steps_are_applied_in_the_order_of_their_files(steps: Steps) -> None:
    directory = ScriptDirectory.from_config(migrate._config(steps))
    assert steps.names == [step.revision for step in reversed(list(directory.walk_revisions()))]


def tables(url: str) -> set[str]:
    """The names of a database's tables, as the database lists them."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
            return {name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    with psycopg.connect(url) as server:
        return {name for (name,) in server.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")}


async def test_a_queues_database_has_no_table_of_an_application(url: str) -> None:
    async with DispatchQueue.open(url) as queue:
        await queue.configure("WORK")
    others = [name for name in TABLES_OF if name != STEPS.name]
    assert tables(url) >= set(tables_of(STEPS.name).tables)
    assert tables(url) & {name for other in others for name in tables_of(other).tables} == set()


async def test_what_is_installed_later_gets_its_tables_when_the_database_is_migrated(url: str) -> None:
    """As a service that begins with SMS, and gets payments a year later, whose steps another database has."""
    database = Database(url)
    *earlier, later = installed_steps()
    for steps in earlier:
        await migrate.upgrade(database, steps)
    before = tables(url)
    await database.close()
    assert before & set(tables_of(later.name).tables) == set()
    assert await migrate_up(url) == later.names
    assert tables(url) - before == {*tables_of(later.name).tables, later.revision_table, later.floor_table}


@pytest.mark.parametrize("when", [Migrations.EMBEDDED, Migrations.NEVER])
async def test_a_start_makes_the_tables_of_an_application_that_is_new(url: str, when: Migrations) -> None:
    """It changes none that is there, so that an operator need not do it; what only reads makes none."""
    *_, later = installed_steps()
    await (await databases.database(url)).close()
    with permitting(when):
        if when is Migrations.NEVER:
            with pytest.raises(PacelineError, match=f"lacks {later.names[0]}; run `paceline migrate up`"):
                await databases.database(url, steps=[STEPS, later])
        else:
            await (await databases.database(url, steps=[STEPS, later])).close()
    assert (tables(url) >= set(tables_of(later.name).tables)) == (when is Migrations.EMBEDDED)


async def test_one_applications_last_step_is_undone_by_its_name(url: str, tmp_path: Path) -> None:
    variables = {"PACELINE_DATABASE_URL": url}
    applied = json.loads(run(tmp_path, "migrate", "up", "--json", **variables).stdout)["applied"]
    assert applied == [name for steps in installed_steps() for name in steps.names]
    assert json.loads(run(tmp_path, "migrate", "down", "--of", "sms", "--json", **variables).stdout) == {
        "undone": "0001_sms"
    }
    assert tables(url) & set(tables_of("sms").tables) == set()
    assert tables(url) >= {*tables_of("payments").tables, *tables_of(STEPS.name).tables}
    assert "lacks 0001_sms: the next service or worker makes it" in run(tmp_path, "doctor", **variables).stdout
    refused = run(tmp_path, "migrate", "down", "--of", "faxes", **variables)
    assert refused.returncode != 0
    assert "--of: faxes has no tables here; give one of schema, sms, payments" in refused.stderr


async def test_many_processes_may_start_on_an_empty_database(url: str) -> None:
    databases = [Database(url) for _ in range(4)]
    try:
        applied = await asyncio.gather(*(migrate.upgrade(database) for database in databases))
    finally:
        for database in databases:
            await database.close()
    assert sorted(applied) == [[], [], [], STEPS.names]


async def test_a_transaction_sees_that_another_has_migrated_meanwhile(empty_postgres_url: str) -> None:
    """As after it has waited for its turn: PostgreSQL goes on answering `to_regclass` from a backend's cache."""

    def before_and_after(connection: Connection) -> tuple[str | None, str | None]:
        before = migrate.current(connection)
        with psycopg.connect(empty_postgres_url) as other:
            other.execute(f"CREATE TABLE {STEPS.revision_table} AS SELECT '0001_first' AS version_num")
        return before, migrate.current(connection)

    database = Database(empty_postgres_url)
    try:
        assert await database.write(before_and_after) == (None, "0001_first")
    finally:
        await database.close()


@on_every_store
async def test_a_version_runs_on_the_schema_of_a_later_one(database: Database, later: Steps) -> None:
    assert await migrate.upgrade(database, later) == [ADDED]
    assert await migrate.upgrade(database) == []
    await migrate.prepare(database)
    assert await migrate.status(database) == (ADDED, [])
    with pytest.raises(PacelineError, match=f"{ADDED} was applied by a later version"):
        await migrate.downgrade(database)


@on_every_store
async def test_a_version_refuses_a_schema_that_lacks_what_it_needs(database: Database, tmp_path: Path) -> None:
    await migrate.upgrade(database, later_version.steps(tmp_path / "later", oldest_runnable=ADDED))
    for refused in (migrate.upgrade(database), migrate.prepare(database)):
        with pytest.raises(ConfigurationError, match=f"is at {ADDED}, and needs .* knows {ADDED}; upgrade paceline"):
            await refused


@on_every_store
async def test_the_last_step_can_be_undone_and_done_again(database: Database, later: Steps) -> None:
    for _ in range(2):
        assert await migrate.upgrade(database, later) == [ADDED]
        assert await migrate.downgrade(database, steps=later) == ADDED
        assert await migrate.status(database, later) == (STEPS.names[-1], [ADDED])


@on_every_store
@pytest.mark.parametrize(
    ("statement", "place"),
    [
        (f"INSERT INTO {later_version.TABLE} VALUES ('x')", later_version.TABLE),
        (
            "INSERT INTO paceline_outbox_reader (topic, owner, leased_until, added)"
            " VALUES ('x', 'x', '2027-01-01', 'x')",
            f"paceline_outbox_reader.{later_version.COLUMN}",
        ),
    ],
)
async def test_a_step_whose_data_would_be_lost_is_undone_only_with_discard_data(
    database: Database, later: Steps, statement: str, place: str
) -> None:
    await migrate.upgrade(database, later)
    await database.write(lambda connection: connection.exec_driver_sql(statement))
    with pytest.raises(
        PacelineError, match=rf"lose the data of {place}\. An earlier version also runs.*--discard-data"
    ):
        await migrate.downgrade(database, steps=later)
    assert await migrate.status(database, later) == (ADDED, [])
    assert await migrate.downgrade(database, discard_data=True, steps=later) == ADDED


@on_every_store
async def test_nothing_else_runs_on_what_is_left_of_the_first_step(database: Database) -> None:
    statement = "INSERT INTO paceline_outbox_reader (topic, owner, leased_until) VALUES ('x', 'x', '2027-01-01')"
    await database.write(lambda connection: connection.exec_driver_sql(statement))
    with pytest.raises(PacelineError, match=r"lose the data of paceline_outbox_reader\. To lose the data, repeat"):
        await migrate.downgrade(database)


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
async def test_opening_migrates_only_what_it_may(database: Database, later: Steps, when: Migrations) -> None:
    with permitting(when):
        if when is Migrations.ALWAYS or (when is Migrations.EMBEDDED and database.dialect == "sqlite"):
            await migrate.prepare(database, later)
            assert await migrate.status(database, later) == (ADDED, [])
        else:
            with pytest.raises(PacelineError, match=f"lacks {ADDED}; run `paceline migrate up`"):
                await migrate.prepare(database, later)
            assert await migrate.status(database, later) == (STEPS.names[-1], [ADDED])


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
    assert STEPS.names[0] in run(tmp_path, "migrate", "status", **variables).stdout
    assert run(tmp_path, "migrate", "up", **variables).returncode == 0
    variables["PYTHONPATH"] = later_version.modules(tmp_path / "later")
    for words in (
        ["config", "get", "default"],
        ["serve", "--port", "0"],
        ["worker"],
        ["config", "set", "c", "--max", "1"],
    ):
        refused = run(tmp_path, *words, **variables)
        assert refused.returncode == 1, words
        assert f"lacks {ADDED}; run `paceline migrate up`" in refused.stderr
    status = json.loads(run(tmp_path, "migrate", "status", "--json", **variables).stdout)
    assert status["pending"] == [ADDED]
    with Service(tmp_path, "--migrate", **variables):
        assert run(tmp_path, "migrate", "status", **variables).returncode == 0
    assert json.loads(run(tmp_path, "migrate", "down", "--json", **variables).stdout)["undone"] == ADDED


async def test_a_slow_step_is_not_taken_for_a_frozen_process(empty_postgres_url: str, tmp_path: Path) -> None:
    """Loading the steps may take longer than a session may otherwise idle in a transaction."""
    steps = later_version.steps(tmp_path / "later")
    (last,) = steps.folder.glob(f"{ADDED}.py")
    seen = f"CREATE TABLE seen AS SELECT current_setting('{IDLE}') AS timeout"
    last.write_text(
        last.read_text().replace("def upgrade() -> None:", f'def upgrade() -> None:\n    op.execute("{seen}")')
    )
    database = Database(empty_postgres_url)
    try:
        await migrate.upgrade(database, steps)
        usual = await database.write(lambda connection: connection.exec_driver_sql(f"SHOW {IDLE}").scalar())
        in_steps = await database.read(
            lambda connection: connection.exec_driver_sql("SELECT timeout FROM seen").scalar()
        )
    finally:
        await database.close()
    assert in_steps == f"{migrate.IDLE_TIMEOUT_MINUTES}min"
    assert usual not in ("0", in_steps)
