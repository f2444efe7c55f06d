"""A stand-in for Oracle, which is not available here: it records every statement that Oracle would get, and answers it.

Stores run on SQLAlchemy's own Oracle dialect, with its compiler and its types. Below it, where Oracle's driver would
be, sqlglot translates each statement to SQLite, which executes it. What is checked so: that the statements are Oracle's
(two grammars read them, `oracle_grammars.py`), and that they mean what the contract suites ask. An empty text is NULL,
as on Oracle. What can't be checked so: Oracle's locks, plans, limits and conversions.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache, lru_cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from threading import get_ident
from types import SimpleNamespace
from typing import Any

import sqlalchemy as sa
import sqlglot
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.oracle.base import OracleDialect
from sqlalchemy.dialects.oracle.cx_oracle import OracleCompiler_cx_oracle
from sqlglot import exp

DRIVER = "oracle+standin"
VERSION = (19, 3)
"""The oldest that Oracle supports now."""
BUSY_SECONDS = 30
TRANSLATIONS = Path(__file__).parents[2] / ".pytest_cache" / "d" / "oracle_translations"
"""A file for each statement that was translated; `pytest --cache-clear` removes them."""
NOW = "SYS_EXTRACT_UTC(SYSTIMESTAMP)"
_QUOTED_BIND = re.compile(r':"([^"]+)"')
_LIST = re.compile(r"\((:\w+), :\w+(?:, :\w+)*\)")

statements: set[str] = set()
"""Statements that were sent and not checked yet."""


class Timestamp(sa.TIMESTAMP):
    """Oracle's TIMESTAMP, as SQLite keeps it: text that sorts as time does."""

    def bind_processor(self, dialect: Any) -> Any:
        return None

    def result_processor(self, dialect: Any, coltype: object) -> Any:
        def process(value: Any) -> Any:
            return datetime.fromisoformat(value) if isinstance(value, str) else value

        return process


class Flag(sa.Boolean):
    """A number that Python sees as a boolean: what the driver's type handlers do on Oracle."""


class StandInDialect(OracleDialect):
    """Oracle's dialect over the stand-in's driver."""

    driver = "standin"
    supports_statement_cache = True
    supports_sane_rowcount = True
    supports_sane_multi_rowcount = True
    statement_compiler = OracleCompiler_cx_oracle
    colspecs = {**OracleDialect.colspecs, sa.TIMESTAMP: Timestamp, sa.Boolean: Flag}  # noqa: RUF012

    @classmethod
    def import_dbapi(cls) -> Any:
        # sqlite3's errors, with the parameters of Oracle's driver.
        return SimpleNamespace(**{**vars(sqlite3), "paramstyle": "named"})

    def initialize(self, connection: Any) -> None:
        self.server_version_info = VERSION
        self.supports_native_boolean = False
        self.default_schema_name = "paceline"

    def create_connect_args(self, url: Any) -> Any:
        return [], {"path": url.database}

    def connect(self, *_: Any, path: str) -> Any:
        return StandInConnection(path)

    def is_disconnect(self, *_: Any) -> bool:
        return False

    def do_ping(self, dbapi_connection: Any) -> bool:
        return True

    def has_table(self, connection: Any, table_name: str, *_: Any, **__: Any) -> bool:
        known = connection.connection.dbapi_connection.sqlite
        return bool(known.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table_name,)).fetchone())


class StandInConnection:
    """A driver's connection. One transaction at a time has the database: the locks of rows are coarser here."""

    def __init__(self, path: str) -> None:
        self.sqlite = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        # Nothing here is to survive a crash.
        for statement in ("PRAGMA synchronous = OFF", "PRAGMA journal_mode = MEMORY"):
            self.sqlite.execute(statement)
        self.sqlite.execute("CREATE TEMP VIEW dual AS SELECT 'X' AS dummy")
        self.sqlite.create_function(
            "paceline_oracle_now", 0, lambda: _time_text(datetime.now(UTC).replace(tzinfo=None))
        )
        self.sqlite.create_function("paceline_minus_seconds", 2, _minus_seconds)

    def cursor(self) -> StandInCursor:
        return StandInCursor(self.sqlite)

    def commit(self) -> None:
        self.sqlite.commit()

    def rollback(self) -> None:
        self.sqlite.rollback()

    def close(self) -> None:
        self.sqlite.close()


