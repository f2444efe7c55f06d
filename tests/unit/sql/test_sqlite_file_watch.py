"""The connection by which commits of other processes are noticed."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy.engine import Engine

from paceline.sql import sqlite_file
from paceline.sql.engine import Database
from paceline.testing import eventually


def is_closed(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("SELECT 1")
    except sqlite3.ProgrammingError as error:
        return "closed" in str(error)
    return False


async def test_a_connection_opened_for_somebody_who_left_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[sqlite3.Connection] = []
    open_really = sqlite_file.watch_connection

    def opening(over: Engine) -> sqlite3.Connection:
        opened.append(open_really(over))
        return opened[-1]

    monkeypatch.setattr(sqlite_file, "watch_connection", opening)
    database = Database(f"sqlite:///{tmp_path / 'x.db'}")
    watching = asyncio.create_task(database.watch_connection())
    await asyncio.sleep(0)
    watching.cancel()
    await asyncio.wait([watching])
    await database.close()
    await eventually(lambda: opened and is_closed(opened[0]))
