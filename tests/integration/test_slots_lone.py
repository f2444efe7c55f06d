"""A lone booking on PostgreSQL: one flush if it finds what it expects, and never a wrong booking."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headgate.errors import StoreUnavailable
from headgate.slots import AssignedSlot, SlotRequest, WindowPolicy
from headgate.slots.ports import SlotStore
from headgate.slots.stores import postgres, slot_store
from headgate.sql import pipeline
from headgate.sql.dedicated import DedicatedConnection
from tests.contracts.slot_windows import check_windows
from tests.contracts.test_slot_store import NOW, T_MS, book, wants

FILLED = 10
"""Slots that a window holds."""


@pytest.fixture
def flushes(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The names of the statements of each flush."""
    sent: list[list[str]] = []

    execute_pipeline, execute_dedicated = pipeline.execute_pipeline, DedicatedConnection.execute

    async def noted(raw: Any, calls: Any) -> Any:
        sent.append([statement.name for statement, _ in calls])
        return await execute_pipeline(raw, calls)

    async def noted_dedicated(connection: Any, calls: Any, seconds: float) -> Any:
        sent.append([statement.name for statement, _ in calls])
        return await execute_dedicated(connection, calls, seconds)

    monkeypatch.setattr(postgres, "execute_pipeline", noted)
    monkeypatch.setattr(pipeline, "execute_pipeline", noted)
    monkeypatch.setattr(DedicatedConnection, "execute", noted_dedicated)
    return sent


async def lone(store: SlotStore, event_id: str, at_ms: int = T_MS, name: str = "c") -> AssignedSlot:
    (slot,) = await book(store, [SlotRequest(event_id, at_ms)], name=name)
    return slot


async def test_a_lone_booking_is_one_flush(postgres_url: str, flushes: list[list[str]]) -> None:
    store = await slot_store(postgres_url)
    await store.configure("c", WindowPolicy(FILLED, "PT4S"), now_ms=NOW)
    counts = []
    for number in range(3 * FILLED):
        flushes.clear()
        slot = await lone(store, f"e{number}")
        counts.append(len(flushes))
        assert slot.window_start_ms == T_MS + number // FILLED * 4000
        assert not slot.existing
    # The first knows nothing; the last of a window changes its run, and the next one has to read that.
    assert counts.count(1) >= 3 * (FILLED - 2)
    assert await check_windows(store, "c", NOW) == {T_MS + n * 4000: FILLED for n in range(3)}
    await store.close()


async def test_a_lone_booking_by_the_servers_clock_is_one_flush(postgres_url: str, flushes: list[list[str]]) -> None:
    store = await slot_store(postgres_url)
    await store.configure("c", WindowPolicy(FILLED, "PT4S"))
    soon = int(time.time() * 1000) + 3_600_000
    for number in range(3):
        flushes.clear()
        (slot,) = await store.book("c", [SlotRequest(f"e{number}", soon)], owner="shop")
        assert isinstance(slot, AssignedSlot)
        assert await store.find(f"e{number}") == slot._replace(existing=True)
    assert len(flushes) == 1
    await store.close()


async def _another_books(store: SlotStore) -> None:
    await lone(store, "another")


async def _another_cancels(store: SlotStore) -> None:
    await store.cancel("e0")


async def _another_lowers_the_limit(store: SlotStore) -> None:
    await store.configure("c", WindowPolicy(2, "PT4S"), now_ms=NOW)


async def _another_changes_the_size(store: SlotStore) -> None:
    await store.configure("c", WindowPolicy(FILLED, "PT1S"), now_ms=NOW)


async def _another_fills_the_window(store: SlotStore) -> None:
    await book(store, wants(FILLED, prefix="more"))


@pytest.mark.parametrize(
    ("meanwhile", "window"),
    [
        (_another_books, T_MS),
        (_another_cancels, T_MS),
        (_another_lowers_the_limit, T_MS + 4000),
        (_another_changes_the_size, None),
        (_another_fills_the_window, T_MS + 4000),
    ],
)
async def test_what_others_did_meanwhile_counts(
    postgres_url: str, meanwhile: Callable[[SlotStore], Awaitable[None]], window: int | None
) -> None:
    store, other = await slot_store(postgres_url), await slot_store(postgres_url)
    await store.configure("c", WindowPolicy(FILLED, "PT4S"), now_ms=NOW)
    for number in range(3):
        await lone(store, f"e{number}")
    await meanwhile(other)
    slot = await lone(store, "mine")
    assert window in (None, slot.window_start_ms)
    await check_windows(store, "c", NOW)
    await other.close()
    await store.close()


