"""What every `SlotStore` promises, on every adapter."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from paceline.durations import LATEST_MS, from_ms, to_ms
from paceline.errors import NotFound, SlotOwned, SlotsExhausted
from paceline.slots.model import AssignedSlot, SlotRequest, WindowPolicy
from paceline.slots.ports import SlotStore
from paceline.slots.scheduler import SlotScheduler
from paceline.slots.windows import align
from tests.contracts.slot_windows import check_windows, windows_and_runs

T = datetime(2027, 3, 1, 16, 0, 0, tzinfo=UTC)
T_MS = to_ms(T)
NOW = T_MS - 3_600_000


def wants(count: int, at_ms: int = T_MS, prefix: str = "e") -> list[SlotRequest]:
    return [SlotRequest(f"{prefix}{n}", at_ms) for n in range(count)]


async def book(store: SlotStore, requests: list[SlotRequest], now_ms: int = NOW, name: str = "c") -> list[AssignedSlot]:
    bookings = await store.book(name, requests, now_ms=now_ms)
    slots = [booking for booking in bookings if isinstance(booking, AssignedSlot)]
    assert len(slots) == len(bookings), bookings
    return slots


async def test_a_burst_packs_window_after_window(slots: SlotStore) -> None:
    await slots.configure("c", WindowPolicy(10, "PT4S"), now_ms=NOW)
    booked = await book(slots, wants(35))
    assert [slot.window_start_ms for slot in booked] == [T_MS + n // 10 * 4000 for n in range(35)]
    assert all(0 <= slot.scheduled_ms - slot.window_start_ms < 4000 for slot in booked)
    assert not any(slot.existing for slot in booked)
    assert await check_windows(slots, "c", NOW) == {T_MS: 10, T_MS + 4000: 10, T_MS + 8000: 10, T_MS + 12000: 5}
    _, _, runs = await windows_and_runs(slots, "c")
    assert runs == [(T_MS, T_MS + 12000)]


async def test_the_same_event_keeps_its_slot_whatever_else_the_call_says(slots: SlotStore) -> None:
    await slots.configure("c", WindowPolicy(10, "PT4S"), now_ms=NOW)
    await slots.configure("other", WindowPolicy(1, "PT1S"), now_ms=NOW)
    (first,) = await book(slots, wants(1))
    for name, at in [("c", T_MS), ("c", T_MS + 99_000), ("other", T_MS), ("unknown", T_MS)]:
        assert await book(slots, wants(1, at), name=name) == [first._replace(existing=True)]
    assert await slots.find("e0") == first._replace(existing=True)
    assert await check_windows(slots, "c", NOW) == {T_MS: 1}
    assert await check_windows(slots, "other", NOW) == {}


async def test_an_event_named_twice_in_one_batch_has_one_slot(slots: SlotStore) -> None:
    await slots.configure("c", WindowPolicy(10, "PT4S"), now_ms=NOW)
    first, again = await book(slots, wants(1) + wants(1))
    assert again == first._replace(existing=True)
    assert await check_windows(slots, "c", NOW) == {T_MS: 1}


async def test_the_first_window_holds_in_proportion_to_what_is_left_of_it(slots: SlotStore) -> None:
    await slots.configure("c", WindowPolicy(10, "PT4S"), now_ms=NOW)
    booked = await book(slots, wants(4, T_MS + 3000))
    assert [slot.window_start_ms for slot in booked] == [T_MS, T_MS, T_MS + 4000, T_MS + 4000]
    assert all(slot.scheduled_ms >= T_MS + 3000 for slot in booked)


async def test_a_past_time_means_now(slots: SlotStore) -> None:
    """Peer bug 26: a past requested time would fire at once and break the limit."""
    await slots.configure("c", WindowPolicy(2, "PT4S"), now_ms=NOW)
    booked = await book(slots, wants(5, T_MS - 86_400_000), now_ms=T_MS)
    assert [slot.window_start_ms for slot in booked] == [T_MS, T_MS, T_MS + 4000, T_MS + 4000, T_MS + 8000]
    assert all(slot.scheduled_ms >= T_MS for slot in booked)


async def test_the_stores_own_clock_counts_when_none_is_given(slots: SlotStore) -> None:
    await slots.configure("c", WindowPolicy(1000, "PT1S"))
    before = to_ms(datetime.now(UTC)) - 60_000
    (slot,) = await slots.book("c", wants(1, 0))
    assert isinstance(slot, AssignedSlot)
    assert before < slot.scheduled_ms < before + 180_000


async def test_configs_do_not_share_counters(slots: SlotStore) -> None:
    """Peer bug 27: counters keyed by time only."""
    for name in ("a", "b"):
        await slots.configure(name, WindowPolicy(1, "PT4S"), now_ms=NOW)
        (slot,) = await book(slots, wants(1, prefix=name), name=name)
        assert slot.window_start_ms == T_MS


async def test_an_unknown_config_is_not_found_and_writes_nothing(slots: SlotStore) -> None:
    (missing,) = await slots.book("nope", wants(1), now_ms=NOW)
    assert isinstance(missing, NotFound)
    assert await slots.find("e0") is None
    assert await slots.history("nope") == []
    with pytest.raises(NotFound):
        await slots.survey("nope", lambda *_: None)


async def test_no_request_books_nothing(slots: SlotStore) -> None:
    await slots.configure("c", WindowPolicy(10, "PT4S"), now_ms=NOW)
    assert await slots.book("c", [], now_ms=NOW) == []


async def test_a_burst_of_twenty_thousand_and_one_finds_room(slots: SlotStore) -> None:
    """Peer bug 15: a search that gave up after 200 windows."""
    await slots.configure("c", WindowPolicy(100, "PT4S"), now_ms=NOW)
    await book(slots, wants(20_000))
    (last,) = await book(slots, wants(1, prefix="last"))
    assert last.window_start_ms == T_MS + 200 * 4000
    _, _, runs = await windows_and_runs(slots, "c")
    assert runs == [(T_MS, T_MS + 200 * 4000)]


async def test_a_raise_offers_room_in_partly_and_fully_filled_windows(slots: SlotStore) -> None:
    await slots.configure("c", WindowPolicy(2, "PT4S"), now_ms=NOW)
    await book(slots, wants(5))
    await slots.configure("c", WindowPolicy(3, "PT4S"), now_ms=NOW)
    booked = await book(slots, wants(5, prefix="r"))
    assert [slot.window_start_ms - T_MS for slot in booked] == [0, 4000, 8000, 8000, 12000]
    assert {slot.config_version for slot in booked} == {2}
    await check_windows(slots, "c", NOW)


async def test_a_lowered_limit_leaves_booked_slots_and_fills_no_window_above_it(slots: SlotStore) -> None:
    await slots.configure("c", WindowPolicy(4, "PT4S"), now_ms=NOW)
    before = await book(slots, wants(6))
    await slots.configure("c", WindowPolicy(2, "PT4S"), now_ms=NOW)
    booked = await book(slots, wants(1, prefix="l"))
    assert [slot.window_start_ms - T_MS for slot in booked] == [8000]
    assert await book(slots, wants(6)) == [slot._replace(existing=True) for slot in before]
    assert await check_windows(slots, "c", NOW) == {T_MS: 4, T_MS + 4000: 2, T_MS + 8000: 1}


@pytest.mark.parametrize("window", ["PT1S", "PT7S", "PT0.5S"])
async def test_a_resize_counts_booked_slots_in_the_new_windows(slots: SlotStore, window: str) -> None:
    await slots.configure("c", WindowPolicy(10, "PT4S"), now_ms=NOW)
    await book(slots, wants(30))
    await slots.configure("c", WindowPolicy(10, window), now_ms=NOW)
    before = await check_windows(slots, "c", NOW)
    await book(slots, wants(100, prefix="r"))
    after = await check_windows(slots, "c", NOW)
    assert all(count <= max(10, before.get(start, 0)) for start, count in after.items())
    assert sum(after.values()) == 130


async def test_cancel_frees_the_room_and_splits_the_run(slots: SlotStore) -> None:
    await slots.configure("c", WindowPolicy(1, "PT4S"), now_ms=NOW)
    await book(slots, wants(5))
    assert (await slots.cancel("e2")) is not None
    assert await slots.cancel("e2") is None
    assert await slots.find("e2") is None
    _, _, runs = await windows_and_runs(slots, "c")
    assert runs == [(T_MS, T_MS + 8000), (T_MS + 12000, T_MS + 20000)]
    first, second = await book(slots, wants(2, prefix="n"))
    assert (first.window_start_ms, second.window_start_ms) == (T_MS + 8000, T_MS + 20000)
    _, _, runs = await windows_and_runs(slots, "c")
    assert runs == [(T_MS, T_MS + 24000)]


async def test_even_slots_do_not_meet_after_a_cancel(slots: SlotStore) -> None:
    await slots.configure("c", WindowPolicy(50, "PT4S", spread="even"), now_ms=NOW)
    await book(slots, wants(40))
    for n in range(10):
        await slots.cancel(f"e{n}")
    again = await book(slots, wants(10, prefix="n"))
    kept = [slot for n in range(10, 40) if (slot := await slots.find(f"e{n}"))]
    assert len({slot.scheduled_ms for slot in kept + again}) == 40


async def test_beyond_the_horizon_nothing_is_booked(slots: SlotStore) -> None:
    await slots.configure("c", WindowPolicy(2, "PT4S", max_delay="PT6S"), now_ms=NOW)
    bookings = await slots.book("c", wants(6), now_ms=NOW)
    assert [type(booking).__name__ for booking in bookings] == ["AssignedSlot"] * 3 + ["SlotsExhausted"] * 3
    refused = bookings[-1]
    assert isinstance(refused, SlotsExhausted)
    assert refused.earliest == T + timedelta(seconds=6, milliseconds=1)
    assert all(slot.delay <= timedelta(seconds=6) for slot in bookings if isinstance(slot, AssignedSlot))
    assert await slots.find("e5") is None
    assert sum((await check_windows(slots, "c", NOW)).values()) == 3


async def test_a_calendar_defers_work_and_keeps_one_run_over_the_weekend(slots: SlotStore) -> None:
    hours = {"zone": "America/New_York", "open": [{"days": ["MON", "FRI"], "from": "09:00", "to": "17:00"}]}
    await slots.configure("c", WindowPolicy(1, "PT1H", calendar=hours), now_ms=NOW)
    friday = to_ms(datetime(2027, 3, 12, 21, 0, tzinfo=UTC))  # 16:00 in New York, the last open hour
    booked = await book(slots, wants(3, friday))
    # Daylight saving begins on Sunday the 14th: Monday 09:00 is 13:00 UTC, no longer 14:00.
    assert [slot.window_start for slot in booked] == [
        datetime(2027, 3, 12, 21, tzinfo=UTC),
        datetime(2027, 3, 15, 13, tzinfo=UTC),
        datetime(2027, 3, 15, 14, tzinfo=UTC),
    ]
    _, _, runs = await windows_and_runs(slots, "c")
    assert runs == [(friday, to_ms(datetime(2027, 3, 15, 15, tzinfo=UTC)))]
    await check_windows(slots, "c", NOW)


async def test_configs_are_listed_in_their_active_version(slots: SlotStore) -> None:
    assert await slots.configs() == []
    for name, limit in (("b", 1), ("a", 2), ("Z", 3), ("a", 4)):
        await slots.configure(name, WindowPolicy(limit, "PT4S"), now_ms=NOW)
    listed = [(config.name, config.version, config.policy.max_per_window) for config in await slots.configs()]
    assert listed == [("Z", 1, 3), ("a", 2, 4), ("b", 1, 1)]


async def test_history_keeps_every_version(slots: SlotStore) -> None:
    policies = [
        WindowPolicy(1, "PT4S"),
        WindowPolicy(2, "PT4S", spread="even", max_delay="PT1H"),
        WindowPolicy(3, "PT1M", calendar={"zone": "Europe/Berlin", "holidays": "DE", "open": [{"from": "08:00"}]}),
    ]
    for policy in policies:
        await slots.configure("c", policy, now_ms=NOW)
    history = await slots.history("c")
    assert await slots.active_version("c") == history[0].version
    assert await slots.active_version("nope") is None
    assert [(version.version, version.policy) for version in history] == [
        (3, policies[2]),
        (2, policies[1]),
        (1, policies[0]),
    ]
    assert {version.created_at for version in history} == {from_ms(NOW)}


async def test_of_those_who_create_a_config_at_once_one_does(slots: SlotStore) -> None:
    scheduler = SlotScheduler(slots)
    policies = [WindowPolicy(limit, "PT4S") for limit in range(1, 9)]
    versions = await asyncio.gather(*(scheduler.ensure("c", policy) for policy in policies))
    (only,) = await slots.history("c")
    assert versions == [only] * 8
    assert await scheduler.ensure("c", WindowPolicy(99, "PT1S")) == only


async def test_far_ahead_windows_end_with_the_time_that_is_taken(slots: SlotStore) -> None:
    await slots.configure("c", WindowPolicy(2, "P366D"), now_ms=NOW)
    booked = await slots.book("c", wants(4, LATEST_MS - 2) + wants(1, LATEST_MS, "late"), now_ms=NOW)
    assert all(isinstance(booking, SlotsExhausted) for booking in booked[-3:])
    held = [booking for booking in booked if isinstance(booking, AssignedSlot)]
    assert all(LATEST_MS - 2 <= slot.scheduled_ms < LATEST_MS for slot in held)
    await check_windows(slots, "c", NOW)


async def test_concurrent_writers_lose_and_double_nothing(slots: SlotStore) -> None:
    await slots.configure("c", WindowPolicy(7, "PT4S"), now_ms=NOW)
    batches = [wants(13, prefix=f"w{n % 10}-") for n in range(20)]  # every batch comes twice
    scheduler = SlotScheduler(slots)  # which tries again after a conflict
    results = await asyncio.gather(*(scheduler.book(batch, "c") for batch in batches))
    by_event: dict[str, set[int]] = {}
    for batch in results:
        for slot in batch:
            assert isinstance(slot, AssignedSlot)
            by_event.setdefault(slot.event_id, set()).add(slot.scheduled_ms)
    assert len(by_event) == 130
    assert all(len(times) == 1 for times in by_event.values())
    held = await check_windows(slots, "c", NOW)
    assert sorted(held.values(), reverse=True) == [7] * 18 + [4]


@pytest.mark.parametrize("count", [40, 1000])
async def test_configs_that_want_the_same_events_at_once_agree(slots: SlotStore, count: int) -> None:
    names = ["a", "b", "c", "d"]
    for name in names:
        await slots.configure(name, WindowPolicy(7, "PT4S"), now_ms=NOW)
    scheduler = SlotScheduler(slots)
    # Each in another order, so that writers meet on the events' keys crosswise.
    events = wants(count)
    orders = [events, events[::-1], events[::2] + events[1::2], events[count // 2 :] + events[: count // 2]]
    results = await asyncio.gather(*(scheduler.book(order, name) for name, order in zip(names, orders, strict=True)))
    slots_of: dict[str, set[tuple[str, int]]] = {}
    for batch in results:
        for slot in batch:
            assert isinstance(slot, AssignedSlot)
            slots_of.setdefault(slot.event_id, set()).add((slot.config_name, slot.scheduled_ms))
    assert all(len(one) == 1 for one in slots_of.values())
    assert sum([sum((await check_windows(slots, name, NOW)).values()) for name in names]) == count


async def test_reconciliation_pages_through_booked_slots(slots: SlotStore) -> None:
    await slots.configure("c", WindowPolicy(3, "PT4S"), now_ms=NOW)
    booked = sorted(await book(slots, wants(20)), key=lambda slot: (slot.scheduled_ms, slot.event_id))
    seen: list[AssignedSlot] = []
    cursor = None
    while page := await slots.booked(T_MS + 12_000, cursor, 4):
        seen += page
        cursor = page[-1].scheduled_ms, page[-1].event_id
    assert [slot.event_id for slot in seen] == [slot.event_id for slot in booked if slot.scheduled_ms < T_MS + 12_000]


async def test_pruning_forgets_the_past_only(slots: SlotStore) -> None:
    await slots.configure("c", WindowPolicy(2, "PT4S"), now_ms=NOW)
    await book(slots, wants(10))
    pruned = await slots.prune(T_MS + 8000)
    assert pruned == (4, 2)
    left = await slots.booked(T_MS + 10**9, None, 100)
    assert Counter(slot.window_start_ms for slot in left) == {T_MS + n * 4000: 2 for n in (2, 3, 4)}
    await check_windows(slots, "c", T_MS + 8000)
    assert await slots.prune(T_MS + 8000) == (0, 0)


async def test_odd_ids_survive(slots: SlotStore) -> None:
    await slots.configure("c", WindowPolicy(10_000, "PT4S"), now_ms=NOW)
    odd = ["'", '"', "a\\tb", "\\", "\\N", "ü√", "a b", "%s", "{}", "/../", "x" * 255, "🙂" * 60]
    odd += ["\u00a0", "\u3000x", "a\u200db", "\ue000", "\u0378", "\uffff"]
    requests = [SlotRequest(event_id, T_MS) for event_id in odd] + wants(1000)
    booked = await book(slots, requests)
    assert [slot.event_id for slot in booked[: len(odd)]] == odd
    for event_id in odd:
        slot = await slots.find(event_id)
        assert slot is not None
        assert slot.event_id == event_id


async def test_no_slot_is_booked_in_a_window_that_was_closed_meanwhile(slots: SlotStore) -> None:
    """A cancel inside a closed window gives no room there, although the window was full and now is not."""
    await slots.configure("c", WindowPolicy(1, "PT4S"), now_ms=NOW)
    await book(slots, wants(250))
    blackout = {"zone": "UTC", "blackouts": [{"from": "2027-03-01T16:08:00Z", "to": "2027-03-01T16:10:00Z"}]}
    await slots.configure("c", WindowPolicy(1, "PT4S", calendar=blackout), now_ms=NOW)
    assert await slots.cancel("e125") is not None
    (booked,) = await book(slots, wants(1, prefix="n"))
    assert booked.window_start_ms == T_MS + 250 * 4000
    await check_windows(slots, "c", NOW)
    await slots.configure("c", WindowPolicy(1, "PT4S"), now_ms=NOW)
    (opened,) = await book(slots, wants(1, prefix="o"))
    assert opened.window_start_ms == T_MS + 125 * 4000


async def test_the_window_that_the_horizon_cuts_holds_in_proportion_to_what_lies_before_it(slots: SlotStore) -> None:
    await slots.configure("c", WindowPolicy(200, "PT4S", max_delay="PT4S"), now_ms=NOW)
    bookings = await slots.book("c", wants(500), now_ms=NOW)
    held = Counter(slot.window_start_ms for slot in bookings if isinstance(slot, AssignedSlot))
    assert held == {T_MS: 200}  # of the next window one millisecond may be used: 200 × 1 // 4000
    bookings = await slots.book("c", wants(500, T_MS + 1000, "later"), now_ms=NOW)
    held = Counter(slot.window_start_ms for slot in bookings if isinstance(slot, AssignedSlot))
    assert held == {T_MS + 4000: 50}
    await check_windows(slots, "c", NOW)


async def test_a_whole_first_window_takes_a_lone_event_under_a_small_limit(slots: SlotStore) -> None:
    ten = T_MS + 10 * 3_600_000  # the day's window begins at midnight
    for name, first_window in (("seed", "proportional"), ("soft", "whole")):
        await slots.configure(name, WindowPolicy(1, "P1D", first_window=first_window), now_ms=NOW)
    (tomorrow,) = await book(slots, wants(1, ten, "a"), name="seed")
    today, next_day = await book(slots, wants(2, ten, "b"), name="soft")
    day = 86_400_000
    assert tomorrow.window_start_ms == ten - ten % day + day
    assert today.window_start_ms == ten - ten % day
    assert ten <= today.scheduled_ms < today.window_start_ms + day
    assert next_day.window_start_ms == today.window_start_ms + day
    assert (await slots.history("soft"))[0].policy.first_window == "whole"


async def test_a_whole_first_window_is_still_cut_by_the_horizon(slots: SlotStore) -> None:
    await slots.configure("c", WindowPolicy(8, "PT4S", max_delay="PT1S", first_window="whole"), now_ms=NOW)
    bookings = await slots.book("c", wants(8, T_MS + 1000), now_ms=NOW)
    held = [slot.scheduled_ms for slot in bookings if isinstance(slot, AssignedSlot)]
    assert len(held) == 4, "of a window of four seconds, half lies before the horizon"
    assert all(T_MS + 1000 <= at <= T_MS + 2000 for at in held)


@pytest.mark.parametrize("spread", ["jitter", "even"])
async def test_steady_overload_against_a_horizon_does_not_crowd_at_the_start_of_windows(
    slots: SlotStore, spread: str
) -> None:
    await slots.configure("c", WindowPolicy(40, "PT4S", spread=spread, max_delay="PT8S"), now_ms=NOW)
    booked: list[int] = []
    for step in range(200):  # twice what fits, for twenty seconds
        now = T_MS + step * 100
        bookings = await slots.book("c", wants(2, now, f"{step}-"), now_ms=now)
        booked += [slot.scheduled_ms for slot in bookings if isinstance(slot, AssignedSlot)]
    steady = Counter(at % 4000 // 1000 for at in booked if T_MS + 8000 <= at < T_MS + 24_000)
    # Forty a second, at random; crowded, the first second held three quarters of all.
    assert all(20 <= steady[second] <= 60 for second in range(4)), steady


@pytest.mark.parametrize("count", [3, 500])
async def test_only_its_owner_cancels_a_slot(slots: SlotStore, count: int) -> None:
    await slots.configure("c", WindowPolicy(10, "PT4S"), now_ms=NOW)
    await slots.book("c", wants(count, prefix="own"), now_ms=NOW, owner="payments")
    await book(slots, wants(1, prefix="free"))
    owned, free = await slots.find("own1"), await slots.find("free0")
    assert owned is not None
    assert free is not None
    assert (owned.owner, free.owner) == ("payments", None)
    for event_id, owner in [("own1", None), ("own1", "others"), ("free0", "payments")]:
        with pytest.raises(SlotOwned):
            await slots.cancel(event_id, owner=owner)
    (again,) = await book(slots, [SlotRequest("own1", T_MS)])
    assert again == owned
    assert sum((await check_windows(slots, "c", NOW)).values()) == count + 1
    assert await slots.cancel("own1", owner="payments") == owned
    assert await slots.cancel("free0") == free
    assert {slot.owner for slot in await slots.booked(LATEST_MS - 1, None, 1000)} == {"payments"}


async def test_a_resize_after_a_prune_into_the_current_window_still_counts_all_of_it(slots: SlotStore) -> None:
    await slots.configure("c", WindowPolicy(40, "PT1H", spread="even"), now_ms=NOW)
    await slots.configure("short", WindowPolicy(2, "PT4S"), now_ms=NOW)
    await book(slots, wants(40))
    await book(slots, wants(2, prefix="short"), name="short")
    now = T_MS + 30 * 60_000
    assert await slots.prune(now) == (2, 1), "of the window that has ended, and nothing of the one that has not"
    await slots.configure("c", WindowPolicy(45, "PT2H"), now_ms=now)
    assert sum((await check_windows(slots, "c", now)).values()) == 40
    booked = await book(slots, wants(10, now, "n"), now_ms=now)
    assert Counter(slot.window_start_ms for slot in booked) == {T_MS: 45 - 40, T_MS + 2 * 3_600_000: 5}


async def test_a_longer_window_of_which_slots_were_pruned_is_full(slots: SlotStore) -> None:
    await slots.configure("c", WindowPolicy(10, "PT1S"), now_ms=NOW)
    await slots.configure("other", WindowPolicy(10, "PT1S"), now_ms=NOW)
    await book(slots, wants(30))
    now, hour = T_MS + 30 * 60_000, 3_600_000
    await slots.prune(now)
    await slots.configure("c", WindowPolicy(10, "PT4S"), now_ms=now)
    (ahead, *_) = await book(slots, wants(3, now, "n"), now_ms=now)
    assert ahead.window_start_ms == now, "nothing of this window was pruned"
    await slots.configure("c", WindowPolicy(100, "PT1H"), now_ms=now)
    (late,) = await book(slots, wants(1, now, "late"), now_ms=now)
    assert late.window_start_ms == T_MS + hour, "nobody knows how many of this hour are gone"
    await slots.cancel("n0")
    await slots.configure("c", WindowPolicy(200, "PT1H"), now_ms=now)
    (again,) = await book(slots, wants(1, now, "again"), now_ms=now)
    assert again.window_start_ms == T_MS + hour, "neither a cancelled slot nor a raised limit tells"
    await slots.configure("other", WindowPolicy(100, "PT1H"), now_ms=now)
    (free,) = await book(slots, wants(1, now, "free"), now_ms=now, name="other")
    assert free.window_start_ms == T_MS, "nothing of this config was pruned"


async def test_a_forecast_knows_of_a_window_that_is_full_because_slots_of_it_were_pruned(slots: SlotStore) -> None:
    now, scheduler = to_ms(datetime.now(UTC)), SlotScheduler(slots)
    await slots.configure("c", WindowPolicy(2, "PT0.01S"), now_ms=NOW)
    await book(slots, wants(3, now - 5000), now_ms=now - 5000)
    await slots.prune(now)
    year = WindowPolicy(4, "P366D", first_window="whole")
    following = from_ms(align(now, year.size_ms) + year.size_ms)
    longer = {"window": year.window, "first_window": "whole", "max_per_window": 4}
    assert (await scheduler.forecast("c", changes=longer)).first_window == following
    await slots.configure("c", year, now_ms=now)
    for limit in (4, 9, 100):
        tried = await scheduler.forecast("c", max_per_window=limit)
        assert tried.first_window == following, "neither the limit that it has nor another one tells"
        await slots.configure("c", WindowPolicy(limit, "P366D", first_window="whole"), now_ms=now)
        made = await scheduler.forecast("c")
        assert (made.windows, made.next_windows) == (tried.windows, tried.next_windows)
    (booked,) = await book(slots, wants(1, now, "n"), now_ms=now)
    assert booked.window_start == following


async def test_a_time_after_the_last_one_does_not_talk_of_a_horizon(slots: SlotStore) -> None:
    await slots.configure("c", WindowPolicy(1, "PT1S"), now_ms=NOW)
    (refused,) = await slots.book("c", wants(1, LATEST_MS), now_ms=NOW)
    assert isinstance(refused, SlotsExhausted)
    assert refused.earliest is None
    assert "horizon" not in str(refused)


async def test_configs_are_searched_and_paged_by_name(slots: SlotStore) -> None:
    policy = WindowPolicy(max_per_window=5, window="PT1S")
    for name in ("shop-b", "Shop-a", "bank", "shop-c"):
        await slots.configure(name, policy)
    await slots.configure("bank", WindowPolicy(max_per_window=6, window="PT1S"))
    assert [listed.version.name for listed in await slots.search_configs("", None, None, 9)] == [
        "Shop-a",
        "bank",
        "shop-b",
        "shop-c",
    ]
    first = await slots.search_configs("SHOP", None, None, 2)
    assert [listed.version.name for listed in first] == ["Shop-a", "shop-b"]
    assert [listed.version.name for listed in await slots.search_configs("SHOP", None, "shop-b", 2)] == ["shop-c"]
    (bank,) = await slots.search_configs("an", None, None, 9)
    assert (bank.version.version, bank.version.policy.max_per_window) == (2, 6)
    assert await slots.search_configs("nothing", None, None, 9) == []


async def test_configs_that_follow_a_template_are_listed_apart_and_counted(slots: SlotStore) -> None:
    policy = WindowPolicy(max_per_window=5, window="PT1S")
    await slots.configure("shop-*", policy)
    await slots.configure("other", policy)
    for name in ("shop-a", "shop-b", "shop-own"):
        await slots.make_from_template(name, 100)
    await slots.configure("shop-own", WindowPolicy(max_per_window=6, window="PT1S"))

    async def listed(template: str | None) -> list[tuple[str, str | None, int]]:
        page = await slots.search_configs("", template, None, 9)
        return [(config.version.name, config.template, config.followers) for config in page]

    alone = [("other", None, 0), ("shop-*", None, 2)]
    following = [("shop-a", "shop-*", 0), ("shop-b", "shop-*", 0)]
    own = [("shop-own", None, 0)]
    assert await listed("") == alone + own
    assert await listed("shop-*") == following
    assert await listed(None) == alone + following + own
    assert await listed("nothing-*") == []
