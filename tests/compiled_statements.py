"""SQL that is compiled once for all databases of a process, as it is for all transactions of one database.

Every engine of SQLAlchemy has a cache of its own, and nearly every test has an engine of its own: half of what a short
test of a store took was compiling the statements that the test before it had compiled.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Dialect
from sqlalchemy.util import LRUCache

MOST = 5000
"""Statements that are kept."""


class SharedStatements:
    """Compiled statements by dialect and what they depend on, in place of an engine's own cache."""

    def __init__(self) -> None:
        self._statements: LRUCache[Any, Any] = LRUCache(MOST)

    def get(self, key: tuple[Any, ...]) -> Any:
        return self._statements.get(_without_engine(key))

    def __setitem__(self, key: tuple[Any, ...], compiled: Any) -> None:
        self._statements[_without_engine(key)] = compiled

    def clear(self) -> None:
        self._statements.clear()


shared = SharedStatements()
"""What this process has compiled. A test that changes how values are converted clears it before and after."""


def share() -> None:
    """From now on, engines that are made with a cache take the same one."""
    usual = sa.Engine.__init__

    def make(self: sa.Engine, *arguments: Any, **options: Any) -> None:
        usual(self, *arguments, **options)
        if self._compiled_cache is not None:
            self._compiled_cache = shared  # type: ignore[assignment]  # all that SQLAlchemy asks of one

    sa.Engine.__init__ = make  # type: ignore[method-assign]


def _without_engine(key: tuple[Any, ...]) -> tuple[Any, ...]:
    dialect, *others = key
    return (_qualities(dialect), *others)


def _qualities(dialect: Dialect) -> tuple[Any, ...]:
    """What a compiler depends on: between two engines of one kind it may differ with the server, or by our own
    change."""
    return (
        type(dialect),
        dialect.paramstyle,
        dialect.server_version_info,
        dialect.supports_native_boolean,
        dialect.insert_returning,
        dialect.use_insertmanyvalues,
    )