class StandInCursor:
    """A driver's cursor: records, translates, executes."""

    arraysize = 1

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._cursor = connection.cursor()

    def execute(self, text: str, parameters: Any = ()) -> None:
        self._begin(text)
        self._cursor.execute(translated(text), _bound(parameters))

    def executemany(self, text: str, parameters: Any) -> None:
        self._begin(text)
        self._cursor.executemany(translated(text), [_bound(one) for one in parameters])

    def _begin(self, text: str) -> None:
        statements.add(text)
        if not self._connection.in_transaction:
            self._connection.execute("BEGIN IMMEDIATE")

    @property
    def description(self) -> Any:
        columns = self._cursor.description
        return None if columns is None else [(column[0].upper(), *column[1:]) for column in columns]

    @property
    def rowcount(self) -> int:
        return self._cursor.rowcount

    def fetchone(self) -> Any:
        return self._cursor.fetchone()

    def fetchmany(self, size: int | None = None) -> Any:
        return self._cursor.fetchmany(size or self.arraysize)

    def fetchall(self) -> Any:
        return self._cursor.fetchall()

    def close(self) -> None:
        self._cursor.close()


@lru_cache(maxsize=10_000)
def translated(text: str) -> str:
    """Oracle's SQL as SQLite's."""
    plain = _QUOTED_BIND.sub(r":\1", text).replace(NOW, "paceline_oracle_now()")
    # Statements that differ in the length of a list alone are translated once.
    lists = {f"({found[1]})": found[0] for found in _LIST.finditer(plain)}
    translation = _translated(_LIST.sub(r"(\1)", plain))
    return re.sub(r"\(:\w+\)", lambda found: lists.get(found[0], found[0]), translation)


@lru_cache(maxsize=10_000)
def _translated(text: str) -> str:
    """Kept for other workers and for the next run, as long as sqlglot's version and this file stay the same."""
    kept = TRANSLATIONS / sha256(f"{_translator()}\n{text}".encode()).hexdigest()
    with suppress(FileNotFoundError):
        return kept.read_text()
    tree = sqlglot.parse_one(text, read="oracle")
    for select in tree.find_all(exp.Select):
        select.set("locks", [])
    translation = str(tree.transform(_translated_node, copy=False).sql("sqlite"))
    TRANSLATIONS.mkdir(parents=True, exist_ok=True)
    unfinished = kept.with_suffix(f".{os.getpid()}.{get_ident()}")
    unfinished.write_text(translation)
    unfinished.replace(kept)
    return translation


@cache
def _translator() -> str:
    """What a translation depends on beside the statement."""
    return f"{version('sqlglot')} {Path(__file__).read_text()}"


def _translated_node(node: Any) -> Any:
    if isinstance(node, exp.Sub) and isinstance(node.expression, exp.Anonymous):
        # A time minus an interval.
        return exp.func("paceline_minus_seconds", node.this, node.expression.expressions[0])
    return node


def _minus_seconds(moment: str, seconds: float) -> str:
    from datetime import timedelta

    return _time_text(datetime.fromisoformat(moment) - timedelta(seconds=seconds))


def _time_text(moment: datetime) -> str:
    """Of one length, so that it sorts as time does."""
    return moment.isoformat(" ", "microseconds")


def _bound(parameters: Any) -> Any:
    if isinstance(parameters, dict):
        return {name.strip('"'): _value(value) for name, value in parameters.items()}
    return [_value(value) for value in parameters]


def _value(value: Any) -> Any:
    if isinstance(value, datetime):
        assert value.tzinfo is None, "Oracle's TIMESTAMP has no zone"
        return _time_text(value)
    if isinstance(value, Decimal):
        return str(value)
    return None if value == "" else value


def stand_in_url(template: Path, path: Path) -> str:
    """The URL of a fresh stand-in with the schema of an SQLite file."""
    shutil.copy(template, path)
    return f"oracle:///{path}"


registry.register("oracle.standin", __name__, "StandInDialect")
