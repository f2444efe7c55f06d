"""A lone booking on PostgreSQL: one flush if it finds what it expects, and never a wrong booking."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest

from paceline.errors import NotFound, StoreUnavailable
from paceline.slots import AssignedSlot, SlotRequest, WindowPolicy
from paceline.slots.ports import SlotStore
from paceline.slots.stores import postgres, postgres_joint, slot_store
from paceline.sql import pipeline
from paceline.sql.dedicated import DedicatedConnection
from paceline.testing import eventually
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

    for module in (postgres, postgres_joint):
        monkeypatch.setattr(module, "execute_pipeline", noted)
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


SETS = [("c", "b"), ("d", "b", "c")]
"""Not in the order of their names, which is the order of their locks."""


async def joint_store(postgres_url: str) -> SlotStore:
    """A store with configs b, c and d; c's windows are the first to be full."""
    store = await slot_store(postgres_url)
    for name, policy in (
        ("b", WindowPolicy(3 * FILLED, "PT6S")),
        ("c", WindowPolicy(FILLED, "PT4S")),
        ("d", WindowPolicy(100, "PT1M")),
    ):
        await store.configure(name, policy, now_ms=NOW)
    return store


async def joint(store: SlotStore, event_id: str, names: tuple[str, ...] = ("c", "b")) -> AssignedSlot:
    (slot,) = await store.book(names, [SlotRequest(event_id, T_MS)], now_ms=NOW)
    assert isinstance(slot, AssignedSlot), slot
    assert slot.existing or slot.config_names == names
    return slot


@pytest.mark.parametrize("names", SETS)
async def test_a_lone_booking_under_several_configs_is_one_flush(
    postgres_url: str, flushes: list[list[str]], names: tuple[str, ...]
) -> None:
    store = await joint_store(postgres_url)
    counts = []
    for number in range(3 * FILLED):
        flushes.clear()
        slot = await joint(store, f"e{number}", names)
        counts.append(len(flushes))
        assert slot.scheduled_ms // 4000 == T_MS // 4000 + number // FILLED
        assert await store.find(f"e{number}") == slot._replace(existing=True)
    assert counts.count(1) >= 3 * (FILLED - 2)
    assert await check_windows(store, "c", NOW) == {T_MS + n * 4000: FILLED for n in range(3)}
    for name in names:
        assert sum((await check_windows(store, name, NOW)).values()) == 3 * FILLED
    await store.close()


async def test_a_backlog_of_one_config_holds_lone_bookings_back(postgres_url: str, flushes: list[list[str]]) -> None:
    store = await joint_store(postgres_url)
    await book(store, wants(6 * FILLED, prefix="backlog"), name="b")  # until twelve seconds later
    slots = [await joint(store, f"e{number}") for number in range(5)]
    assert {slot.window_start_ms for slot in slots} == {T_MS + 12_000}
    flushes.clear()
    await joint(store, "one-more")
    assert len(flushes) == 1
    assert await check_windows(store, "c", NOW) == {T_MS + 12_000: 6}
    assert await check_windows(store, "b", NOW) == {T_MS: 30, T_MS + 6000: 30, T_MS + 12_000: 6}
    await store.close()


@pytest.mark.parametrize("names", [("b",), ("c", "b")])
async def test_room_that_is_given_back_within_a_backlog_is_found(postgres_url: str, names: tuple[str, ...]) -> None:
    store, other = await joint_store(postgres_url), await slot_store(postgres_url)
    await book(store, wants(9 * FILLED, prefix="backlog"), name="b")
    for number in range(3):
        assert (await joint(store, f"e{number}", names)).windows[-1].window_start_ms == T_MS + 18_000
    freed = await other.cancel(f"backlog{4 * FILLED}")
    assert freed is not None
    assert freed.window_start_ms == T_MS + 6000
    assert (await joint(store, "mine", names)).windows[-1].window_start_ms == T_MS + 6000
    assert (await joint(store, "next", names)).windows[-1].window_start_ms == T_MS + 18_000
    await check_windows(store, "b", NOW)
    await other.close()
    await store.close()


async def _books_under(store: SlotStore, name: str) -> None:
    await lone(store, "another", name=name)


async def _cancels(store: SlotStore, name: str) -> None:
    """Of a slot under this config alone."""
    await store.cancel(f"{name}-alone")


async def _lowers_the_limit(store: SlotStore, name: str) -> None:
    await store.configure(name, WindowPolicy(4, "PT6S" if name == "b" else "PT4S"), now_ms=NOW)


async def _raises_the_limit(store: SlotStore, name: str) -> None:
    await store.configure(name, WindowPolicy(100, "PT6S" if name == "b" else "PT4S"), now_ms=NOW)


async def _changes_the_size(store: SlotStore, name: str) -> None:
    await store.configure(name, WindowPolicy(FILLED, "PT1S"), now_ms=NOW)


async def _fills_the_window(store: SlotStore, name: str) -> None:
    await book(store, wants(3 * FILLED, prefix="more"), name=name)


async def _fills_all_but_one_place(store: SlotStore, name: str) -> None:
    await book(store, wants((3 * FILLED if name == "b" else FILLED) - 5, prefix="more"), name=name)


