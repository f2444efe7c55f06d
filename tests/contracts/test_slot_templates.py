"""Configs that are made from a template, on every `SlotStore`."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from paceline.durations import from_ms, to_ms
from paceline.errors import InvalidInput, NotFound, StaleVersion
from paceline.slots.model import AssignedSlot, SlotRequest, WindowPolicy
from paceline.slots.ports import SlotStore
from paceline.slots.scheduler import SlotScheduler
from paceline.slots.templates import best_template, is_template
from paceline.slots.windows import align
from tests.contracts.slot_windows import check_windows
from tests.contracts.test_slot_store import NOW, T, wants

LONG_AGO = to_ms(datetime(2020, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("name", "template"),
    [
        ("merchant-7", "merchant-*"),
        ("merchant-eu-7", "merchant-eu-*"),
        ("merchant-", None),
        ("xmerchant-7", None),
        ("bank", None),
        ("a-b-c", "a-*-c"),
        ("shop-1\u2029", "*\u2029"),
    ],
)
def test_the_template_that_says_most_of_the_name_is_taken(name: str, template: str | None) -> None:
    templates = ["merchant-*", "merchant-eu-*", "bank", "a-*", "a-*-c", "*\u2029"]
    assert best_template(templates, name) == template
    assert not is_template(name)


def test_many_wildcards_take_no_time_without_end() -> None:
    assert best_template(["a" + "*" * 100 + "b"], "a" * 120) is None


async def test_a_first_event_makes_its_config(slots: SlotStore) -> None:
    scheduler = SlotScheduler(slots)
    await scheduler.configure("bank", WindowPolicy(10, "PT4S"))
    await scheduler.configure("merchant-*", WindowPolicy(1, "PT4S", spread="even"))
    await scheduler.configure("merchant-*", WindowPolicy(2, "PT4S"))
    many = [scheduler.assign(f"e{n}", ["bank", f"merchant-{n % 3}"], T) for n in range(30)]
    booked = await asyncio.gather(*many)
    assert {window.config_version for slot in booked for window in slot.other_windows} == {2}
    for n in range(3):
        held = await check_windows(slots, f"merchant-{n}", NOW)
        assert sorted(held.values()) == [2] * 5
        assert (await scheduler.policy(f"merchant-{n}")).policy == WindowPolicy(2, "PT4S")
    assert sum((await check_windows(slots, "bank", NOW)).values()) == 30
    assert [config.name for config in await slots.configs()] == ["bank", "merchant-*"] + [
        f"merchant-{n}" for n in range(3)
    ]


async def test_nothing_is_booked_under_a_template_itself(slots: SlotStore) -> None:
    scheduler = SlotScheduler(slots)
    await scheduler.configure("merchant-*", WindowPolicy(1, "PT4S"))
    for names in ("merchant-*", ["bank", "merchant-*"]):
        with pytest.raises(InvalidInput, match="is a template"):
            await scheduler.assign("e", names, T)
    with pytest.raises(NotFound):
        await scheduler.assign("e", "shop-1", T)
    with pytest.raises(NotFound):
        await scheduler.check_configs("shop-1")
    await scheduler.check_configs(("merchant-1", "merchant-2"))
    assert len(await slots.configs()) == 1, "looking makes nothing"


async def test_a_forecast_knows_the_template_before_the_first_event(slots: SlotStore) -> None:
    scheduler = SlotScheduler(slots)
    await scheduler.configure("merchant-*", WindowPolicy(1, "PT4S"))
    forecast = await scheduler.forecast("merchant-9", 3, T)
    assert (forecast.config_name, forecast.window_count) == ("merchant-9", 3)


async def test_configs_follow_their_template_until_they_have_a_policy_of_their_own(slots: SlotStore) -> None:
    scheduler = SlotScheduler(slots)
    await scheduler.configure("merchant-*", WindowPolicy(1, "PT4S"))
    for n in range(3):
        await scheduler.assign_many([(f"{n}-{k}", T) for k in range(6)], f"merchant-{n}")
    await scheduler.configure("merchant-1", WindowPolicy(5, "PT4S"))
    await scheduler.configure("merchant-*", WindowPolicy(3, "PT8S"))
    policies = {config.name: config.policy for config in await slots.configs()}
    assert policies["merchant-0"] == policies["merchant-2"] == WindowPolicy(3, "PT8S")
    assert policies["merchant-1"] == WindowPolicy(5, "PT4S")
    for n in range(3):
        await check_windows(slots, f"merchant-{n}", NOW)
    assert [version.version for version in await slots.history("merchant-0")] == [2, 1]
    await scheduler.assign("more", "merchant-0", T)
    await check_windows(slots, "merchant-0", NOW)


async def test_idle_configs_are_pruned_and_made_again(slots: SlotStore) -> None:
    scheduler = SlotScheduler(slots)
    await slots.configure("merchant-*", WindowPolicy(1, "PT4S"), now_ms=LONG_AGO)
    past, ahead = to_ms(T) - 10**9, to_ms(T)
    for name, at in (("merchant-1", past), ("merchant-2", ahead)):
        assert await slots.make_from_template(name, 10) is not None
        await slots.book(name, [SlotRequest(name, at)], now_ms=LONG_AGO)
    await slots.make_from_template("merchant-3", 10)
    await slots.make_from_template("merchant-4", 10)
    await slots.configure("merchant-4", WindowPolicy(7, "PT4S"), now_ms=LONG_AGO)  # its own from now on
    soon = to_ms(datetime.now(UTC) + timedelta(minutes=5))
    later = max(past + 5000, soon)
    await slots.prune(later)
    names = [config.name for config in await slots.configs()]
    assert names == ["merchant-*", "merchant-2", "merchant-4"] or names == ["merchant-*", "merchant-4"]
    assert (later < ahead) == ("merchant-2" in names)
    await slots.configure("merchant-*", WindowPolicy(9, "PT4S"), now_ms=LONG_AGO)
    slot = await scheduler.assign("again", "merchant-1", T)
    assert slot.config_version == 2, "the number of the template's version: never one that had another policy"
    assert (await scheduler.policy("merchant-1")).policy.max_per_window == 9


async def test_a_config_whose_slots_were_all_cancelled_is_idle(
    slots: SlotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.slots.stores.templates.MIN_IDLE_AGE", timedelta(minutes=-1))
    scheduler = SlotScheduler(slots, template_configs=1)
    await scheduler.configure("merchant-*", WindowPolicy(1, "PT4S"))
    await scheduler.assign("first", "merchant-1", T)
    await scheduler.cancel("first")
    assert (await scheduler.assign("second", "merchant-2", T)).config_name == "merchant-2"
    assert [config.name for config in await slots.configs()] == ["merchant-*", "merchant-2"]


async def test_a_template_makes_so_many_configs_and_idle_ones_make_room(
    slots: SlotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.slots.stores.templates.MIN_IDLE_AGE", timedelta(minutes=-1))
    scheduler = SlotScheduler(slots, template_configs=3)
    await scheduler.configure("merchant-*", WindowPolicy(1, "PT4S"))
    for n in range(3):
        await scheduler.assign(f"e{n}", f"merchant-{n}", T)
    (booking,) = await scheduler.book(wants(1, prefix="n"), "merchant-3")
    assert isinstance(booking, InvalidInput)
    assert "3 configs in use" in str(booking)
    with pytest.raises(InvalidInput, match="PACELINE_SLOTS_TEMPLATE_CONFIGS"):
        await scheduler.assign("n", "merchant-3", T)
    again = await scheduler.book([SlotRequest.of("e0", T), SlotRequest.of("new", T)], "merchant-3")
    assert isinstance(again[0], AssignedSlot), "an event that has a slot keeps it"
    assert isinstance(again[1], InvalidInput)
    await slots.make_from_template("x", 1)
    # One whose windows have all ended is forgotten.
    await scheduler.cancel("e1")
    await slots.prune(to_ms(T) + 100_000)
    slot = await scheduler.assign("n", "merchant-3", from_ms(to_ms(T) + 10**8))
    assert slot.config_name == "merchant-3"


@pytest.mark.parametrize("is_pruned", [False, True])
@pytest.mark.parametrize("is_own", [False, True])
async def test_the_slots_of_an_evicted_config_count_in_a_longer_window(
    slots: SlotStore, monkeypatch: pytest.MonkeyPatch, is_own: bool, is_pruned: bool
) -> None:
    monkeypatch.setattr("paceline.slots.stores.templates.MIN_IDLE_AGE", timedelta(minutes=-1))
    now = to_ms(datetime.now(UTC))
    await slots.configure("merchant-*", WindowPolicy(2, "PT0.01S"), now_ms=LONG_AGO)
    await slots.make_from_template("merchant-1", 1)
    await slots.book("merchant-1", wants(3, now - 1000), now_ms=now - 1000)
    await slots.make_from_template("merchant-2", 1)
    assert await slots.active_version("merchant-1") is None
    if is_pruned:
        assert (await slots.prune(now)).slots == 3
    year = WindowPolicy(4, "P366D", first_window="whole")
    await slots.configure("merchant-1" if is_own else "merchant-*", year, now_ms=now)
    forecast = await SlotScheduler(slots).forecast("merchant-1", 2)
    if not is_own:
        await slots.make_from_template("merchant-1", 2)
        await slots.make_from_template("merchant-3", 3)
    bookings = await slots.book("merchant-1", wants(2, now, "n"), now_ms=now)
    windows = [booking.window_start_ms for booking in bookings if isinstance(booking, AssignedSlot)]
    this_year = now - now % year.size_ms
    following = this_year + year.size_ms
    # Of slots that are gone, nobody knows how many there were.
    assert windows == ([following, following] if is_pruned else [this_year, following])
    assert [to_ms(fill.start) for fill in forecast.windows for _ in range(fill.added)] == windows
    if not is_own:
        (new,) = await slots.book("merchant-3", wants(1, now, "m"), now_ms=now)
        assert isinstance(new, AssignedSlot)
        assert new.window_start_ms == this_year


async def test_the_slots_of_an_evicted_config_are_pruned(slots: SlotStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.slots.stores.templates.MIN_IDLE_AGE", timedelta(minutes=-1))
    now = to_ms(datetime.now(UTC))
    year = WindowPolicy(2, "P366D", spread="even")
    start = align(now, year.size_ms)
    await slots.configure("yearly", year, now_ms=LONG_AGO)
    await slots.configure("merchant-*", WindowPolicy(2, "PT0.01S"), now_ms=LONG_AGO)
    await slots.make_from_template("merchant-1", 1)
    await slots.book("merchant-1", wants(3, now - 1000), now_ms=now - 1000)
    await slots.book("yearly", wants(1, start, "y"), now_ms=start)
    await slots.make_from_template("merchant-2", 1)
    assert await slots.active_version("merchant-1") is None
    assert (await slots.prune(now - 900)).slots == 3, "however long the windows of other configs are"
    assert await slots.find("y0") is not None


async def test_many_first_events_at_once_make_each_config_once(slots: SlotStore) -> None:
    scheduler = SlotScheduler(slots)
    await scheduler.configure("bank", WindowPolicy(1000, "PT4S"))
    await scheduler.configure("merchant-*", WindowPolicy(5, "PT4S"))
    others = [SlotScheduler(slots) for _ in range(3)]
    calls = [
        one.assign(f"{index}-{n}", ["bank", f"merchant-{n % 5}"], T)
        for index, one in enumerate([scheduler, *others])
        for n in range(10)
    ]
    await asyncio.gather(*calls)
    for n in range(5):
        assert sum((await check_windows(slots, f"merchant-{n}", NOW)).values()) == 8


async def test_a_config_that_is_not_made_yet_has_its_templates_policy(slots: SlotStore) -> None:
    scheduler = SlotScheduler(slots)
    await scheduler.configure("merchant-*", WindowPolicy(1, "PT4S"))
    await scheduler.configure("merchant-*", WindowPolicy(2, "PT8S", spread="even"))
    shown = await scheduler.policy("merchant-9")
    assert (shown.name, shown.version, shown.policy) == ("merchant-9", 2, WindowPolicy(2, "PT8S", spread="even"))
    assert await scheduler.history("merchant-9") == [shown]
    assert [config.name for config in await slots.configs()] == ["merchant-*"], "showing makes nothing"
    for name in ("shop-9", "merchant-", "merchant-eu-*"):
        with pytest.raises(NotFound):
            await scheduler.policy(name)
        with pytest.raises(NotFound):
            await scheduler.history(name)


async def test_what_a_first_change_does_not_give_comes_from_the_template(slots: SlotStore) -> None:
    scheduler = SlotScheduler(slots)
    await scheduler.configure("merchant-*", WindowPolicy(1, "PT8S", spread="even"))
    await scheduler.configure("merchant-*", WindowPolicy(2, "PT8S", spread="even"))
    with pytest.raises(InvalidInput, match="max_per_window"):
        await scheduler.change("merchant-9", {"max_per_window": 0})
    with pytest.raises(StaleVersion):
        await scheduler.change("merchant-9", {"max_per_window": 9}, if_version=[1])
    previewed, warnings = await scheduler.preview("merchant-9", {"max_per_window": 9}, if_version=[2])
    assert warnings == []
    assert len(await slots.configs()) == 1
    made = await scheduler.change("merchant-9", {"max_per_window": 9}, if_version=[2])
    assert made.policy == previewed.policy == WindowPolicy(9, "PT8S", spread="even")
    assert made.version == previewed.version == 3, "never a number that the template's policies had"
    await scheduler.configure("merchant-*", WindowPolicy(5, "PT8S"))
    assert (await scheduler.policy("merchant-9")).policy.max_per_window == 9, "it is its own from now on"
    with pytest.raises(InvalidInput, match="window"):
        await scheduler.change("shop-9", {"max_per_window": 9})
    assert (await scheduler.change("merchant-8", {"max_per_window": 9}, if_version=[0])).version == 4
