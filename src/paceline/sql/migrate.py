"""Brings a database to the schema this version needs. Safe to run from many processes at once.

paceline and each application have steps of their own (`Steps`), for the tables that only they use. Two tables hold how
far a database is with each of them. `paceline_<name>_revision` has the last step that was applied.
`paceline_<name>_version` has the oldest step that a program must know to run on it: steps that only add leave it alone
(expand), a step that removes something raises it (contract, `Steps.oldest_runnable`). A program runs on a newer schema
if it knows that step.
"""

from __future__ import annotations

import contextlib
import io
import logging
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from paceline.errors import ConfigurationError, PacelineError
from paceline.sql.engine import Database
from paceline.sql.migration_policy import Migrations, permitted_migrations

if TYPE_CHECKING:
    from alembic.config import Config

log = logging.getLogger(__name__)

_SCRIPTS = Path(__file__).with_name("migrations")


@dataclass(frozen=True)
class Steps:
    """The steps of a version of paceline or of an application."""

    folder: Path
    """Their modules, in the order of their names; each is a revision of Alembic."""
    oldest_runnable: str
    """The step that a program must know to run on this version's schema. Raise it in a step that removes a column or a
    table, one release after the last version that uses it."""
    name: str = "schema"
    """Whose steps they are. An application takes its own name."""

    @cached_property
    def names(self) -> list[str]:
        """Oldest first: the names of their files."""
        return sorted(file.stem for file in self.folder.glob("[0-9]*.py"))

    @property
    def revision_table(self) -> str:
        """Has the last step that was applied."""
        return f"paceline_{self.name}_revision"

    @property
    def floor_table(self) -> str:
        """Has the oldest step that a program must know."""
        return f"paceline_{self.name}_version"


STEPS = Steps(_SCRIPTS / "versions", oldest_runnable="0001_initial")
"""paceline's own."""
_LOCK = 0x70616365
"""The advisory lock that serialises concurrent migrations ("pace")."""
IDLE_TIMEOUT_MINUTES = 10
"""The idle timeout in the transaction of a migration on PostgreSQL, after which a frozen process loses that lock."""


class _DryRunDone(Exception):
    """Rolls back a dry run."""


async def prepare(database: Database, steps: Steps = STEPS) -> None:
    """Brings a database that is being opened to this version's schema, if this process may.

    Raises:
        PacelineError: The schema is older, and this process may not migrate it (`permit_migrations`).
    """
    missing = await database.read(pending, steps)
    if not missing:
        database.prepared.add(steps.name)
        return
    when = permitted_migrations()
    may = when is Migrations.ALWAYS or database.is_new_file
    if when is Migrations.EMBEDDED:
        may = may or database.dialect == "sqlite" or await database.read(current, steps) is None
    if not may:
        names = f"{', '.join(missing[:3])}{' and more' if len(missing) > 3 else ''}"
        raise PacelineError(f"the database lacks {names}; run `paceline migrate up`")
    await upgrade(database, steps)
    database.prepared.add(steps.name)


def is_prepared(database: Database, steps: Steps = STEPS) -> bool:
    """Whether `prepare` was done."""
    return steps.name in database.prepared


async def prepare_once(database: Database, steps: Steps = STEPS) -> None:
    """`prepare`, unless it was done: for stores that are opened at their first call."""
    if not is_prepared(database, steps):
        await prepare(database, steps)


async def upgrade(database: Database, steps: Steps = STEPS) -> list[str]:
    """Applies what is missing, oldest first, and returns its names; an up-to-date database is left alone."""
    if not await database.read(pending, steps):
        return []
    return await database.write_unhurried(_upgrade, steps)


async def downgrade(database: Database, *, discard_data: bool = False, steps: Steps = STEPS) -> str:
    """Undoes the last step, and returns its name.

    Raises:
        PacelineError: There is nothing to undo, or what the step would remove holds data; with `discard_data`, that is
            lost.
    """
    revision = await database.read(current, steps)
    if revision is None:
        raise PacelineError("there is nothing to undo: no step was applied")
    if revision not in steps.names:
        raise PacelineError(f"{revision} was applied by a later version of paceline; undo it with that one")
    if not discard_data:
        lost = await _data_lost(database, steps)
        if lost:
            hint = "" if revision == steps.names[0] else " An earlier version also runs on this schema as it is."
            raise PacelineError(
                f"undoing {revision} would lose the data of {', '.join(lost)}.{hint} "
                "To lose the data, repeat with --discard-data"
            )
    return await database.write_unhurried(_downgrade, steps)


async def status(database: Database, steps: Steps = STEPS) -> tuple[str | None, list[str]]:
    """The revision the database is at, and the names of those it still lacks."""
    return await database.read(current, steps), await database.read(pending, steps)


def pending(connection: Connection, steps: Steps = STEPS) -> list[str]:
    """The revisions the database lacks, oldest first; none, if a later version has migrated it.

    Raises:
        ConfigurationError: This version can't run on the database's schema, because that is too new.
    """
    known = steps.names
    revision = current(connection, steps)
    if revision is None:
        return known
    if revision in known:
        return known[known.index(revision) + 1 :]
    floor = _revision(connection, steps.floor_table)
    if floor not in known:
        raise ConfigurationError(
            "database_url",
            f"the database is at {revision}, and needs a paceline that knows {floor}; upgrade paceline",
        )
    log.info("the database is at %s, of a later version of paceline; this version runs on it", revision)
    return []


