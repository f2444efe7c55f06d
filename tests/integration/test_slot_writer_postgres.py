"""The one writer on PostgreSQL: transactions of many configs, and rows that somebody else has locked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import psycopg
import pytest

from paceline.durations import to_ms
from paceline.errors import LockTimeout
from paceline.slots import AssignedSlot, SlotRequest, SlotScheduler, WindowPolicy
from paceline.slots.model import BookingGroup
from tests.contracts.slot_windows import check_windows

T = datetime(2040, 3, 1, 16, tzinfo=UTC)
LINES = 1000


async def commits(connection: psycopg.AsyncConnection[tuple[int]]) -> int:
    """How many transactions wrote to the table of windows: each leaves its own id in the rows that it wrote."""
    cursor = await connection.execute("SELECT count(DISTINCT xmin::text) FROM paceline_slot")
    row = await cursor.fetchone()
    assert row is not None
    return row[0]


async def test_a_feed_with_rules_per_payer_takes_few_transactions(postgres_url: str) -> None:
    async with SlotScheduler.open(postgres_url) as slots:
        await slots.configure("bank", WindowPolicy(100, "PT4S", spread="even"))
        await slots.configure("payer-*", WindowPolicy(5, "PT4S"))
        feed = [BookingGroup(("bank", f"payer-{n}"), [SlotRequest(f"p{n}", to_ms(T))]) for n in range(LINES)]
        bookings = [booking for (booking,) in await slots.book_groups(feed)]
        assert all(isinstance(booking, AssignedSlot) for booking in bookings)
        starts = [booking.window_start_ms for booking in bookings if isinstance(booking, AssignedSlot)]
        assert starts == sorted(starts), "in the order of the file"
        assert [starts.count(start) for start in sorted(set(starts))] == [100] * 10, "exactly packed"
        held = await check_windows(slots._store, "bank", to_ms(T) - 1)
        assert sum(held.values()) == LINES
        async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as connection:
            assert await commits(connection) <= 60


async def test_a_locked_config_delays_only_its_own_bookings_and_says_who_locks_it(postgres_url: str) -> None:
    async with SlotScheduler.open(postgres_url) as slots:
        for name in ("stuck", "free"):
            await slots.configure(name, WindowPolicy(100, "PT4S"))
        async with await psycopg.AsyncConnection.connect(postgres_url, application_name="somebody") as holder:
            await holder.execute("SELECT 1 FROM paceline_slot_config WHERE name = 'stuck' FOR UPDATE")
            pid = holder.info.backend_pid
            stuck = [
                asyncio.ensure_future(slots.book([SlotRequest(f"s{n}-{m}", to_ms(T)) for m in range(5)], "stuck"))
                for n in range(20)
            ]
            taken = []
            for number in range(30):
                started = time.perf_counter()
                await slots.assign(f"f{number}", "free", T)
                await slots.policy("free")
                taken.append(time.perf_counter() - started)
            assert sorted(taken)[-3] < 1.5, "at most the first waits with the stuck one"
            results = await asyncio.gather(*stuck, return_exceptions=True)
        for result in results:
            assert isinstance(result, LockTimeout), result
            assert f"the config 'stuck' is locked by process {pid} (somebody)" in str(result)
        (again,) = await slots.book([SlotRequest("s", to_ms(T))], "stuck")
        assert isinstance(again, AssignedSlot)


@pytest.mark.parametrize("change", ["cancel", "configure", "replan", "spread", "prune"])
async def test_other_changes_of_a_locked_config_end_soon_and_say_who_locks_it(postgres_url: str, change: str) -> None:
    async with SlotScheduler.open(postgres_url) as slots:
        await slots.configure("stuck", WindowPolicy(2, "PT4S"))
        for number in range(5):
            await slots.assign(f"e{number}", "stuck", T)
        await slots.assign("past", "stuck", "2020-01-01T00:00:00Z")
        await slots.configure("stuck", WindowPolicy(1 if change == "spread" else 5, "PT4S"))
        changes: dict[str, Callable[[], Awaitable[object]]] = {
            "cancel": lambda: slots.cancel("e3"),
            "configure": lambda: slots.configure("stuck", WindowPolicy(7, "PT4S")),
            "replan": lambda: slots.replan("stuck"),
            "spread": lambda: slots.replan("stuck", direction="spread"),
            "prune": lambda: slots._store.prune(to_ms(datetime.now(UTC)) + 60_000),
        }
        work = changes[change]
        async with await psycopg.AsyncConnection.connect(postgres_url, application_name="somebody") as holder:
            await holder.execute("SELECT 1 FROM paceline_slot_config WHERE name = 'stuck' FOR UPDATE")
            started = time.perf_counter()
            with pytest.raises(LockTimeout) as refused:
                await work()
            assert time.perf_counter() - started < 5, "well below a transaction's deadline"
            problem = f"the config 'stuck' is locked by process {holder.info.backend_pid} (somebody), whose last query"
            assert str(refused.value).startswith(problem)
            assert refused.value.configs == ("stuck",)
        await work()


@pytest.mark.parametrize("existing", [0, 7])
async def test_a_new_config_is_made_by_the_first_of_concurrent_processes(postgres_url: str, existing: int) -> None:
    async with SlotScheduler.open(postgres_url) as one, SlotScheduler.open(postgres_url) as other:
        await one.configure("payer-*", WindowPolicy(3, "PT4S"))
        for number in range(existing):
            await one.assign(f"old{number}", f"payer-{number}", T)
        names = [f"payer-{number}" for number in range(20)]
        booked = await asyncio.gather(
            *(
                slots.book_groups([BookingGroup((name,), [SlotRequest(f"{side}-{name}", to_ms(T))]) for name in order])
                for side, slots, order in (("a", one, names), ("b", other, names[::-1]))
            )
        )
        assert all(isinstance(slot, AssignedSlot) for groups in booked for (slot,) in groups)
        for name in names:
            assert sum((await check_windows(one._store, name, to_ms(T) - 1)).values()) in (2, 3)
