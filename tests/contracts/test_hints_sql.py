"""Hints of a database: of which commits subscribers hear, with and without a notification."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from paceline.errors import ConfigurationError
from paceline.limits.stores.sql_plans import HINT, AsyncSqlPlans
from paceline.limits.stores.tables import limit_hold, limit_plan
from paceline.sql import hints
from paceline.sql.databases import database
from paceline.sql.engine import Database
from paceline.sql.hints import ChangeWatch
from paceline.sql.schema import now
from paceline.testing import eventually


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(hints, "PROBE_SECONDS", 0.02)
    monkeypatch.setattr(hints, "WATCH_SECONDS", 0.01)
    if request.param == "sqlite":
        return f"sqlite:///{request.getfixturevalue('tmp_path') / 'hints.db'}"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
async def here(url: str) -> AsyncIterator[Database]:
    opened = await database(url)
    yield opened
    await opened.close()


@pytest.fixture
async def elsewhere(here: Database, url: str) -> AsyncIterator[Database]:
    """The database as another process has it open."""
    opened = Database(url)
    yield opened
    await opened.close()


def add_by_hand(connection: Connection, document: str = '{"rate": "5/second"}') -> None:
    """Adds a plan as an operator does with SQL: it notifies nobody."""
    values = {"name": "gold", "revision": 1, "plan": document, "changed_at": now(connection)}
    connection.execute(sa.insert(limit_plan).values(**values))


def add_hold(connection: Connection) -> None:
    values = {"key": "a", "id": "b", "settled": False, "expires_at": now(connection)}
    connection.execute(sa.insert(limit_hold).values(**values))


async def listening(opened: Database) -> None:
    await opened.hints.wait(opened.hints.subscribe("any"), 0)
    await eventually(lambda: opened.hints.are_received)


async def read(watch: ChangeWatch) -> None:
    """Reads until no hint comes from the start of listening."""

    def is_read() -> bool:
        is_current = not watch.may_have_changed()
        watch.note_read()
        return is_current

    await eventually(is_read)


async def test_a_change_that_nobody_announced_is_noticed(here: Database, elsewhere: Database) -> None:
    plans = AsyncSqlPlans(here)
    await listening(here)
    assert await plans.load() == {}
    await read(plans._changes)
    await elsewhere.write(add_by_hand)
    await eventually(plans._changes.may_have_changed)
    assert list(await plans.load()) == ["gold"]


async def test_a_plan_that_cannot_be_read_is_an_error_of_every_load(here: Database, elsewhere: Database) -> None:
    plans = AsyncSqlPlans(here)
    await listening(here)
    await plans.load()
    await elsewhere.write(add_by_hand, "{}")
    await eventually(plans._changes.may_have_changed)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="gold"):
            await plans.load()


async def test_what_did_not_change_is_not_read(
    here: Database, elsewhere: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = ChangeWatch(here.hints, HINT, "SELECT 1")
    assert watch.may_have_changed()
    watch.note_read()
    assert watch.may_have_changed()  # nothing tells of others' changes yet
    await listening(here)
    await read(watch)
    monkeypatch.setattr(hints, "UNREAD_SECONDS", 0.0)
    assert watch.may_have_changed()


async def test_a_commit_of_this_process_is_no_news_of_others(here: Database, elsewhere: Database) -> None:
    if here.dialect != "sqlite":
        pytest.skip("PostgreSQL's notifications name what changed")
    event = here.hints.subscribe("any", any_commit=True)
    await listening(here)
    versions: list[object] = []
    commits_of_others = here.commits_of_others

    async def counted() -> object:
        versions.append(await commits_of_others())
        return versions[-1]

    here.commits_of_others = counted  # type: ignore[method-assign]
    event.clear()
    await here.write(add_by_hand)
    await eventually(lambda: versions)
    assert not event.is_set()
    await elsewhere.write(lambda connection: connection.execute(sa.delete(limit_plan)))
    await eventually(event.is_set)
    assert len(set(versions)) == 2


async def test_a_commit_that_changes_something_else_is_no_news(here: Database, elsewhere: Database) -> None:
    if here.dialect != "sqlite":
        pytest.skip("PostgreSQL's notifications name what changed")
    plans = AsyncSqlPlans(here)
    other = here.hints.subscribe("other", probe="SELECT count(*) FROM paceline_limit_hold")
    await listening(here)
    await read(plans._changes)
    await elsewhere.write(add_by_hand)
    await eventually(plans._changes.may_have_changed)
    await read(plans._changes)
    other.clear()
    await elsewhere.write(add_hold)
    await eventually(other.is_set)
    assert not plans._changes.may_have_changed()


async def test_a_wait_for_a_change_ends_when_hints_stop(here: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then whoever waits for hints has to poll."""
    monkeypatch.setattr(hints, "UNREAD_SECONDS", 3600.0)
    watch = ChangeWatch(here.hints, HINT, "SELECT 1")
    await listening(here)
    await read(watch)
    waiting = asyncio.create_task(watch.wait(3600.0, every=0.0))
    await asyncio.sleep(0)
    await here.hints.close()
    async with asyncio.timeout(10):
        await waiting
