"""The audit is a chain: what was changed, removed or slipped in is found, on every store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from paceline.server.access.stores.sql import SqlAccessStore
from paceline.server.access.stores.tables import admin_audit, audit_chain
from paceline.sql.engine import Database
from tests.every_schema import database

KEY = b"a key that no database has"


@pytest.fixture(params=["sqlite", "postgres"])
async def opened(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    url = f"sqlite:///{tmp_path / 'audit.db'}"
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
    shared = await database(url)
    yield shared
    await shared.close()


async def filled(opened: Database, key: bytes = b"") -> SqlAccessStore:
    """Five changes, of which two overlap, and one never ended."""
    store = SqlAccessStore(opened, key)
    numbers = [await store.begin("operator", "PUT", f"/admin/plans/{n}", f"r{n}", "192.0.2.1") for n in range(2)]
    for number in reversed(numbers):
        await store.end(number, 200, '{"limit": 5}')
    for n in range(2, 4):
        await store.end(await store.begin("cli:root", "CLI", f"plans set {n}", f"r{n}"), 400)
    await store.begin("operator", "PUT", "/admin/plans/lost", "r4", "192.0.2.1")
    return store


async def execute(opened: Database, statement: sa.Executable) -> None:
    await opened.write(lambda connection: connection.execute(statement) and None)


def entry(number: int) -> sa.Update:
    return admin_audit.update().where(admin_audit.c.id == number)


async def test_what_was_recorded_is_found_intact(opened: Database) -> None:
    store = await filled(opened)
    result = await store.verify_audit()
    assert (result.entries, result.links, result.problems) == (5, 9, [])
    assert [entry.address for _, entry in await store.recent(1)] == ["192.0.2.1"]


INSERTED = sa.insert(admin_audit).from_select(
    ["at", "caller", "method", "path", "request_id", "status"],
    sa.select(admin_audit.c.at, *(sa.literal(text) for text in ("eve", "PUT", "/x", "r")), sa.literal(200)).where(
        admin_audit.c.id == 1
    ),
)


@pytest.mark.parametrize("key", [b"", KEY], ids=["hash", "key"])
@pytest.mark.parametrize(
    ("tampering", "problem"),
    [
        (entry(2).values(caller="somebody"), "entry 2 was changed"),
        (entry(2).values(address="198.51.100.1"), "entry 2 was changed"),
        (entry(1).values(detail='{"limit": 1}'), "entry 1 was changed"),
        (entry(3).values(status=200), "entry 3 was changed"),
        (entry(5).values(status=200), "entry 5 was changed"),
        (entry(4).values(end_link=None, end_hash=None, status=None), "link 8 is missing"),
        (admin_audit.delete().where(admin_audit.c.id == 3), "links 5 to 6 are missing"),
        (admin_audit.delete().where(admin_audit.c.id == 5), "its end was removed"),
        (admin_audit.delete(), "its end was removed"),
        (audit_chain.delete(), "its end was removed"),
        (INSERTED, "entry 6 is not in the chain"),
    ],
    ids=range(11),
)
async def test_tampering_is_found(opened: Database, key: bytes, tampering: sa.Executable, problem: str) -> None:
    store = await filled(opened, key)
    await execute(opened, tampering)
    result = await store.verify_audit()
    assert any(problem in found for found in result.problems), result.problems


async def test_a_chain_rebuilt_without_the_key_is_detected(opened: Database) -> None:
    """By a user with write access to the database who knows the algorithm of the chain."""
    await filled(opened)
    result = await SqlAccessStore(opened, KEY).verify_audit()
    assert result.problems == [
        "no link was made with this key: PACELINE_AUDIT_KEY is another one, or the chain was made anew"
    ]


async def test_a_hash_that_was_kept_shows_that_the_end_was_cut_off(opened: Database) -> None:
    """A user with write access to the database can rewrite the last link, with the key or without."""
    store = await filled(opened, KEY)
    kept = (await store.verify_audit()).head
    assert (await store.verify_audit(kept)).problems == []
    rows = sa.select(admin_audit.c.end_link, admin_audit.c.end_hash).where(admin_audit.c.id == 3)
    link, last = await opened.read(lambda connection: tuple(connection.execute(rows).one()))
    await execute(opened, admin_audit.delete().where(admin_audit.c.id > 3))
    await execute(opened, audit_chain.update().values(link=link, hash=last))
    assert (await store.verify_audit()).problems == [], "without it, nothing shows"
    (problem,) = (await store.verify_audit(kept)).problems
    assert problem.startswith("no link has the hash that was kept")


async def test_a_key_may_be_set_later_and_never_again_be_left_out(opened: Database) -> None:
    await filled(opened)
    keyed = await filled(opened, KEY)
    assert (await keyed.verify_audit()).problems == []
    await filled(opened)  # a process without the key
    assert "entry 11 was changed: link 19 has another hash" in (await keyed.verify_audit()).problems


async def test_a_chain_that_was_removed_and_begun_anew_is_noticed(opened: Database) -> None:
    store = await filled(opened)
    await execute(opened, audit_chain.delete())
    await execute(opened, admin_audit.update().values(begin_link=None, begin_hash=None, end_link=None, end_hash=None))
    await filled(opened)
    result = await store.verify_audit()
    assert (result.entries, result.links) == (10, 9)
    assert result.problems == [f"entry {n} is not in the chain: it was inserted by hand" for n in range(1, 6)]


async def test_many_processes_make_one_chain(opened: Database) -> None:
    stores = [SqlAccessStore(opened) for _ in range(5)]

    async def change(store: SqlAccessStore, n: int) -> None:
        await store.end(await store.begin("operator", "PUT", f"/admin/{n}", "r"), 200)

    await change(stores[0], 0)
    await asyncio.gather(*(change(store, n) for store in stores for n in range(5)))
    result = await stores[0].verify_audit()
    assert (result.entries, result.links, result.problems) == (26, 52, [])
