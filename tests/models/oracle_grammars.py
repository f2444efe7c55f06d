"""Checks a statement with two independent grammars of Oracle's SQL, and with rules that no grammar has.

The grammars take a tenth of a second for a statement. Statements that both have parsed are cached, for other workers
and for the next run, as long as the grammars' versions, this file and the columns of type CLOB stay the same.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import sqlglot
from sqlglot import exp

from paceline.dispatch.stores import tables as _dispatch  # noqa: F401
from paceline.slots.stores import tables as _slots  # noqa: F401
from paceline.sql import outbox_tables as _outbox  # noqa: F401
from paceline.sql import write_check as _write_check  # noqa: F401
from paceline.sql.schema import metadata
from paceline_payments.stores import tables as _payments  # noqa: F401
from paceline_sms.stores import tables as _notifications  # noqa: F401

READ = Path(__file__).parents[2] / ".pytest_cache" / "d" / "oracle_grammars"
"""An empty file for each statement that was read; `pytest --cache-clear` removes them."""
LONGEST_LIST = 1000
"""ORA-01795."""
LONGEST_NAME = 128
"""ORA-00972, since 12.2."""
UNKNOWN_TO_SQLFLUFF = {"SET TRANSACTION READ WRITE"}
"""How Alembic begins a transaction."""
_CASE = re.compile(r"CASE WHEN .+? END")
_LIST = re.compile(r"\((:\w+)(?:, :\w+)+\)")
_BIND = re.compile(r':("[^"]*"|\w+)')
_PLAIN_BIND = re.compile(r'[A-Za-z]\w*|"[A-Za-z]\w*"')
_TEXT = re.compile(r"'[^']*'")


def check(statement: str) -> None:
    """Fails if Oracle would not take the statement."""
    assert not (problems := _problems(statement)), f"{statement}\n" + "\n".join(problems)


@lru_cache(maxsize=10_000)
def _problems(statement: str) -> tuple[str, ...]:
    # Lists that differ in their length alone are read once.
    return (*_broken_rules(statement), *_unread(_LIST.sub(r"(\1)", statement)))


def _broken_rules(statement: str) -> list[str]:
    code = _TEXT.sub("''", statement)
    locked = "FOR UPDATE" in code and re.search(r"FETCH FIRST|ROWNUM", code)
    longest = max((len(found[0].split(",")) for found in _LIST.finditer(code)), default=0)
    binds = [bind for bind in _BIND.findall(statement) if not _PLAIN_BIND.fullmatch(bind)]
    names = [name for name in re.findall(r"\w+", code) if len(name) > LONGEST_NAME]
    broken = {
        "ORA-02014: limits the rows it locks": locked,
        f"ORA-01795: {longest} values in a list": longest > LONGEST_LIST,
        f"ORA-01745: parameters {binds}": binds,
        f"ORA-00972: names {names}": names,
        "ORA-00911: more than one statement": ";" in code,
        "ORA-00933: another database's words": re.search(r"(?i)\bLIMIT\b|::|\bILIKE\b|\bCOLLATE\b|\bIS [01]\b", code),
        "Oracle before 23 has no BOOLEAN": re.search(r"(?i)\b(boolean|true|false)\b", code),
    }
    return [rule for rule, applies in broken.items() if applies]


@lru_cache(maxsize=10_000)
def _unread(statement: str) -> tuple[str, ...]:
    remembered = READ / sha256(f"{_readers()}\n{statement}".encode()).hexdigest()
    if remembered.exists():
        return ()
    problems = (*_sqlglot(statement), *_sqlfluff(statement))
    if not problems:
        READ.mkdir(parents=True, exist_ok=True)
        remembered.touch()
    return problems


@cache
def _readers() -> str:
    """What a verdict depends on beside the statement."""
    versions = [version(name) for name in ("sqlglot", "sqlfluff", "sqlfluffrs")]
    return repr((versions, Path(__file__).read_text(), sorted(_texts())))


def _sqlglot(statement: str) -> list[str]:
    try:
        trees = sqlglot.parse(statement, read="oracle")
    except sqlglot.ParseError as error:
        return [f"sqlglot: {error}"]
    # Unknown statements are kept as a Command, unparsed.
    unread = [f"sqlglot reads no {tree.this}" for tree in trees if isinstance(tree, exp.Command)]
    return unread + [f"ORA-00932: compares the CLOB {name}" for tree in trees if tree for name in _compared_texts(tree)]


def _compared_texts(tree: Any) -> set[str]:
    """The columns of the type CLOB that are compared, sorted or grouped, which Oracle does not do."""
    compared: list[Any] = list(tree.find_all(exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.In))
    if isinstance(tree, exp.Update):
        assigned = {id(assignment) for assignment in tree.expressions}
        compared = [node for node in compared if id(node) not in assigned]
    sides = [side for node in compared for side in (node.this, node.args.get("expression"))]
    for clause in tree.find_all(exp.Order, exp.Group):
        sides += [one.this if isinstance(one, exp.Ordered) else one for one in clause.expressions]
    for select in tree.find_all(exp.Select):
        sides += select.expressions if select.args.get("distinct") else []
    return {side.name for side in sides if isinstance(side, exp.Column)} & _texts()


@cache
def _texts() -> set[str]:
    """The names that are CLOBs in every table that has them."""
    types = [
        (column.name, isinstance(column.type, sa.Text)) for table in metadata.tables.values() for column in table.c
    ]
    return {name for name, is_text in types if is_text} - {name for name, is_text in types if not is_text}


def _sqlfluff(statement: str) -> list[str]:
    if statement in UNKNOWN_TO_SQLFLUFF:
        return []
    # It supports no index over a CASE, and no FETCH after one, so each CASE is parsed by itself.
    cases = [f"SELECT {case} AS a FROM dual" for case in sorted(set(_CASE.findall(statement)))]
    read = [_CASE.sub("a_case", statement), *cases]
    return [f"sqlfluff: {problem}" for part in read for problem in _violations(part)]


@lru_cache(maxsize=10_000)
def _violations(part: str) -> tuple[str, ...]:
    return tuple(map(str, _linter().parse_string(part).violations))


def prepare() -> None:
    """Loads what reads statements, unless others have been read already: for a process that is copied."""
    if not READ.exists():
        _linter()


@cache
def _linter() -> Any:
    from sqlfluff.core import FluffConfig, Linter

    return Linter(config=FluffConfig(overrides={"dialect": "oracle"}))
