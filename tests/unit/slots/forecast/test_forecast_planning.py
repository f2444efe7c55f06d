"""The forecast as a planning tool: what a change would do, delays, and peaks beside what is booked."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.durations import from_ms, to_ms
from paceline.errors import InvalidInput
from paceline.slots import WindowPolicy
from paceline.slots.forecast.forecast import delays
from paceline.slots.model import AssignedSlot, SlotRequest
from paceline.slots.scheduler import SlotScheduler
from paceline.slots.windows import align
from paceline.testing.clock import FakeClock
from tests.models.slot_store import MemorySlotStore

T = to_ms(datetime(2027, 3, 1, 16, tzinfo=UTC))
NOW = T - 3_600_000
CLOSED = {"zone": "UTC", "blackouts": [{"from": "2027-03-01T16:00:04Z", "to": "2027-03-01T16:00:30Z"}]}


def store_at(now_ms: int = NOW) -> MemorySlotStore:
    return MemorySlotStore(FakeClock(from_ms(now_ms)), seed=1)


@given(
    st.integers(1, 60),
    st.integers(1, 60),
    st.fixed_dictionaries(
        {},
        optional={
            "max_per_window": st.integers(1, 9),
            "window": st.sampled_from(["PT1S", "PT2S", "PT5S"]),
            "max_delay": st.sampled_from([None, "PT20S", "PT0.5S"]),
            "first_window": st.sampled_from(["proportional", "whole"]),
            "calendar": st.just(CLOSED),
        },
    ),
)
async def test_a_change_that_is_tried_does_what_the_same_change_does_when_it_is_made(
    booked: int, events: int, changes: dict[str, object]
) -> None:
    store = store_at()
    scheduler = SlotScheduler(store)
    await store.configure("c", WindowPolicy(4, "PT4S"))
    await store.book("c", [SlotRequest(f"b{n}", T) for n in range(booked)])
    tried = await scheduler.forecast("c", events, from_ms(T + 1000), changes=changes)
    version = await scheduler.change("c", changes)
    made = await scheduler.forecast("c", events, from_ms(T + 1000))
    assert (tried.windows, tried.placed, tried.drained_by) == (made.windows, made.placed, made.drained_by)
    bookings = await store.book("c", [SlotRequest(f"n{n}", T + 1000) for n in range(events)])
    slots = [booking for booking in bookings if isinstance(booking, AssignedSlot)]
    assert tried.placed == len(slots)
    assert {window.start for window in tried.windows} == {
        from_ms(align(slot.scheduled_ms, version.policy.size_ms)) for slot in slots
    }


async def test_delays_are_read_from_the_drain() -> None:
    scheduler = SlotScheduler(store_at())
    await scheduler.configure("c", WindowPolicy(100, "PT4S"))
    forecast = await scheduler.forecast("c", 10_000, from_ms(T))
    shown = forecast.delays
    assert shown is not None
    # A hundred windows of four seconds, evenly filled: half have run after half of the time.
    assert (shown.p50_ms, shown.p90_ms, shown.p99_ms, shown.max_ms) == (200_000, 360_000, 396_000, 400_000)
    assert from_ms(T) + timedelta(milliseconds=shown.max_ms) == forecast.drained_by


def test_delays_pause_where_nothing_runs() -> None:
    start = from_ms(T)
    points = ((0, 10), (1, 5), (9, 5), (10, 2))
    drain = [(start + timedelta(seconds=second), left) for second, left in points]
    shown = delays(drain, 8, start)
    assert shown is not None
    assert (shown.p50_ms, shown.max_ms) == (800, 10_000)
    assert shown.p90_ms == pytest.approx(9733, abs=1)
    assert delays([], 0, start) is None


async def test_a_peak_counts_the_booked_windows_beside_it() -> None:
    store = store_at()
    scheduler = SlotScheduler(store)
    await store.configure("c", WindowPolicy(10, "PT0.5S"))
    await store.book("c", [SlotRequest(f"b{n}", T) for n in range(10)])
    alone = await SlotScheduler(store).forecast("c", 5, from_ms(T + 60_000))
    beside = await scheduler.forecast("c", 5, from_ms(T))
    assert alone.peaks[0].per_second == 5
    assert beside.peaks[0].per_second == 15, "five of these, and the ten of the full window before them"


async def test_what_is_beyond_the_horizon_counts_in_no_peak() -> None:
    scheduler = SlotScheduler(store_at())
    await scheduler.configure("c", WindowPolicy(40, "PT4S", spread="even", max_delay="PT5S"))
    forecast = await scheduler.forecast("c", 100, from_ms(T))
    assert forecast.refused == 100 - 50, "forty, and ten in the second of the next window that lies before the horizon"
    assert forecast.peaks[0].per_second <= 22


async def test_a_change_is_for_one_config() -> None:
    scheduler = SlotScheduler(store_at())
    for name in ("a", "b"):
        await scheduler.configure(name, WindowPolicy(1, "PT4S"))
    with pytest.raises(InvalidInput, match="window"):
        await scheduler.forecast(["a", "b"], 1, changes={"window": "PT1S"})
    with pytest.raises(InvalidInput, match="spread"):
        await scheduler.forecast("a", 1, changes={"spread": "clumped"})