@pytest.mark.parametrize("name", ["b", "c"])
@pytest.mark.parametrize(
    ("meanwhile", "is_later"),
    [
        (_books_under, False),
        (_cancels, False),
        (_lowers_the_limit, True),
        (_raises_the_limit, False),
        (_changes_the_size, None),
        (_fills_the_window, True),
        (_fills_all_but_one_place, False),
    ],
)
async def test_what_others_did_under_any_of_the_configs_counts(
    postgres_url: str,
    flushes: list[list[str]],
    meanwhile: Callable[[SlotStore, str], Awaitable[None]],
    is_later: bool | None,
    name: str,
) -> None:
    store, other = await joint_store(postgres_url), await slot_store(postgres_url)
    await lone(store, f"{name}-alone", name=name)
    for number in range(3):
        await joint(store, f"e{number}")
    await meanwhile(other, name)
    flushes.clear()
    slot = await joint(store, "mine")
    assert [name for name in flushes[0] if name.startswith("paceline_slot_book")], "it was expected otherwise"
    assert len(flushes) > 1
    if is_later is not None:
        assert (slot.scheduled_ms >= T_MS + 4000) == is_later
    for window in slot.windows:
        await check_windows(store, window.config_name, NOW)
        assert window.config_version == await other.active_version(window.config_name)
    assert await other.find("mine") == slot._replace(existing=True)
    await other.close()
    await store.close()


@pytest.mark.parametrize("name", ["b", "c"])
async def test_a_config_that_was_deleted_meanwhile_is_not_found(postgres_url: str, name: str) -> None:
    store = await joint_store(postgres_url)
    for number in range(3):
        await joint(store, f"e{number}")
    with psycopg.connect(postgres_url, autocommit=True) as operator:
        operator.execute("DELETE FROM paceline_slot_config WHERE name = %s", [name])
    (refused,) = await store.book(("c", "b"), [SlotRequest("mine", T_MS)], now_ms=NOW)
    assert isinstance(refused, NotFound)
    assert await store.find("mine") is None
    assert sum((await check_windows(store, "b" if name == "c" else "c", NOW)).values()) == 3
    await store.close()


async def test_an_event_that_has_a_slot_keeps_it_under_several_configs(postgres_url: str) -> None:
    store, other = await joint_store(postgres_url), await slot_store(postgres_url)
    for number in range(3):
        await joint(store, f"e{number}")
    elsewhere = await lone(other, "elsewhere", name="d")
    assert (await joint(store, "e0")).existing
    assert await joint(store, "elsewhere") == elsewhere._replace(existing=True)
    assert await check_windows(store, "c", NOW) == {T_MS: 3}
    await other.close()
    await store.close()


@pytest.mark.parametrize("name", ["b", "c"])
async def test_a_lone_booking_waits_for_the_writer_of_any_config_and_sees_what_it_wrote(
    postgres_url: str, name: str
) -> None:
    store = await joint_store(postgres_url)
    for number in range(3):
        await joint(store, f"e{number}")
    with psycopg.connect(postgres_url) as writer, psycopg.connect(postgres_url, autocommit=True) as operator:
        writer.execute("SELECT 1 FROM paceline_slot_config WHERE name = %s FOR UPDATE", [name])
        mine = asyncio.create_task(joint(store, "mine"))

        async def is_waiting() -> bool:
            waiting = (
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE %s"
            )
            return operator.execute(waiting, ["%paceline_slot_config%"]).fetchone() == (1,)

        await eventually(is_waiting)
        writer.execute(
            "UPDATE paceline_slot_window SET taken = taken + 1, placed = placed + 1 WHERE config_name = %s", [name]
        )
        writer.execute(
            "INSERT INTO paceline_slot SELECT 'theirs', %s, config_version, requested_at, window_start, scheduled_at,"
            " created_at FROM paceline_slot WHERE event_id = 'e0'",
            [name],
        )
        writer.commit()
        await mine
    other = "b" if name == "c" else "c"
    assert await check_windows(store, name, NOW) == {T_MS: 5}
    assert await check_windows(store, other, NOW) == {T_MS: 4}
    await store.close()


async def test_lone_bookings_of_overlapping_sets_never_deadlock(postgres_url: str) -> None:
    stores = [await joint_store(postgres_url), await slot_store(postgres_url)]
    sets = [("c", "b"), ("b", "c"), ("d", "b", "c"), ("c", "d"), ("b",), ("d",)]

    async def caller(store: SlotStore, number: int, names: tuple[str, ...]) -> None:
        for turn in range(15):
            await joint(store, f"{number}-{'-'.join(names)}-{turn}", names)

    await asyncio.gather(*(caller(store, number, names) for number, store in enumerate(stores) for names in sets))
    for name in "bcd":
        held = await check_windows(stores[0], name, NOW)
        assert sum(held.values()) == 2 * 15 * sum(name in names for names in sets)
    for store in stores:
        await store.close()


@pytest.mark.parametrize("names", [("c",), ("c", "b")])
async def test_an_answer_that_comes_late_does_not_undo_what_was_learned_since(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    store = await joint_store(postgres_url)
    for number in range(3):
        await joint(store, f"e{number}", names)
    stored, release = asyncio.Event(), asyncio.Event()

    async def answer_late(connection: Any, calls: Any, seconds: float) -> Any:
        results = await execute(connection, calls, seconds)
        stored.set()
        await release.wait()
        return results

    execute = DedicatedConnection.execute
    with monkeypatch.context() as patched:
        patched.setattr(DedicatedConnection, "execute", answer_late)
        late = asyncio.create_task(joint(store, "late", names))
        await stored.wait()
    await book(store, wants(FILLED - 4, prefix="more"))
    for number in range(2):
        assert (await joint(store, f"learned{number}", names)).window_start_ms == T_MS + 4000
    release.set()
    assert (await late).window_start_ms == T_MS
    assert (await joint(store, "next", names)).window_start_ms == T_MS + 4000
    assert await check_windows(store, "c", NOW) == {T_MS: FILLED, T_MS + 4000: 3}
    await store.close()
