"""Every migration, up and down, as Oracle would get it."""

from __future__ import annotations

import io
import re
from collections.abc import Callable

import alembic.command
import pytest
from sqlalchemy.dialects.oracle import oracledb
from sqlalchemy.schema import CreateTable

from paceline.server.wiring.database import installed_steps, migration_script
from paceline.sql import migrate
from paceline.sql.migrate import Steps
from tests.models import oracle_grammars
from tests.models.every_table import every_table, tables_of

_SEPARATOR = re.compile(r"(?m)^/$|;\s*$")
_REMARK = re.compile(r"(?m)^--.*$")


def downgrade_script(steps: Steps) -> str:
    config = migrate._config(steps)
    config.output_buffer = buffer = io.StringIO()
    config.attributes["dialect"] = "oracle"
    alembic.command.downgrade(config, "head:base", sql=True)
    return buffer.getvalue()


@pytest.mark.parametrize("steps", installed_steps(), ids=lambda steps: steps.name)
@pytest.mark.parametrize("way", [lambda steps: migrate.script("oracle", steps), downgrade_script], ids=["up", "down"])
def test_two_grammars_read_every_statement(steps: Steps, way: Callable[[Steps], str]) -> None:
    script = way(steps)
    statements = [text.strip() for text in _SEPARATOR.split(_REMARK.sub("", script)) if text.strip()]
    assert len(statements) >= len(tables_of(steps.name).tables)
    for statement in statements:
        oracle_grammars.check(statement)


def columns(script: str) -> dict[str, set[str]]:
    """The columns and constraints of each table, as the script makes them."""
    tables = {
        name: {line.strip().rstrip(",") for line in body.splitlines()}
        for name, body in re.findall(r"(?s)CREATE TABLE (paceline_\w+) \(\n(.*?)\n\)\n", script)
    }
    for name, column in re.findall(r"ALTER TABLE (paceline_\w+) ADD (.*)", script):
        tables[name].add(column.strip())
    return tables


def test_the_migrations_make_exactly_the_columns_the_code_uses() -> None:
    """Alembic compares only with a database that is there: this compares the scripts."""
    dialect = oracledb.dialect()
    dialect.supports_native_boolean = False
    metadata = every_table()
    script = "".join(str(CreateTable(table).compile(dialect=dialect)) for table in metadata.tables.values())
    made = columns(migration_script("oracle"))
    assert len(columns(script)) == len(metadata.tables)
    assert {name: parts for name, parts in made.items() if name in metadata.tables} == columns(script)


@pytest.mark.parametrize(
    "wrong",
    [
        "SELECT a FROM t LIMIT 5",
        "SELECT a FROM t ORDER BY a FETCH FIRST 5 ROWS ONLY FOR UPDATE",
        "SELECT a FROM t WHERE enabled IS true",
        "INSERT INTO t (a) VALUES (:a) ON CONFLICT (a) DO NOTHING",
        "SELECT a FROM t WHERE context_json = :a",
        "SELECT DISTINCT context_json FROM t",
        f"SELECT a FROM t WHERE a IN ({', '.join(f':a_{n}' for n in range(1001))})",
        """SELECT a FROM t WHERE a = :"CASE_WHEN_'x'" """,
        "SELECT a::text FROM t",
    ],
)
def test_what_oracle_would_not_take_is_noticed(wrong: str) -> None:
    with pytest.raises(AssertionError):
        oracle_grammars.check(wrong)
