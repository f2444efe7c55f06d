"""Re-plans beside those who book, cancel or re-plan at the same time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import psycopg
import pytest

from paceline.errors import Conflict
from paceline.slots.carriers import SlotMove
from paceline.slots.model import AssignedSlot, WindowPolicy
from paceline.slots.replan.assignment import Direction
from paceline.slots.replan.parts import Reading
from paceline.slots.replan.run import Chunk, ReplanStore, Sizes, Span, replan
from paceline.slots.stores import slot_stores
from paceline.slots.stores.postgres_replan import AWAITED, PostgresReplanTransaction
from paceline.slots.stores.replanning import PlanningState
from tests.contracts.replanned import NOW, Busy, Stores, T, Wrapped, booked, check, configure_all
from tests.contracts.slot_windows import check_windows
from tests.contracts.test_slot_store import wants


class Conflicting(Wrapped):
    """A `ReplanStore` whose slots are changed by others between being read and being locked."""

    async def pull_forward(self, span: Span, reading: Reading, limit: int, *, reads_again: bool = False) -> Chunk:
        self.again.append(reads_again)
        if len(self.again) == 1:
            raise Conflict
        return await self._replans.pull_forward(span, reading, limit, reads_again=reads_again)


class Awaited(Wrapped):
    """A `ReplanStore` that says of each transaction that moved slots that bookings waited for it for long."""

    async def push_back(self, span: Span, moves: Sequence[SlotMove]) -> Chunk:
        self.pieces.append(len(moves))
        return (await self._replans.push_back(span, moves))._replace(is_awaited=True, seconds=1.0)


IN_PIECES = Sizes(min_slots=8, pause=0.001)


@pytest.fixture
def in_pieces(stores: Stores) -> None:
    stores[1].sizes = IN_PIECES


@pytest.mark.usefixtures("in_pieces")
@pytest.mark.parametrize("spread", ["even", "jitter"])
async def test_while_bookings_wait_windows_are_planned_as_a_whole_and_moved_in_pieces(
    stores: Stores, spread: str
) -> None:
    store, replans = stores
    await store.configure("c", WindowPolicy(20, "PT4S", spread=spread), now_ms=NOW)
    await store.book("c", wants(130, T), now_ms=NOW)
    await store.configure("c", WindowPolicy(40, "PT4S", spread=spread), now_ms=NOW)
    before = await booked(store)
    busy = Busy(replans)
    tried = await replan(replans, Span("c"), Direction.EARLIER, dry_run=True)
    done = await replan(cast(ReplanStore, busy), Span("c"), Direction.EARLIER, dry_run=False)
    slots = await check(store, before, Direction.EARLIER)
    assert Counter(slot.window_start_ms for slot in slots) == {T: 40, T + 4000: 40, T + 8000: 40, T + 12_000: 10}
    assert replace(tried, dry_run=False, moves=()) == done, "as if it had been moved at once"
    times = {slot.event_id: slot.scheduled_ms for slot in slots}
    assert all(times[move.slot.event_id] == move.scheduled_ms for move in tried.moves)
    assert busy.again == [False], "the first transaction learns that bookings wait"
    assert max(busy.pieces) == 8


@pytest.mark.usefixtures("in_pieces")
async def test_bookings_and_cancels_between_the_pieces_of_a_plan(stores: Stores) -> None:
    store, replans = stores
    await store.configure("c", WindowPolicy(20, "PT4S"), now_ms=NOW)
    await store.book("c", wants(130, T), now_ms=NOW)
    await store.configure("c", WindowPolicy(40, "PT4S"), now_ms=NOW)
    before = await booked(store)
    fresh: list[str] = []
    gone: list[str] = []

    async def meanwhile(moves: Sequence[SlotMove]) -> None:
        (slot,) = await store.book("c", wants(1, T, prefix=f"new-{len(fresh)}-"), now_ms=NOW)
        assert isinstance(slot, AssignedSlot)
        fresh.append(slot.event_id)
        if len(fresh) in (3, 9):
            gone.append(moves[-1].slot.event_id)
            await store.cancel(gone[-1])

    busy = Busy(replans, meanwhile)
    done = await replan(cast(ReplanStore, busy), Span("c"), Direction.EARLIER, dry_run=False)
    after = {slot.event_id: slot for slot in await booked(store)}
    held = await check_windows(store, "c", NOW)
    assert max(held.values()) <= 40
    left = [slot for slot in before if slot.event_id not in gone]
    times = [after[slot.event_id].scheduled_ms for slot in left]
    assert times == sorted(times)
    assert all(after[slot.event_id].scheduled_ms <= slot.scheduled_ms for slot in left)
    assert len(after) == 128 + len(fresh)
    assert held == {T + n * 4000: 40 for n in range(len(after) // 40)} | {T + len(after) // 40 * 4000: len(after) % 40}
    assert done.moved > 100
    assert True in busy.again, "a slot that was cancelled since it was planned"


class Unreadable(Busy):
    """Slots are always changed while a plan without locks reads them."""

    async def plan_forward(self, span: Span, reading: Reading, limit: int) -> Chunk:
        raise Conflict


@pytest.mark.usefixtures("in_pieces")
async def test_what_cannot_be_planned_without_locks_is_planned_with_them(stores: Stores) -> None:
    store, replans = stores
    await store.configure("c", WindowPolicy(5, "PT4S"), now_ms=NOW)
    await store.book("c", wants(60, T), now_ms=NOW)
    await store.configure("c", WindowPolicy(10, "PT4S"), now_ms=NOW)
    before = await booked(store)
    unreadable = Unreadable(replans)
    await replan(cast(ReplanStore, unreadable), Span("c"), Direction.EARLIER, dry_run=False)
    slots = await check(store, before, Direction.EARLIER)
    assert Counter(slot.window_start_ms for slot in slots) == {T + n * 4000: 10 for n in range(6)}
    assert unreadable.again[1:] == [True] * (len(unreadable.again) - 1)


async def test_a_spread_gives_way_to_bookings_that_wait(stores: Stores) -> None:
    store, replans = stores
    replans.sizes = IN_PIECES
    await store.configure("c", WindowPolicy(40, "PT4S"), now_ms=NOW)
    await store.book("c", wants(80, T), now_ms=NOW)
    await store.configure("c", WindowPolicy(10, "PT4S"), now_ms=NOW)
    before = await booked(store)
    awaited = Awaited(replans)
    done = await replan(cast(ReplanStore, awaited), Span("c"), Direction.SPREAD, dry_run=False)
    await check(store, before, Direction.SPREAD)
    assert sum(awaited.pieces) == done.moved == 70
    assert max(awaited.pieces) == 8


async def test_windows_are_filled_evenly_however_few_slots_a_transaction_moves(stores: Stores) -> None:
    store, replans = stores
    await store.configure("c", WindowPolicy(100, "PT4S", spread="even"), now_ms=NOW)
    await store.book("c", wants(800, T), now_ms=NOW)
    await store.configure("c", WindowPolicy(200, "PT4S", spread="even"), now_ms=NOW)
    before = await booked(store)
    await replan(replans, Span("c"), Direction.EARLIER, dry_run=False)
    slots = await check(store, before, Direction.EARLIER)
    seconds = Counter(slot.scheduled_ms // 1000 for slot in slots)
    assert len(seconds) == 16
    assert max(seconds.values()) <= 65, "fifty a second, nearly equal"


async def test_after_a_conflict_slots_are_read_again_under_the_locks(stores: Stores) -> None:
    store, replans = stores
    await configure_all(store, {"c": WindowPolicy(1, "PT4S"), "a": WindowPolicy(4, "PT4S")})
    await store.book(("c", "a"), wants(5, T), now_ms=NOW)
    await store.configure("c", WindowPolicy(3, "PT4S"), now_ms=NOW)
    before = await booked(store)
    conflicting = Conflicting(replans)
    result = await replan(cast(ReplanStore, conflicting), Span("c"), Direction.EARLIER, dry_run=False)
    assert conflicting.again == [False, True]
    assert result.moved >= 4
    slots = await check(store, before, Direction.EARLIER)
    assert Counter(slot.window_start_ms for slot in slots) == {T: 3, T + 4000: 2}


@pytest.mark.parametrize("direction", list(Direction))
async def test_a_move_that_was_planned_under_an_older_limit_has_the_version_that_admits_it(
    stores: Stores, direction: Direction
) -> None:
    store, replans = stores
    await configure_all(store, {"c": WindowPolicy(2, "PT4S"), "a": WindowPolicy(20, "PT8S")})
    await store.book(("c", "a"), wants(8, T), now_ms=NOW)
    await store.configure("c", WindowPolicy(3 if direction is Direction.EARLIER else 1, "PT4S"), now_ms=NOW)
    before = {slot.event_id: slot for slot in await booked(store)}
    newest: dict[str, int] = {}

    class Changed(Wrapped):
        """The limits are changed once more between the plan and its moves."""

        async def carry_out(self, span: Span, moves: Sequence[SlotMove]) -> Chunk:
            await self._change()
            return await self._replans.carry_out(span, moves)

        async def push_back(self, span: Span, moves: Sequence[SlotMove]) -> Chunk:
            await self._change()
            return await self._replans.push_back(span, moves)

        async def _change(self) -> None:
            if not newest:
                for name, policy in (("c", WindowPolicy(5, "PT4S")), ("a", WindowPolicy(30, "PT8S"))):
                    newest[name] = (await store.configure(name, policy, now_ms=NOW)).version

    changed = Changed(replans)
    if direction is Direction.EARLIER:
        plan = await replans.plan_forward(Span("c"), Reading(T), 100)
        assert (await changed.carry_out(Span("c"), plan.moves)).moves
    else:
        await replan(cast(ReplanStore, changed), Span("c"), direction, dry_run=False)
    moved = {slot.event_id: slot for slot in await booked(store)}
    both = [(slot.windows, moved[event_id].windows) for event_id, slot in before.items()]
    pairs = [pair for windows in both for pair in zip(*windows, strict=True)]
    assert any(old.window_start_ms != new.window_start_ms for old, new in pairs)
    for old, new in pairs:
        came = old.window_start_ms != new.window_start_ms
        assert new.config_version == (newest[new.config_name] if came else old.config_version)


async def test_a_slot_that_goes_while_the_locks_are_waited_for_is_no_error(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, replans = await slot_stores(postgres_url)
    await store.configure("c", WindowPolicy(1, "PT4S"), now_ms=NOW)
    await store.book("c", wants(5, T), now_ms=NOW)
    await store.configure("c", WindowPolicy(3, "PT4S"), now_ms=NOW)
    before = await booked(store)
    lock = PostgresReplanTransaction.lock
    gone: list[str] = []

    def locked(transaction: PostgresReplanTransaction, *args: Any) -> PlanningState:
        if not gone:
            # As a cancellation and a change of the window's size leave it.
            gone.append(before[-1].event_id)
            with psycopg.connect(postgres_url, autocommit=True) as other:
                other.execute("DELETE FROM paceline_slot WHERE event_id = %s", (before[-1].event_id,))
                other.execute("DELETE FROM paceline_slot_window WHERE window_start = %s", (before[-1].window_start,))
        return lock(transaction, *args)

    monkeypatch.setattr(PostgresReplanTransaction, "lock", locked)
    await replan(replans, Span("c"), Direction.EARLIER, dry_run=False)
    await check(store, before[:-1], Direction.EARLIER)
    await store.close()


async def test_a_transaction_knows_that_a_booking_waits_for_it(postgres_url: str) -> None:
    store, _ = await slot_stores(postgres_url)
    name = "awaited"
    await store.configure(name, WindowPolicy(5, "PT4S"), now_ms=NOW)
    async with (
        await psycopg.AsyncConnection.connect(postgres_url) as holder,
        await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as watcher,
    ):
        await holder.execute("SELECT 1 FROM paceline_slot_config WHERE name = %s FOR UPDATE", (name,))
        assert await (await holder.execute(AWAITED.sql)).fetchone() == (0,)
        booking = asyncio.create_task(store.book(name, wants(1, T), now_ms=NOW))
        waiting = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        while await (await watcher.execute(waiting)).fetchone() is None:
            pass
        assert await (await holder.execute(AWAITED.sql)).fetchone() == (1,)
        await holder.rollback()
        assert len(await booking) == 1
    await store.close()
