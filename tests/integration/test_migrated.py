"""What the suite's databases are copied from is what the migrations make."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest

from paceline.sql import engine, migrate
from paceline.sql.engine import Database
from tests import migrated

Made = tuple[list[tuple[str, ...]], list[str | None]]


async def made(path: Path | str, make: Callable[[Database], Awaitable[object]] = migrate.upgrade) -> Made:
    """What a new database consists of, and its revisions."""
    database = Database(f"sqlite:///{path}")
    await make(database)
    parts = await database.read(
        lambda connection: connection.exec_driver_sql(
            "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name"
        ).fetchall()
    )
    revisions = [
        await database.read(migrate._revision, table) for table in (migrate.REVISION_TABLE, migrate.FLOOR_TABLE)
    ]
    assert await database.read(lambda connection: connection.exec_driver_sql("PRAGMA integrity_check").scalar()) == "ok"
    await database.close()
    return [tuple(part) for part in parts], revisions


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


async def test_a_copy_is_what_every_step_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = [await made(tmp_path / "statements.db"), await made(tmp_path / "image.db", migrate.prepare)]
    copies.append(await made(":memory:", migrate.prepare))
    assert names(tmp_path) == {"statements.db", "image.db"}, "nothing else is left behind"
    monkeypatch.setattr(migrate, "_upgrade", migrated.take_every_step)
    stepped = await made(tmp_path / "stepped.db", migrate.prepare)
    assert copies == [stepped] * 3


async def test_a_copied_file_is_as_paceline_creates_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner's alone, with a write-ahead log, and nobody's who was there before."""
    files = []
    for name in ("copied.db", "stepped.db"):
        await made(tmp_path / name, migrate.prepare)
        with closing(sqlite3.connect(tmp_path / name)) as connection:
            journal = connection.execute("PRAGMA journal_mode").fetchone()
        files.append((journal, (tmp_path / name).stat().st_mode & 0o777))
        monkeypatch.setattr(migrate, "_upgrade", migrated.take_every_step)
    assert files == [(("wal",), 0o600)] * 2
    (tmp_path / "theirs.db").write_bytes(b"not ours")
    migrated._create(tmp_path / "theirs.db")
    assert (tmp_path / "theirs.db").read_bytes() == b"not ours"


@pytest.mark.parametrize(("synchronous", "pragma"), [(migrated.usual_synchronous, 2), (engine.SYNCHRONOUS, 0)])
async def test_only_the_suite_does_not_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synchronous: str, pragma: int
) -> None:
    monkeypatch.setattr(engine, "SYNCHRONOUS", synchronous)
    database = Database(f"sqlite:///{tmp_path / 'new.db'}")
    read = await database.read(lambda connection: connection.exec_driver_sql("PRAGMA synchronous").scalar())
    assert read == pragma
    await database.close()


async def test_a_file_with_something_in_it_takes_every_step(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "used.db")) as connection:
        connection.execute("CREATE TABLE theirs (a int)")
    taken, revisions = await made(tmp_path / "used.db")
    assert "theirs" in {name for _, name, *_ in taken}
    assert revisions == [migrate.STEPS.names[-1], migrate.STEPS.oldest_runnable]
