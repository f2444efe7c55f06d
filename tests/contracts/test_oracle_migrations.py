"""Every migration, up and down, as Oracle would get it."""

from __future__ import annotations

import io
import re

import alembic.command
import pytest

from paceline.sql import migrate
from tests.models import oracle_grammars

_SEPARATOR = re.compile(r"(?m)^/$|;\s*$")
_REMARK = re.compile(r"(?m)^--.*$")


def downgrade_script() -> str:
    config = migrate._config()
    config.output_buffer = buffer = io.StringIO()
    config.attributes["dialect"] = "oracle"
    alembic.command.downgrade(config, "head:base", sql=True)
    return buffer.getvalue()


@pytest.mark.parametrize(("script", "least"), [(migrate.script("oracle"), 100), (downgrade_script(), 80)])
def test_two_grammars_read_every_statement(script: str, least: int) -> None:
    statements = [text.strip() for text in _SEPARATOR.split(_REMARK.sub("", script)) if text.strip()]
    assert len(statements) >= least
    for statement in statements:
        oracle_grammars.check(statement)


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
