"""Statements are compiled once for all engines of a kind, and again for one that is different."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine.interfaces import CacheStats

FLAG = sa.table("compiled_once", sa.column("flag", sa.Boolean))


def hit(change: Callable[[sa.Engine], None] = lambda _: None) -> tuple[CacheStats, list[Any]]:
    """Whether a new engine found the statement compiled, and what it returned."""
    engine = sa.create_engine("sqlite://")
    try:
        with engine.connect() as connection:
            change(engine)
            connection.exec_driver_sql("CREATE TABLE compiled_once (flag INTEGER)")
            connection.exec_driver_sql("INSERT INTO compiled_once VALUES (1)")
            result = connection.execute(sa.select(FLAG.c.flag).where(FLAG.c.flag == sa.true()))
            return result.context.cache_hit, list(result.scalars())
    finally:
        engine.dispose()


def test_a_second_engine_finds_them() -> None:
    hit()
    assert hit() == (CacheStats.CACHE_HIT, [True])


def test_an_engine_with_other_qualities_compiles_its_own() -> None:
    def use_booleans(engine: sa.Engine) -> None:
        engine.dialect.supports_native_boolean = True

    hit()
    found, rows = hit(use_booleans)
    assert found is CacheStats.CACHE_MISS
    assert rows == [1]
    assert hit() == (CacheStats.CACHE_HIT, [True])
