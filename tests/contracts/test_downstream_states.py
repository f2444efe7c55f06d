"""The `StateStore` port, and the breaker on it: one suite, every store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from paceline.downstream.ports import StateStore
from paceline.downstream.shared_breaker import SharedBreakerStore
from paceline.downstream.state import NEW, State, with_pause
from paceline.downstream.stores import open_directory, open_states

AN_HOUR = 3600.0
Open = Callable[[], Any]


@pytest.fixture(params=["sqlite", "postgresql", "redis", "host"])
async def opening(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Open]:
    """Opens the state of one downstream, each time as another process would."""
    url = f"sqlite:///{tmp_path / 'state.db'}"
    if request.param == "host":
        url = request.getfixturevalue("host_url")
    elif request.param != "sqlite":
        fixture = "postgres_url" if request.param == "postgresql" else "redis_location"
        url = str(request.getfixturevalue(fixture))
    name, opened = uuid4().hex, list[StateStore]()

    async def open_one() -> StateStore:
        opened.append(await open_states(url, name))
        return opened[-1]

    yield open_one
    for store in opened:
        await store.close()


async def test_what_one_process_changes_all_read(opening: Open) -> None:
    here, there = await opening(), await opening()
    assert (await here.read()).state == NEW
    changed = await here.change(lambda state, now_us: with_pause(state, "a", now_us + 5, now_us)._replace(paused="x"))
    state, now_us = await there.read()
    assert state == changed.state
    assert state.paused == "x"
    assert 0 <= now_us - changed.now_us < 60_000_000
    assert (await there.change(lambda state, _: state)).state == state


async def test_no_change_is_lost(opening: Open) -> None:
    stores = [await opening() for _ in range(4)]

    def add(key: str) -> Callable[[State, int], State]:
        return lambda state, now_us: with_pause(state, key, now_us + 10**12, now_us)

    await asyncio.gather(*(store.change(add(f"{n}-{m}")) for n, store in enumerate(stores) for m in range(5)))
    assert len((await stores[0].read()).state.pauses) == 20


@pytest.mark.postgres
async def test_no_change_is_lost_that_another_process_makes_first(postgres_url: str) -> None:
    name, decided = uuid4().hex, list[State]()

    def by_another_process() -> None:
        async def change() -> None:
            other = await open_states(postgres_url, name)
            await other.change(lambda state, now_us: with_pause(state, "other", now_us + 10**12, now_us))
            await other.close()

        asyncio.run(change())

    def decide(state: State, now_us: int) -> State:
        if not decided:
            thread = threading.Thread(target=by_another_process)
            thread.start()
            thread.join()
        decided.append(state)
        return with_pause(state, "mine", now_us + 10**12, now_us)

    store = await open_states(postgres_url, name)
    await store.change(decide)
    assert set((await store.read()).state.pauses) == {"mine", "other"}
    await store.close()


async def test_a_breaker_is_open_until_it_is_closed(opening: Open) -> None:
    here, there = SharedBreakerStore(await opening()), SharedBreakerStore(await opening())
    assert await there.read() is None
    assert not await here.claim_probe(0.0), "closed: there is nothing to probe"
    await asyncio.gather(here.open("401", AN_HOUR), there.open("401", AN_HOUR))
    status = await there.read()
    assert status is not None
    assert (status.reason, status.pause) == ("401", AN_HOUR)
    assert 0 < status.probe_in <= AN_HOUR
    await here.open("still 401", 2 * AN_HOUR)
    again = await there.read()
    assert again is not None
    assert (again.reason, again.since) == ("still 401", status.since)
    await here.close()
    await here.close()
    assert await there.read() is None


async def test_one_caller_gets_the_probe(opening: Open) -> None:
    stores = [SharedBreakerStore(await opening()) for _ in range(4)]
    await stores[0].open("down", AN_HOUR)
    assert not await stores[0].claim_probe(0.0), "not due"
    await stores[0].open("down", 0.0)
    assert sorted(await asyncio.gather(*(store.claim_probe(2 * AN_HOUR) for store in stores))) == [False] * 3 + [True]
    status = await stores[0].read()
    assert status is not None
    assert status.probe_in > AN_HOUR


@pytest.mark.parametrize("store", ["sqlite", "postgresql", "redis"])
async def test_operators_find_every_downstream_that_was_changed(
    store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'state.db'}"
    if store != "sqlite":
        url = str(request.getfixturevalue("postgres_url" if store == "postgresql" else "redis_location"))
    name = f"bank-{uuid4().hex}"
    program, directory = await open_states(url, name), await open_directory(url)
    try:
        assert name not in await directory.read_all()
        await program.change(lambda state, _: state._replace(hard="50/second"))
        assert (await directory.read_all())[name].state.hard == "50/second"
        await directory.of(name).change(lambda state, _: state._replace(paused="by an operator"))
        assert (await program.read()).state.paused == "by an operator"
    finally:
        await program.close()
        await directory.close()
