"""One writer: what shares a transaction, what bounds it, and what is set aside."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from paceline.errors import Conflict, LockTimeout, StoreError, StoreUnavailable
from paceline.slots import AssignedSlot, SlotRequest, WindowPolicy
from paceline.slots.booking import writer as writers
from paceline.slots.booking.packing import Booking
from paceline.slots.booking.writer import SlotWriter
from paceline.slots.model import BookingGroup
from paceline.slots.ports import LockHolder, NullObserver
from tests.models.slot_store import MemorySlotStore

AT = 1_900_000_000_000


class Store(MemorySlotStore):
    """Notes its transactions. A locked config makes them fail; so does a broken one."""

    def __init__(self) -> None:
        super().__init__(seed=1)
        self.transactions: list[list[tuple[str, ...]]] = []
        self.locked: dict[str, LockHolder] = {}
        self.tries_left = -1
        """After as many failures, the locks are free."""
        self.broken: dict[str, Exception] = {}
        self.gate = asyncio.Event()
        self.gate.set()

    async def book_groups(
        self, groups: Sequence[BookingGroup], *, now_ms: int | None = None, template_configs: int = 0
    ) -> list[list[Booking]]:
        await self.gate.wait()
        self.transactions.append([group.names for group in groups])
        names = {name for group in groups for name in group.names}
        if names & set(self.locked):
            self.tries_left -= 1
            if not self.tries_left:
                self.locked.clear()
            raise LockTimeout("database unavailable: canceling statement due to lock timeout")
        for name in names & set(self.broken):
            raise self.broken[name]
        return await super().book_groups(groups, now_ms=now_ms, template_configs=template_configs)

    async def lock_holders(self, names: Sequence[str]) -> dict[str, LockHolder]:
        return {name: self.locked[name] for name in names if name in self.locked}


@pytest.fixture
async def store() -> Store:
    store = Store()
    for name in ("bank", "other", "payer-*"):
        await store.configure(name, WindowPolicy(1000, "PT4S"))
    return store


@pytest.fixture
def writer(store: Store) -> SlotWriter:
    return SlotWriter(store, NullObserver(), max_batch=1000, bulk_batch=1000, template_configs=100_000)


def one(event_id: str, *names: str) -> list[BookingGroup]:
    return [BookingGroup(names, [SlotRequest(event_id, AT)])]


async def test_callers_under_any_sets_of_configs_share_a_transaction(writer: SlotWriter, store: Store) -> None:
    store.gate.clear()
    calls = [writer.submit(one(f"e{n}", "bank", f"payer-{n}")) for n in range(200)]
    calls.append(writer.submit(one("last", "other")))
    await asyncio.sleep(0)
    store.gate.set()
    outcomes = await asyncio.gather(*calls)
    assert all(isinstance(outcome[0][0], AssignedSlot) for outcome in outcomes)
    assert len(store.transactions) == 1
    assert len(store.transactions[0]) == 201
    times = [outcome[0][0].scheduled_ms // 4000 for outcome in outcomes if isinstance(outcome[0][0], AssignedSlot)]
    assert times == sorted(times), "in the order in which they came"


async def test_a_feed_of_a_thousand_payers_takes_a_few_transactions(writer: SlotWriter, store: Store) -> None:
    groups = [BookingGroup(("bank", f"payer-{n}"), [SlotRequest(f"p{n}", AT)]) for n in range(1000)]
    outcomes = await writer.book(groups)
    assert all(isinstance(booking, AssignedSlot) for (booking,) in outcomes)
    assert len(store.transactions) <= 5
    assert max(len({name for names in each for name in names}) for each in store.transactions) <= writers.MAX_CONFIGS


async def test_one_sets_error_is_not_the_others(writer: SlotWriter, store: Store) -> None:
    store.broken["other"] = StoreError("its policy is not readable")
    store.gate.clear()
    good, bad, last = (writer.submit(one(names[0] + "-event", *names)) for names in (["bank"], ["other"], ["payer-1"]))
    store.gate.set()
    results = await asyncio.gather(good, bad, last, return_exceptions=True)
    assert [type(result) for result in results] == [list, StoreError, list]


async def test_an_outage_is_everybodys(writer: SlotWriter, store: Store) -> None:
    store.broken["other"] = StoreUnavailable("down")
    calls = [writer.submit(one("e", "bank")), writer.submit(one("f", "other"))]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(result) for result in results] == [StoreUnavailable] * 2
    assert len(store.transactions) == 1, "nobody knows whether it was committed"


async def test_a_conflict_is_retried_and_then_raised(writer: SlotWriter, store: Store) -> None:
    store.broken["bank"] = Conflict()
    with pytest.raises(Conflict):
        await writer.submit(one("e", "bank"))
    assert len(store.transactions) == writers.MAX_TRIES


async def test_a_config_whose_lock_is_stuck_starves_nobody(
    writer: SlotWriter, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    store.locked["bank"] = LockHolder(123, "psql", 12.3, 20.0)
    stuck = [writer.submit(one(f"s{n}", "bank", f"payer-{n}")) for n in range(3)]
    free = [writer.submit(one(f"f{n}", "other")) for n in range(3)]
    await asyncio.gather(*free)
    assert not any(call.done() for call in stuck)
    assert sum(any("bank" in names for names in each) for each in store.transactions) == 1, "and tried once"
    late = writer.submit(one("late", "bank"))
    await writer.submit(one("free", "payer-9"))
    assert sum(any("bank" in names for names in each) for each in store.transactions) == 1
    del store.locked["bank"]
    outcomes = await asyncio.wait_for(asyncio.gather(*stuck, late), 10)
    assert len(outcomes) == 4
    assert "The config bank is locked by process 123 (psql), whose last query began 12.3 s ago" in caplog.text
    await writer.close()


async def test_the_error_of_a_stuck_lock_names_config_and_holder(
    writer: SlotWriter, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "WAIT_SECONDS", 0.2)
    store.locked["bank"] = LockHolder(123, "psql", 12.3, 20.0)
    with pytest.raises(LockTimeout, match=r"config 'bank' is locked by process 123 \(psql\), .* 12.3 s ago"):
        await writer.submit(one("e", "bank"))
    await writer.close()


async def test_another_process_that_books_is_waited_for(writer: SlotWriter, store: Store) -> None:
    store.locked["bank"] = LockHolder(123, "paceline", 0.0, 0.1)
    call = writer.submit(one("e", "bank"))
    store.tries_left = 3
    await call
    assert len(store.transactions) == 4


async def test_a_closed_writer_finishes_what_it_accepted(writer: SlotWriter, store: Store) -> None:
    call = writer.submit(one("e", "bank"))
    await writer.close()
    assert call.done()
    with pytest.raises(RuntimeError):
        writer.submit(one("f", "bank"))


async def test_a_caller_that_stops_waiting_is_booked_nevertheless(writer: SlotWriter, store: Store) -> None:
    store.gate.clear()
    call = asyncio.ensure_future(writer.submit(one("e", "bank")))
    await asyncio.sleep(0)
    call.cancel()
    store.gate.set()
    await writer.close()
    assert (await store.find("e")) is not None