async def test_an_event_that_has_a_slot_keeps_it(postgres_url: str) -> None:
    store, other = await slot_store(postgres_url), await slot_store(postgres_url)
    for name in ("c", "d"):
        await store.configure(name, WindowPolicy(FILLED, "PT4S"), now_ms=NOW)
    for number in range(3):
        await lone(store, f"e{number}")
    elsewhere = await lone(other, "moved", name="d")
    for event_id in ("e0", "moved"):
        assert (await lone(store, event_id)).existing
    assert await lone(store, "moved") == elsewhere._replace(existing=True)
    assert await check_windows(store, "c", NOW) == {T_MS: 3}
    await other.close()
    await store.close()


async def test_an_event_whose_time_has_come_is_booked_by_the_servers_clock(postgres_url: str) -> None:
    """This host's clock may be behind the server's."""
    store = await slot_store(postgres_url)
    await store.configure("c", WindowPolicy(FILLED, "PT4S"), now_ms=NOW)
    for number in range(3):
        await lone(store, f"e{number}")
    (late,) = await store.book("c", [SlotRequest("late", T_MS)], now_ms=T_MS + 9000)
    assert isinstance(late, AssignedSlot)
    assert late.scheduled_ms >= T_MS + 9000
    await store.close()


async def test_while_two_take_turns_neither_guesses(postgres_url: str, flushes: list[list[str]]) -> None:
    """A wrong expectation costs a flush. So after one it is checked, not sent, until it would have been right."""
    stores = [await slot_store(postgres_url) for _ in range(2)]
    await stores[0].configure("c", WindowPolicy(100, "PT4S"), now_ms=NOW)
    for number in range(6):
        await lone(stores[number % 2], f"e{number}")
    flushes.clear()
    for number in range(10):
        await lone(stores[number % 2], f"turn{number}")
    assert len(flushes) == 20
    for number in range(4):
        await lone(stores[0], f"alone{number}")
    flushes.clear()
    await lone(stores[0], "alone")
    assert len(flushes) == 1
    assert await check_windows(stores[0], "c", NOW) == {T_MS: 21}
    for store in stores:
        await store.close()


async def test_a_booking_whose_answer_was_lost_is_found_by_the_next_call(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await slot_store(postgres_url)
    await store.configure("c", WindowPolicy(FILLED, "PT4S"), now_ms=NOW)
    for number in range(3):
        await lone(store, f"e{number}")

    async def commit_and_fail(connection: Any, calls: Any, seconds: float) -> Any:
        await execute(connection, calls, seconds)
        raise StoreUnavailable("the answer was lost")

    execute = DedicatedConnection.execute
    with monkeypatch.context() as patched:
        patched.setattr(DedicatedConnection, "execute", commit_and_fail)
        with pytest.raises(StoreUnavailable):
            await lone(store, "lost")
    assert not (await lone(store, "after")).existing
    assert (await lone(store, "lost")).existing
    assert await check_windows(store, "c", NOW) == {T_MS: 5}
    await store.close()


async def test_lone_bookings_of_several_configs_at_once_do_not_wait_for_one_connection(
    postgres_url: str, flushes: list[list[str]]
) -> None:
    store = await slot_store(postgres_url)
    names = [f"c{number}" for number in range(4)]
    for name in names:
        await store.configure(name, WindowPolicy(FILLED, "PT4S"), now_ms=NOW)
        for number in range(2):
            await lone(store, f"{name}-{number}", name=name)
    flushes.clear()
    slots = await asyncio.gather(*(lone(store, f"{name}-at-once", name=name) for name in names))
    assert [slot.config_name for slot in slots] == names
    assert len(flushes) == len(names)
    for name in names:
        assert await check_windows(store, name, NOW) == {T_MS: 3}
    await store.close()
