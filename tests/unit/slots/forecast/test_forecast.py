"""The planner says what booking would do, and changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.durations import from_ms
from paceline.errors import InvalidInput
from paceline.slots.forecast.forecast import Forecast, forecast, peak
from paceline.slots.model import AssignedSlot, SlotRequest, Spread, WindowPolicy
from tests.effort import examples
from tests.models.slot_store import MemorySlotStore

NOW = 1_803_000_000_000
AT = NOW + 60_000


async def forecast_of(store: MemorySlotStore, events: int, at: int = AT) -> Forecast:
    return await store.survey("c", lambda version, view, _: forecast(version, view, NOW, events, at))


HOURS = {"zone": "UTC", "open": [{"from": "01:00", "to": "01:21:17"}, {"from": "01:21:40", "to": "02:00:01"}]}
"""AT is 01:21:00."""


@settings(max_examples=examples(80), deadline=None)
@given(
    limit=st.integers(1, 7),
    before=st.integers(0, 40),
    events=st.integers(1, 60),
    offset=st.integers(0, 9000),
    delay=st.sampled_from([None, "PT15S", "PT2.5S", "PT0.01S"]),
    calendar=st.sampled_from([None, HOURS]),
)
async def test_a_forecast_is_what_booking_then_does(
    limit: int, before: int, events: int, offset: int, delay: str | None, calendar: dict[str, Any] | None
) -> None:
    store = MemorySlotStore()
    await store.configure("c", WindowPolicy(limit, "PT4S", calendar=calendar, max_delay=delay), now_ms=NOW)
    await store.book("c", [SlotRequest(f"old-{n}", AT + n * 500) for n in range(before)], now_ms=NOW)
    said = await forecast_of(store, events, AT + offset)
    bookings = await store.book("c", [SlotRequest(f"new-{n}", AT + offset) for n in range(events)], now_ms=NOW)
    starts = [slot.window_start_ms for slot in bookings if isinstance(slot, AssignedSlot)]
    assert said.placed == len(starts)
    assert said.refused == events - len(starts)
    if starts:
        assert said.first_window == from_ms(starts[0])
        assert said.last_window == from_ms(starts[-1])
        assert said.window_count == len(set(starts))
        assert {fill.start: fill.added for fill in said.windows} == {
            from_ms(start): starts.count(start) for start in set(starts)
        }


async def test_a_million_for_one_instant_drain_when_arithmetic_says() -> None:
    store = MemorySlotStore()
    await store.configure("c", WindowPolicy(100, "PT4S", spread="even"), now_ms=NOW)
    said = await forecast_of(store, 1_000_000)
    assert said.window_count == 10_000
    assert said.drained_by == from_ms(AT + 10_000 * 4000)
    assert len(said.windows) == 120
    even, jitter = said.peaks
    assert (even.spread, jitter.spread) == (Spread.EVEN, Spread.JITTER)
    assert 25 <= even.per_second <= 28
    assert jitter.per_second > 30


@pytest.mark.parametrize("calendar", [None, HOURS])
async def test_beyond_the_windows_looked_at_closely_it_still_counts_right(calendar: dict[str, Any] | None) -> None:
    store = MemorySlotStore()
    await store.configure("c", WindowPolicy(1, "PT4S", calendar=calendar), now_ms=NOW)
    await store.book("c", [SlotRequest("old", AT + 40_000)], now_ms=NOW)
    said = await forecast_of(store, 1500)
    bookings = await store.book("c", [SlotRequest(f"new-{n}", AT) for n in range(1500)], now_ms=NOW)
    starts = [slot.window_start_ms for slot in bookings if isinstance(slot, AssignedSlot)]
    assert (said.placed, said.window_count, said.last_window) == (1500, 1500, from_ms(starts[-1]))


async def test_the_peaks_of_enormous_windows_are_in_proportion() -> None:
    store = MemorySlotStore()
    await store.configure("c", WindowPolicy(2**31 - 1, "PT4S"), now_ms=NOW)
    said = await forecast_of(store, 100_000_000)
    assert all(24_000_000 < peaks.per_second < 28_000_000 for peaks in said.peaks)


async def test_a_hundred_million_in_the_smallest_windows_take_few_looks() -> None:
    store = MemorySlotStore()
    await store.configure("c", WindowPolicy(1, "PT0.01S"), now_ms=NOW)
    said = await forecast_of(store, 100_000_000)
    assert said.drained_by == from_ms(AT + 10 * 100_000_000)


async def test_a_slot_far_ahead_does_not_make_a_forecast_too_long() -> None:
    store = MemorySlotStore()
    await store.configure("c", WindowPolicy(1, "PT1S"), now_ms=NOW)
    await store.book("c", [SlotRequest("far", AT + 1_000_000_000)], now_ms=NOW)
    said = await forecast_of(store, 1_600_000)
    assert said.drained_by == from_ms(AT + 1_600_001 * 1000)
    assert (said.placed, said.window_count) == (1_600_000, 1_600_000)


@pytest.mark.parametrize("events", [0, -1, 100_000_001, True, 1.5])
async def test_absurd_numbers_of_events_are_refused(events: int) -> None:
    store = MemorySlotStore()
    await store.configure("c", WindowPolicy(100, "PT4S"), now_ms=NOW)
    with pytest.raises(InvalidInput, match="events"):
        await forecast_of(store, events)


def test_peaks_are_counted_in_sliding_spans() -> None:
    assert peak([0, 999, 1000, 1001, 1998], 1000) == 4
    assert peak([0, 1000, 2000], 1000) == 1
    assert peak([], 1000) == 0


async def test_the_next_windows_are_shown_full_ones_too() -> None:
    store = MemorySlotStore()
    await store.configure("c", WindowPolicy(2, "PT4S"), now_ms=NOW)
    await store.book("c", [SlotRequest(f"old-{n}", AT) for n in range(5)], now_ms=NOW)
    said = await forecast_of(store, 2)
    assert said.next_windows[0].start == from_ms(AT)
    assert [(fill.taken, fill.added) for fill in said.next_windows[:5]] == [(2, 0), (2, 0), (1, 1), (0, 1), (0, 0)]
    assert len(said.next_windows) == 30