def current(connection: Connection, steps: Steps = STEPS) -> str | None:
    """The last step that was applied."""
    return _revision(connection, steps.revision_table)


def script(dialect: str, steps: Steps = STEPS) -> str:
    """The SQL an upgrade from nothing would run on `dialect`, for a database administrator to review."""
    config = _config(steps)
    config.output_buffer = buffer = io.StringIO()
    config.attributes["dialect"] = dialect
    _alembic().upgrade(config, "head", sql=True)
    floor = str(sa.schema.CreateTable(_floor(steps)).compile()).strip()
    oldest = f"INSERT INTO {steps.floor_table} (version_num) VALUES ('{steps.oldest_runnable}')"  # noqa: S608  # our own names
    return f"{buffer.getvalue()}\n{floor};\n\n{oldest};\n"


# -- inside one transaction -------------------------------------------------------------------------------------------


def _floor(steps: Steps) -> sa.Table:
    return sa.Table(
        steps.floor_table,
        sa.MetaData(),
        sa.Column("version_num", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("version_num", name=f"{steps.floor_table}_pkc"),
    )


def _upgrade(connection: Connection, steps: Steps = STEPS) -> list[str]:
    _take_turns(connection)
    missing = pending(connection, steps)
    if missing:
        _alembic().upgrade(_config(steps, connection), "head")
        _set_floor(connection, steps, steps.oldest_runnable)
    return missing


def _downgrade(connection: Connection, steps: Steps) -> str:
    _take_turns(connection)
    revision = current(connection, steps)
    assert revision is not None
    _alembic().downgrade(_config(steps, connection), "-1")
    known, left = steps.names, current(connection, steps)
    if left is None:
        connection.execute(_floor(steps).delete())
    elif known.index(left) < known.index(steps.oldest_runnable):
        _set_floor(connection, steps, left)
    return revision


def _take_turns(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        # On a busy machine, loading Alembic and the steps takes longer than a transaction may otherwise idle.
        connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_TIMEOUT_MINUTES}min'")
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")


def _set_floor(connection: Connection, steps: Steps, revision: str) -> None:
    floor = _floor(steps)
    floor.create(connection, checkfirst=True)
    connection.execute(floor.delete())
    connection.execute(floor.insert().values(version_num=revision))


async def _data_lost(database: Database, steps: Steps) -> list[str]:
    """What the last step would remove although it holds data, by a dry run in a transaction that is rolled back. Oracle
    commits DDL at once, so there it can't be known."""
    if database.dialect == "oracle":
        return ["whatever the step has added"]
    lost: list[tuple[str, str | None]] = []

    def attempt(connection: Connection) -> None:
        _take_turns(connection)
        before = _columns(connection)
        _downgrade(connection, steps)
        after = _columns(connection)
        for table, columns in before.items():
            if table not in after:
                lost.append((table, None))
            else:
                lost.extend((table, column) for column in sorted(columns - after[table]))
        raise _DryRunDone

    with contextlib.suppress(_DryRunDone):
        await database.write_unhurried(attempt)
    return await database.read(_filled, lost)


def _columns(connection: Connection) -> dict[str, set[str]]:
    inspector = sa.inspect(connection)
    tables = [name for name in inspector.get_table_names() if name.startswith("paceline_")]
    # All at once: PostgreSQL answers them with one query.
    columns = inspector.get_multi_columns(filter_names=tables)
    return {name: {column["name"] for column in listed} for (_, name), listed in columns.items()}


def _filled(connection: Connection, places: list[tuple[str, str | None]]) -> list[str]:
    """Those of the tables that have rows, and of the columns that have values."""
    filled = []
    for table, column in places:
        query: sa.Select[Any] = sa.select(sa.literal(1)).select_from(sa.table(table)).limit(1)
        if column is not None:
            query = query.where(sa.column(column).is_not(None))
        if connection.execute(query).first() is not None:
            filled.append(table if column is None else f"{table}.{column}")
    return filled


def _revision(connection: Connection, table: str) -> str | None:
    if not _has_table(connection, table):
        return None
    revision: str | None = connection.execute(sa.select(sa.column("version_num")).select_from(sa.table(table))).scalar()
    return revision


def _has_table(connection: Connection, table: str) -> bool:
    if connection.dialect.name == "postgresql":
        # Every start asks: SQLAlchemy's query takes the server ten times as long to plan. `to_regclass` may answer from
        # before `_take_turns` waited: the backend's cache hears of other transactions when a relation is locked.
        query = "SELECT EXISTS (SELECT FROM pg_class WHERE relname = %s AND pg_table_is_visible(oid))"
        return bool(connection.exec_driver_sql(query, (table,)).scalar())
    return sa.inspect(connection).has_table(table)


def _alembic() -> Any:
    # Imported here: most programs find their database up to date, and Alembic is a tenth of an idle service's memory.
    import alembic.command

    return alembic.command


def _config(steps: Steps, connection: Connection | None = None) -> Config:
    from alembic.config import Config

    config = Config()
    # A name may have a space, which would separate two of them.
    options = {"script_location": _SCRIPTS, "version_locations": steps.folder, "path_separator": "newline"}
    for name, value in options.items():
        config.set_main_option(name, str(value).replace("%", "%%"))
    config.attributes["version_table"] = steps.revision_table
    if connection is not None:
        config.attributes["connection"] = connection
    return config
