"""Explanations on every `SlotStore`: slots under several configs, and slots whose config is deleted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from paceline.durations import LATEST_MS, to_ms
from paceline.errors import SlotsExhausted
from paceline.slots.explain import Explanation, Reason, RemovedVersion
from paceline.slots.model import AssignedSlot, SlotRequest, WindowPolicy
from paceline.slots.ports import SlotStore
from paceline.slots.replan.assignment import Direction
from paceline.slots.replan.run import Span, replan
from paceline.slots.scheduler import SlotScheduler
from tests.contracts.replanned import Stores
from tests.contracts.test_slot_store import NOW, T_MS, book, wants

LONG_AGO = to_ms(datetime(2020, 1, 1, tzinfo=UTC))
BOTH = ("bank", "merchant-1")
FAR = LATEST_MS - 10**9 - (LATEST_MS - 10**9) % 60_000
"""Still to come, whatever the store's clock says."""

Passed = list[tuple[str, int, Reason]]


def passed(explanation: Explanation, since_ms: int) -> Passed:
    """The steps, with the seconds from a time to their windows."""
    assert all(step.windows == 1 for step in explanation.steps)
    return [(step.config_name, (step.window_start_ms - since_ms) // 1000, step.reason) for step in explanation.steps]


async def book_both(store: SlotStore, request: SlotRequest, now_ms: int = NOW) -> AssignedSlot:
    (slot,) = await store.book(BOTH, [request], now_ms=now_ms)
    assert isinstance(slot, AssignedSlot)
    return slot


# -- slots under several configs ---------------------------------------------------------------------------------


async def test_today_is_the_window_that_all_configs_would_admit(slots: SlotStore) -> None:
    """Each config by itself has room earlier: one at 4 s, the other at 0 s."""
    for name in BOTH:
        await slots.configure(name, WindowPolicy(1, "PT4S"), now_ms=NOW)
    await book(slots, [SlotRequest("a", FAR)], name="bank")
    await book(slots, [SlotRequest(f"b{s}", FAR + s * 1000) for s in (4, 8, 12, 16)], name="merchant-1")
    slot = await book_both(slots, SlotRequest("j", FAR))
    today = (await SlotScheduler(slots).explain("j")).today
    again = await book_both(slots, SlotRequest("again", FAR))
    assert (slot.window_start_ms - FAR, again.window_start_ms - FAR) == (20_000, 24_000)
    assert (today.window_start_ms, today.earliest_ms) == (again.window_start_ms, None)


async def test_today_is_refused_as_a_booking_under_all_configs_would_be(slots: SlotStore) -> None:
    await slots.configure("bank", WindowPolicy(1, "PT4S", max_delay="PT6S"), now_ms=NOW)
    await slots.configure("merchant-1", WindowPolicy(1, "PT4S"), now_ms=NOW)
    await book_both(slots, SlotRequest("j", FAR))
    await book(slots, [SlotRequest("b", FAR + 4000)], name="merchant-1")
    today = (await SlotScheduler(slots).explain("j")).today
    (refused,) = await slots.book(BOTH, [SlotRequest("again", FAR)], now_ms=NOW)
    assert isinstance(refused, SlotsExhausted)
    assert refused.earliest is not None
    assert (today.window_start_ms, today.earliest_ms) == (None, to_ms(refused.earliest))


async def test_the_first_window_of_each_config_is_passed_over_for_its_share(slots: SlotStore) -> None:
    await slots.configure("bank", WindowPolicy(1, "PT4S"), now_ms=NOW)
    await slots.configure("merchant-1", WindowPolicy(4, "PT4S"), now_ms=NOW)
    slot = await book_both(slots, SlotRequest("j", T_MS + 2000))
    assert slot.window_start_ms == T_MS + 4000
    scheduler = SlotScheduler(slots)
    assert passed(await scheduler.explain("j"), T_MS) == [
        ("bank", 0, Reason.PROPORTIONAL),
        ("merchant-1", 0, Reason.JOINT),
    ]
    await book(slots, wants(2, T_MS + 2000), name="merchant-1")
    assert ("merchant-1", 0, Reason.PROPORTIONAL) in passed(await scheduler.explain("j"), T_MS)
    await slots.configure("bank", WindowPolicy(1, "PT4S", first_window="whole"), now_ms=NOW)
    assert passed(await scheduler.explain("j"), T_MS)[0] == ("bank", 0, Reason.PROPORTIONAL), "as it was booked"


@pytest.mark.parametrize("sizes", [["PT10S"], ["PT10S", "PT4S"], ["PT1S"], []])
async def test_what_was_full_stays_full_after_a_resize_and_a_raise(slots: SlotStore, sizes: list[str]) -> None:
    for name in BOTH:
        await slots.configure(name, WindowPolicy(1, "PT4S"), now_ms=NOW)
    await book(slots, wants(3), name="merchant-1")
    await book(slots, wants(1, prefix="b"), name="bank")
    slot = await book_both(slots, SlotRequest("j", T_MS))
    assert slot.window_start_ms == T_MS + 12_000
    scheduler = SlotScheduler(slots)
    expected = [
        ("bank", 0, Reason.FULL),
        ("bank", 4, Reason.JOINT),
        ("bank", 8, Reason.JOINT),
        ("merchant-1", 0, Reason.FULL),
        ("merchant-1", 4, Reason.FULL),
        ("merchant-1", 8, Reason.FULL),
    ]
    assert passed(await scheduler.explain("j"), T_MS) == expected
    for size in sizes:
        for name in BOTH:
            await slots.configure(name, WindowPolicy(1, size), now_ms=NOW)
    await slots.configure("merchant-1", WindowPolicy(50, "PT30S"), now_ms=NOW)
    assert passed(await scheduler.explain("j"), T_MS) == expected


async def test_slots_outside_the_listed_windows_are_not_counted_into_them(slots: SlotStore) -> None:
    """Counted again in stretches of windows: those at their ends have all of their slots, and only theirs."""
    for name in BOTH:
        await slots.configure(name, WindowPolicy(2, "PT1S"), now_ms=NOW)
    await book(slots, wants(300), name="merchant-1")
    slot = await book_both(slots, SlotRequest("j", T_MS))
    assert slot.window_start_ms == T_MS + 150_000
    await slots.cancel("e128")  # of the window of 64 s
    await slots.configure("merchant-1", WindowPolicy(2, "PT7S"), now_ms=NOW)
    steps = passed(await SlotScheduler(slots).explain("j"), T_MS)
    reasons = {second: reason for name, second, reason in steps if name == "merchant-1"}
    assert reasons == {second: Reason.JOINT if second == 64 else Reason.FULL for second in range(150)}


async def test_what_was_full_when_a_slot_was_moved_stays_full_after_a_raise(stores: Stores) -> None:
    store, replans = stores
    await store.configure("c", WindowPolicy(1, "PT4S"), now_ms=NOW)
    await book(store, wants(4, FAR))
    await store.cancel("e0")
    moved = await replan(replans, Span("c"), Direction.EARLIER, dry_run=False)
    assert moved.moved == 3
    scheduler = SlotScheduler(store)
    expected = [("c", 0, Reason.FULL), ("c", 4, Reason.FULL)]
    assert passed(await scheduler.explain("e3"), FAR) == expected
    await store.configure("c", WindowPolicy(9, "PT30S"), now_ms=NOW)
    assert passed(await scheduler.explain("e3"), FAR) == expected
    await store.cancel("e1")
    assert passed(await scheduler.explain("e3"), FAR)[0] == ("c", 0, Reason.ORDER)


# -- configs that are deleted ------------------------------------------------------------------------------------


@pytest.fixture
def scheduler(slots: SlotStore, monkeypatch: pytest.MonkeyPatch) -> SlotScheduler:
    """Its templates make one config each: the next one evicts it as soon as its windows have ended."""
    monkeypatch.setattr("paceline.slots.stores.templates.MIN_IDLE_AGE", timedelta(minutes=-1))
    return SlotScheduler(slots, template_configs=1)


async def book_long_ago(store: SlotStore, names: str | tuple[str, ...], count: int = 3) -> None:
    """Books the events e0, e1, … under the bank, merchant-1 or both, 1 per PT4S, for one time of the past."""
    await store.configure("bank", WindowPolicy(5, "PT4S"), now_ms=LONG_AGO)
    await store.configure("merchant-*", WindowPolicy(1, "PT4S"), now_ms=LONG_AGO)
    await store.make_from_template("merchant-1", 1)
    bookings = await store.book(names, wants(count, LONG_AGO), now_ms=LONG_AGO)
    assert all(isinstance(booking, AssignedSlot) for booking in bookings)


async def evict(scheduler: SlotScheduler, event_id: str = "evicting", name: str = "merchant-2") -> None:
    await scheduler.assign(event_id, name, datetime.now(UTC) + timedelta(days=1))
    assert "merchant-1" not in [config.name for config in await scheduler.configs()]


async def test_a_slot_of_an_evicted_config_is_explained_by_its_template(
    slots: SlotStore, scheduler: SlotScheduler
) -> None:
    await book_long_ago(slots, "merchant-1")
    before = await scheduler.explain("e2")
    assert before.removed == ()
    await evict(scheduler)
    explanation = await scheduler.explain("e2")
    assert explanation.removed == (RemovedVersion("merchant-1", 1, False, "merchant-*"),)
    assert passed(explanation, LONG_AGO) == [("merchant-1", 0, Reason.FULL), ("merchant-1", 4, Reason.FULL)]
    assert explanation.steps == before.steps
    assert explanation.then is not None
    assert (explanation.then.name, explanation.then.version) == ("merchant-1", 1)
    assert (explanation.active.name, explanation.active.version) == ("merchant-1", 1)
    assert explanation.today.window_start_ms is not None


async def test_a_newer_version_of_its_template_is_what_an_evicted_config_would_have_today(
    slots: SlotStore, scheduler: SlotScheduler
) -> None:
    await book_long_ago(slots, "merchant-1")
    await evict(scheduler)
    await slots.configure("merchant-*", WindowPolicy(2, "PT1H"))
    explanation = await scheduler.explain("e2")
    assert explanation.removed == (RemovedVersion("merchant-1", 1, False, "merchant-*"),)
    assert passed(explanation, LONG_AGO) == [("merchant-1", 0, Reason.FULL), ("merchant-1", 4, Reason.FULL)]
    assert (explanation.active.version, explanation.active.policy) == (2, WindowPolicy(2, "PT1H"))


async def test_a_version_from_before_a_config_was_made_again_is_said_to_be_gone(
    slots: SlotStore, scheduler: SlotScheduler
) -> None:
    await book_long_ago(slots, "merchant-1")
    await evict(scheduler)
    await slots.configure("merchant-*", WindowPolicy(2, "PT4S"))
    await SlotScheduler(slots).assign("again", "merchant-1", datetime.now(UTC) + timedelta(days=1))
    explanation = await scheduler.explain("e2")
    assert explanation.removed == (RemovedVersion("merchant-1", 1, True, "merchant-*"),)
    assert passed(explanation, LONG_AGO) == [("merchant-1", 0, Reason.FULL), ("merchant-1", 4, Reason.FULL)]
    assert explanation.active.version == 2
    assert (await scheduler.explain("again")).removed == ()


async def test_a_slot_under_several_configs_of_which_one_is_evicted(slots: SlotStore, scheduler: SlotScheduler) -> None:
    await book_long_ago(slots, BOTH)
    expected = [
        ("bank", 0, Reason.JOINT),
        ("bank", 4, Reason.JOINT),
        ("merchant-1", 0, Reason.FULL),
        ("merchant-1", 4, Reason.FULL),
    ]
    assert passed(await scheduler.explain("e2"), LONG_AGO) == expected
    await evict(scheduler)
    explanation = await scheduler.explain("e2")
    assert explanation.removed == (RemovedVersion("merchant-1", 1, False, "merchant-*"),)
    assert passed(explanation, LONG_AGO) == expected, "its counters are deleted, and its slots are not"
    assert explanation.then is not None
    assert explanation.then.name == explanation.active.name == "bank"
    assert explanation.today.window_start_ms is not None
    # Made again by the same version: its policy is there, but its counters begin anew.
    await SlotScheduler(slots).assign("again", "merchant-1", datetime.now(UTC) + timedelta(days=1))
    explanation = await scheduler.explain("e2")
    assert explanation.removed == ()
    assert passed(explanation, LONG_AGO) == expected


async def test_the_policy_of_a_later_template_is_not_taken_for_that_of_a_slot(
    slots: SlotStore, scheduler: SlotScheduler
) -> None:
    """A new template matches the name better, and has a version of the same number."""
    await book_long_ago(slots, "merchant-1")
    await evict(scheduler)
    await slots.configure("merchant*1", WindowPolicy(9, "PT1S"))
    await slots.configure("*-1", WindowPolicy(9, "PT1S"), now_ms=LONG_AGO)
    explanation = await scheduler.explain("e2")
    assert explanation.removed == (RemovedVersion("merchant-1", 1, False, "merchant-*"),)
    assert passed(explanation, LONG_AGO) == [("merchant-1", 0, Reason.FULL), ("merchant-1", 4, Reason.FULL)]
