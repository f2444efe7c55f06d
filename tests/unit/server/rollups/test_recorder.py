"""The recorder: one write per minute, counts lost only with the process, no caller affected by an outage."""

from __future__ import annotations

import asyncio
import logging

import pytest

from paceline.errors import StoreUnavailable
from paceline.server.rollups.model import (
    COARSE,
    ITEMS_BACKLOG,
    ITEMS_SECONDS,
    LIMITS_DENIED,
    MINUTE,
    OTHER,
    SLOTS_BOOKED,
    Counts,
    Key,
    Period,
    bucket_of,
)
from paceline.server.rollups.reader import CACHE_SECONDS, RollupReader
from paceline.server.rollups.recorder import MAX_KEYS, MAX_MINUTES, Recorder
from tests.models.rollup_store import MemoryRollupStore

NOON = 1_803_902_400
BOOKED = Key(SLOTS_BOOKED, "default")


class Clock:
    """The uptime of a process whose wall clock is wrong."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def store() -> MemoryRollupStore:
    return MemoryRollupStore(NOON)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def recorder(store: MemoryRollupStore, clock: Clock, process: str = "one", skew: float = 0.0) -> Recorder:
    return Recorder(store, clock=clock, wall=lambda: store.time + skew, process=process)


async def advance(store: MemoryRollupStore, clock: Clock, seconds: float, *recorders: Recorder) -> None:
    """Lets time pass, and minutes end in it."""
    end = store.time + seconds
    while Period.of(MINUTE, store.time).start + MINUTE <= end:
        over = Period.of(MINUTE, store.time)
        clock.seconds += over.start + MINUTE - store.time
        store.time = over.start + MINUTE
        for process in recorders:
            process.end_minute(over)
            await process.write_minute()
    clock.seconds += end - store.time
    store.time = end


def total(store: MemoryRollupStore, step: int, key: Key = BOOKED) -> int:
    return sum(counts.get(key, 0) for (_, period), counts in store.rows.items() if period.step == step)


async def test_two_processes_add_up_in_minutes_and_in_longer_periods(store: MemoryRollupStore, clock: Clock) -> None:
    one, two = recorder(store, clock), recorder(store, clock, "two")
    for _ in range(12):
        one.add(SLOTS_BOOKED, "default", 2)
        two.add(SLOTS_BOOKED, "default")
        await advance(store, clock, 60, one, two)
    assert total(store, MINUTE) == total(store, COARSE) == 36
    assert {period.start - NOON for _, period in store.rows if period.step == COARSE} == {0, 600}
    assert store.writes == 24, "one write a minute and process"


async def test_an_outage_loses_nothing_and_raises_nothing(
    store: MemoryRollupStore, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    one = recorder(store, clock)
    store.is_down = True
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            one.add(SLOTS_BOOKED, "default")
            await advance(store, clock, 60, one)
    assert len(caplog.records) == 1, "an outage is logged once"
    store.is_down = False
    await advance(store, clock, 60, one)
    assert {period.start - NOON for _, period in store.rows if period.step == MINUTE} == {0, 60, 120, 180, 240}
    assert total(store, MINUTE) == total(store, COARSE) == 5


async def test_an_outage_of_hours_keeps_the_last_hour(store: MemoryRollupStore, clock: Clock) -> None:
    one = recorder(store, clock)
    store.is_down = True
    for _ in range(MAX_MINUTES + 30):
        one.add(SLOTS_BOOKED, "default")
        await advance(store, clock, 60, one)
    store.is_down = False
    await advance(store, clock, 60, one)
    assert total(store, MINUTE) == MAX_MINUTES


async def test_a_lost_answer_counts_once(store: MemoryRollupStore, clock: Clock) -> None:
    one = recorder(store, clock)
    one.add(SLOTS_BOOKED, "default", 7)
    store.loses_answers = True
    await advance(store, clock, 60, one)
    one.add(SLOTS_BOOKED, "default", 1)
    store.loses_answers = False
    await advance(store, clock, 60, one)
    assert total(store, MINUTE) == total(store, COARSE) == 8


async def test_a_process_that_ends_writes_the_minute_that_goes_on(store: MemoryRollupStore, clock: Clock) -> None:
    one = recorder(store, clock)
    await advance(store, clock, 30)
    one.add(SLOTS_BOOKED, "default", 3)
    await one.close()
    assert total(store, MINUTE) == 3
    store.is_down = True
    two = recorder(store, clock, "two")
    two.add(SLOTS_BOOKED, "default")
    await two.close()


async def test_commands_by_the_hundred_leave_two_rows(store: MemoryRollupStore, clock: Clock) -> None:
    for n in range(100):
        command = recorder(store, clock, f"command-{n}")
        command.add(SLOTS_BOOKED, "default")
        await command.close()
    assert len(store.rows) == 2
    assert total(store, MINUTE) == total(store, COARSE) == 100


async def test_a_process_that_counts_nothing_writes_nothing(store: MemoryRollupStore, clock: Clock) -> None:
    one = recorder(store, clock)
    one.add(SLOTS_BOOKED, "default", 0)
    await advance(store, clock, 120, one)
    await one.close()
    assert (store.writes, store.rows) == (0, {})


async def test_what_is_counted_while_a_write_is_in_flight_is_kept(clock: Clock) -> None:
    class Slow(MemoryRollupStore):
        async def write(self, process: str, periods: object) -> None:
            one.end_minute(Period(MINUTE, NOON))
            raise StoreUnavailable("no answer")

    store = Slow(NOON)
    one = recorder(store, clock)
    one.add(SLOTS_BOOKED, "default", 2)
    one.end_minute(Period(MINUTE, NOON))
    one.add(SLOTS_BOOKED, "default", 3)
    with pytest.raises(StoreUnavailable):
        await one.flush()
    assert one.unwritten(MINUTE)[Period(MINUTE, NOON)] == {BOOKED: 5}


async def test_a_write_that_is_cancelled_is_made_at_the_end(clock: Clock) -> None:
    class Hanging(MemoryRollupStore):
        hangs = True

        async def write(self, process: str, periods: object) -> None:
            if self.hangs:
                await asyncio.Event().wait()
            await super().write(process, periods)  # type: ignore[arg-type]

    store = Hanging(NOON)
    one = recorder(store, clock)
    one.add(SLOTS_BOOKED, "default", 2)
    one.end_minute(Period(MINUTE, NOON))
    writing = asyncio.create_task(one.flush())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert one.unwritten(COARSE)[Period(COARSE, NOON)] == {BOOKED: 2}, "shown while it is written"
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    store.hangs = False
    await one.close()
    assert total(store, MINUTE) == 2


async def test_minutes_are_those_of_the_stores_clock(store: MemoryRollupStore, clock: Clock) -> None:
    one = recorder(store, clock, skew=-3600)
    one.add(SLOTS_BOOKED, "default")
    one.end_minute(Period.of(MINUTE, one.now))
    await one.flush()
    one.add(SLOTS_BOOKED, "default")
    await advance(store, clock, 60, one)
    assert ("one", Period(MINUTE, NOON)) in store.rows
    assert abs(one.now - store.time) < 0.01


async def test_a_commands_minute_is_the_stores_too(store: MemoryRollupStore, clock: Clock) -> None:
    command = recorder(store, clock, skew=-3600)
    command.add(SLOTS_BOOKED, "default")
    await command.close()
    assert {period for _, period in store.rows} == {Period(MINUTE, NOON), Period(COARSE, NOON)}


async def test_names_without_number_share_one_label(store: MemoryRollupStore, clock: Clock) -> None:
    one = recorder(store, clock)
    for n in range(MAX_KEYS + 50):
        one.add(LIMITS_DENIED, f"plan-{n}")
    one.observe(ITEMS_SECONDS, "PAYMENT", 0.2)
    counts = one.unwritten(MINUTE)[Period(MINUTE, NOON)]
    assert len(counts) == MAX_KEYS + 2
    assert counts[Key(LIMITS_DENIED, OTHER)] == 50
    assert counts[Key(ITEMS_SECONDS, OTHER, bucket_of(0.2))] == 1


async def test_the_largest_measurement_of_a_period_counts(store: MemoryRollupStore, clock: Clock) -> None:
    one = recorder(store, clock)
    for value in (5, 9, 2):
        one.measure(ITEMS_BACKLOG, "PAYMENT", value)
    await advance(store, clock, 60, one)
    one.measure(ITEMS_BACKLOG, "PAYMENT", 4)
    await advance(store, clock, 60, one)
    backlog = Key(ITEMS_BACKLOG, "PAYMENT")
    minutes: dict[Period, Counts] = {period: counts for (_, period), counts in store.rows.items()}
    assert minutes[Period(MINUTE, NOON + 60)] == {backlog: 4}
    assert minutes[Period(COARSE, NOON)] == {backlog: 9}


async def test_old_periods_are_pruned_once_an_hour(store: MemoryRollupStore, clock: Clock) -> None:
    one = recorder(store, clock)
    for _ in range(9 * 60):
        one.add(SLOTS_BOOKED, "default")
        await advance(store, clock, 60, one)
    oldest = min(period.start for _, period in store.rows if period.step == MINUTE)
    assert 7 * 3600 <= store.time - oldest <= 8 * 3600 + 60


async def test_a_reader_shows_all_processes_and_its_own_up_to_now(store: MemoryRollupStore, clock: Clock) -> None:
    one, two = recorder(store, clock), recorder(store, clock, "two")
    reader = RollupReader(store, one, clock=clock)
    two.add(SLOTS_BOOKED, "default", 60)
    await advance(store, clock, 60, one, two)
    one.add(SLOTS_BOOKED, "default", 5)
    assert {number.name: number.last_day for number in await reader.numbers()}["slotsBooked"] == 65
    await advance(store, clock, 60, one, two)
    number = {number.name: number for number in await reader.numbers()}["slotsBooked"]
    assert number.last_day == 65, "its own writes neither vanish nor count twice"
    await advance(store, clock, CACHE_SECONDS, one, two)
    number = {number.name: number for number in await reader.numbers()}["slotsBooked"]
    assert list(number.minutes[-3:]) == [60, 5, 0]
    assert number.per_second == pytest.approx(5 / 60)
    assert (await reader.history(900)).values(SLOTS_BOOKED, "default")[-3:] == [60, 5, 0]
    assert sum((await reader.history(7 * 86_400)).values(SLOTS_BOOKED, "default")) == 65


async def test_a_new_installation_shows_a_rate_at_once(store: MemoryRollupStore, clock: Clock) -> None:
    one = recorder(store, clock)
    reader = RollupReader(store, one, clock=clock)
    assert {number.per_second for number in await reader.numbers()} == {None}
    one.add(SLOTS_BOOKED, "default", 50)
    await advance(store, clock, 10)
    rates = {number.name: number.per_second for number in await reader.numbers()}
    assert rates["slotsBooked"] == pytest.approx(5)
    assert rates["messages"] == 0
