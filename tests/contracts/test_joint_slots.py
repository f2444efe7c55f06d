"""What every `SlotStore` promises about slots under several configs."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from paceline.durations import LATEST_MS, to_ms
from paceline.errors import InvalidInput, NotFound, SlotOwned, SlotsExhausted
from paceline.slots.model import AssignedSlot, SlotRequest, SlotWindow, WindowPolicy
from paceline.slots.ports import SlotStore
from paceline.slots.scheduler import SlotScheduler
from paceline.slots.windows import align
from tests.contracts.slot_windows import check_windows, windows_and_runs
from tests.contracts.test_slot_store import NOW, T_MS, T, wants

BOTH = ("bank", "merchant-7")


async def book(
    store: SlotStore, requests: list[SlotRequest], names: str | tuple[str, ...] = BOTH, now_ms: int = NOW
) -> list[AssignedSlot]:
    bookings = await store.book(names, requests, now_ms=now_ms)
    slots = [booking for booking in bookings if isinstance(booking, AssignedSlot)]
    assert len(slots) == len(bookings), bookings
    return slots


async def configure(store: SlotStore, **policies: WindowPolicy) -> None:
    for name, policy in policies.items():
        await store.configure(name.replace("_", "-"), policy, now_ms=NOW)


@pytest.mark.parametrize("count", [25, 1000])
async def test_every_config_is_charged_and_none_is_over_its_limit(slots: SlotStore, count: int) -> None:
    await configure(slots, bank=WindowPolicy(10, "PT4S"), merchant_7=WindowPolicy(3, "PT7S"))
    booked = await book(slots, wants(count))
    for name, limit, size in (("bank", 10, 4000), ("merchant-7", 3, 7000)):
        held = await check_windows(slots, name, NOW)
        assert sum(held.values()) == count
        assert max(held.values()) <= limit
        assert held == Counter(align(slot.scheduled_ms, size) for slot in booked)
    last = booked[-1]
    assert last.windows == (
        SlotWindow("bank", 1, align(last.scheduled_ms, 4000)),
        SlotWindow("merchant-7", 1, align(last.scheduled_ms, 7000)),
    )
    assert last.window_start_ms == last.windows[0].window_start_ms
    assert await slots.find(last.event_id) == last._replace(existing=True)


async def test_a_backlog_of_either_config_holds_the_event_back(slots: SlotStore) -> None:
    await configure(slots, bank=WindowPolicy(10, "PT4S"), merchant_7=WindowPolicy(1, "PT4S"))
    await book(slots, wants(300, prefix="b"), "bank")  # thirty full windows
    await book(slots, wants(33, prefix="m"), "merchant-7")  # thirty-three
    (slot,) = await book(slots, wants(1, prefix="both"))
    assert slot.window_start_ms == T_MS + 33 * 4000
    (again,) = await book(slots, wants(1, prefix="also"))
    assert again.window_start_ms == T_MS + 34 * 4000
    (alone,) = await book(slots, wants(1, prefix="alone"), "bank")
    assert alone.window_start_ms == T_MS + 30 * 4000, "room that the pair could not use is not lost"
    for name in BOTH:
        await check_windows(slots, name, NOW)


async def test_the_order_of_the_names_is_kept_and_the_first_is_shown(slots: SlotStore) -> None:
    await configure(slots, bank=WindowPolicy(10, "PT4S"), merchant_7=WindowPolicy(10, "PT1M"))
    (slot,) = await book(slots, wants(1, T_MS + 5000), ("merchant-7", "bank"))
    assert slot.config_names == ("merchant-7", "bank")
    assert (slot.config_name, slot.window_start_ms) == ("merchant-7", T_MS)
    (again,) = await book(slots, wants(1), ("bank",))
    assert again == slot._replace(existing=True), "the set of configs is fixed when it is booked"


async def test_an_unknown_config_among_several_books_nothing(slots: SlotStore) -> None:
    await configure(slots, bank=WindowPolicy(10, "PT4S"))
    (refused,) = await slots.book(("bank", "nope"), wants(1), now_ms=NOW)
    assert isinstance(refused, NotFound)
    assert "nope" in str(refused)
    assert await check_windows(slots, "bank", NOW) == {}


async def test_beyond_one_configs_horizon_no_config_is_charged(slots: SlotStore) -> None:
    await configure(slots, bank=WindowPolicy(5, "PT4S"), merchant_7=WindowPolicy(1, "PT4S", max_delay="PT8S"))
    bookings = await slots.book(BOTH, wants(5), now_ms=NOW)
    assert [isinstance(booking, AssignedSlot) for booking in bookings] == [True, True, False, False, False]
    refused = bookings[-1]
    assert isinstance(refused, SlotsExhausted)
    assert refused.earliest == T + timedelta(seconds=8, milliseconds=1)
    assert await check_windows(slots, "bank", NOW) == {T_MS: 1, T_MS + 4000: 1}
    assert await check_windows(slots, "merchant-7", NOW) == {T_MS: 1, T_MS + 4000: 1}


@pytest.mark.parametrize("count", [1, 30])
async def test_cancel_frees_the_room_of_all(slots: SlotStore, count: int) -> None:
    await configure(slots, bank=WindowPolicy(2, "PT4S"), merchant_7=WindowPolicy(1, "PT4S"))
    booked = await book(slots, wants(30))
    for slot in booked[:count]:
        assert await slots.cancel(slot.event_id) == slot._replace(existing=True)
        assert await slots.cancel(slot.event_id) is None
    for name in BOTH:
        assert sum((await check_windows(slots, name, NOW)).values()) == 30 - count
    (again,) = await book(slots, wants(1, prefix="n"))
    assert again.window_start_ms == T_MS


async def test_only_its_owner_cancels_it(slots: SlotStore) -> None:
    await configure(slots, bank=WindowPolicy(2, "PT4S"), merchant_7=WindowPolicy(1, "PT4S"))
    await slots.book(BOTH, wants(2), now_ms=NOW, owner="payments")
    with pytest.raises(SlotOwned):
        await slots.cancel("e0")
    assert await slots.cancel("e0", owner="payments") is not None


@pytest.mark.parametrize("window", ["PT1S", "PT30S"])
async def test_a_resize_of_a_further_config_counts_its_slots(slots: SlotStore, window: str) -> None:
    await configure(
        slots, bank=WindowPolicy(10, "PT4S"), merchant_7=WindowPolicy(3, "PT4S"), merchant=WindowPolicy(9, "PT1S")
    )
    await book(slots, wants(40))
    await book(slots, wants(5, prefix="other"), ("bank", "merchant"))
    await slots.configure("merchant-7", WindowPolicy(3, window), now_ms=NOW)
    before = await check_windows(slots, "merchant-7", NOW)
    assert sum(before.values()) == 40
    await book(slots, wants(20, prefix="n"))
    after = await check_windows(slots, "merchant-7", NOW)
    assert all(taken <= max(3, before.get(start, 0)) for start, taken in after.items())


async def test_names_that_contain_one_another_or_quotes_are_distinct(slots: SlotStore) -> None:
    names = ("a", 'a"', 'x["a",1', "ä", "a\\", "%a_", "[a")
    for name in names:
        await slots.configure(name, WindowPolicy(5, "PT4S"), now_ms=NOW)
    await book(slots, wants(3), names[1:])
    await book(slots, wants(500, prefix="copied"), names[2:4])
    for name in names:
        await slots.configure(name, WindowPolicy(5, "PT1S"), now_ms=NOW)
        held = sum((await check_windows(slots, name, NOW)).values())
        assert held == (0 if name == "a" else 503 if name in names[2:4] else 3), name
    slot = await slots.find("e0")
    assert slot is not None
    assert slot.config_names == names[1:]


async def test_pruning_waits_for_the_last_window_of_a_slot(slots: SlotStore) -> None:
    """Slots that a config still counts stay: a resize would otherwise offer their room again."""
    await configure(
        slots, bank=WindowPolicy(10, "PT4S"), merchant_7=WindowPolicy(40, "PT1H"), far=WindowPolicy(1, "P366D")
    )
    await book(slots, wants(20))
    now = T_MS + 30 * 60_000
    assert (await slots.prune(now)).slots == 0
    await slots.configure("merchant-7", WindowPolicy(40, "PT2H"), now_ms=now)
    assert sum((await check_windows(slots, "merchant-7", now)).values()) == 20
    await slots.configure("merchant-7", WindowPolicy(40, "PT1M"), now_ms=now)
    assert (await slots.prune(now)).slots == 20, "although another config's window has not ended"
    assert await slots.booked(LATEST_MS - 1, None, 10) == []


async def test_calendars_of_all_count(slots: SlotStore) -> None:
    day = {"zone": "UTC", "open": [{"from": "08:00", "to": "18:00"}]}
    late = {"zone": "UTC", "open": [{"from": "17:00", "to": "06:00"}]}
    await configure(
        slots, bank=WindowPolicy(2, "PT30M", calendar=day), merchant_7=WindowPolicy(9, "PT1H", calendar=late)
    )
    booked = await book(slots, wants(5))
    assert [slot.window_start for slot in booked] == [
        datetime(2027, 3, 1, 17, 0, tzinfo=UTC),
        datetime(2027, 3, 1, 17, 0, tzinfo=UTC),
        datetime(2027, 3, 1, 17, 30, tzinfo=UTC),
        datetime(2027, 3, 1, 17, 30, tzinfo=UTC),
        datetime(2027, 3, 2, 17, 0, tzinfo=UTC),
    ]
    for name in BOTH:
        await check_windows(slots, name, NOW)


async def test_the_stores_own_clock_counts_when_none_is_given(slots: SlotStore) -> None:
    await configure(slots, bank=WindowPolicy(1000, "PT1S"), merchant_7=WindowPolicy(1000, "PT4S"))
    before = to_ms(datetime.now(UTC)) - 60_000
    (slot,) = await slots.book(BOTH, wants(1, 0))
    assert isinstance(slot, AssignedSlot)
    assert before < slot.scheduled_ms < before + 180_000


async def test_writers_of_overlapping_sets_and_changes_never_deadlock(slots: SlotStore) -> None:
    """Names whose order differs by case and by collation, in every order of naming, beside single bookings, changes,
    cancels and a prune."""
    names = ["B", "a", "C", "d-1", "D1"]
    for name in names:
        await slots.configure(name, WindowPolicy(7, "PT4S"), now_ms=NOW)
    scheduler = SlotScheduler(slots)
    sets = [("B", "a"), ("a", "B"), ("C", "a", "d-1"), ("D1", "d-1"), ("d-1", "D1", "B"), ("a",), ("C",)]

    async def writer(number: int) -> None:
        for turn in range(4):
            some = sets[(number + turn) % len(sets)]
            events = wants(5, prefix=f"w{number}-{turn}-")
            await scheduler.book(events, some)
            await scheduler.cancel(events[0].event_id)

    async def changer() -> None:
        for turn in range(4):
            for name in names:
                await slots.configure(name, WindowPolicy(7, ("PT4S", "PT2S")[turn % 2]), now_ms=NOW)
            await slots.prune(NOW - 1)

    await asyncio.gather(*(writer(number) for number in range(14)), changer())
    total = len(await slots.booked(LATEST_MS - 1, None, 10_000))
    assert total == 14 * 4 * 4
    for name in names:
        await check_windows(slots, name, NOW)


async def test_a_full_run_of_every_config_is_kept_as_its_own(slots: SlotStore) -> None:
    await configure(slots, bank=WindowPolicy(4, "PT8S"), merchant_7=WindowPolicy(2, "PT4S"))
    await book(slots, wants(40))
    for name in BOTH:
        _, _, runs = await windows_and_runs(slots, name)
        assert runs == [(T_MS, T_MS + 80_000)]


async def test_a_forecast_under_several_configs_is_what_is_booked(slots: SlotStore) -> None:
    scheduler = SlotScheduler(slots)
    await configure(slots, bank=WindowPolicy(4, "PT7S"), merchant_7=WindowPolicy(3, "PT4S"))
    await book(slots, wants(10, prefix="before"), "bank")
    shown = await scheduler.forecast(BOTH, 20, T)
    booked = await book(slots, wants(20))
    assert {window.start: window.added for window in shown.windows} == Counter(slot.window_start for slot in booked)
    with pytest.raises(NotFound, match="nope"):
        await scheduler.forecast(("bank", "nope"), 20, T)
    with pytest.raises(InvalidInput, match="max_per_window"):
        await scheduler.forecast(BOTH, 20, T, max_per_window=5)
