"""What a preview says that a change would do to booked slots, on every `SlotStore`."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from paceline.durations import EPOCH, from_ms, to_ms
from paceline.slots.forecast.impact import WarningCode
from paceline.slots.model import AssignedSlot, SlotRequest, WindowPolicy
from paceline.slots.ports import SlotStore
from paceline.slots.scheduler import SlotScheduler

AT = datetime(2090, 1, 1, tzinfo=UTC)


def blackout(from_s: float, to_s: float) -> dict[str, Any]:
    """A calendar that is closed between two offsets from `AT`."""
    start, end = (AT + timedelta(seconds=offset) for offset in (from_s, to_s))
    return {"zone": "UTC", "blackouts": [{"from": start.isoformat(), "to": end.isoformat()}]}


async def booked(scheduler: SlotScheduler, count: int, *names: str) -> list[AssignedSlot]:
    return await scheduler.assign_many([(f"{'+'.join(names)}/{n}", AT) for n in range(count)], list(names))


async def warned(scheduler: SlotScheduler, name: str, **changes: Any) -> Counter[WarningCode]:
    """How many slots each warning concerns."""
    _, warnings = await scheduler.preview(name, changes)
    return Counter({warning.code: warning.slots for warning in warnings})


def between(slots: list[AssignedSlot], from_s: float, to_s: float) -> int:
    """How many of the slots lie between two offsets from `AT`."""
    return sum(from_s <= (slot.scheduled_time - AT).total_seconds() < to_s for slot in slots)


@pytest.mark.parametrize("further", [(), ("bank",)])
async def test_longer_windows_hold_the_slots_of_several(slots: SlotStore, further: tuple[str, ...]) -> None:
    scheduler = SlotScheduler(slots)
    for name in ("c", *further):
        await scheduler.configure(name, WindowPolicy(2, "PT4S"))
    await booked(scheduler, 8, *further, "c")
    assert await warned(scheduler, "c", window="PT8S") == {WarningCode.OVER_LIMIT: 4}
    assert await warned(scheduler, "c", window="PT12S", max_per_window=3) == {WarningCode.OVER_LIMIT: 3}
    assert await warned(scheduler, "c", window="PT8S", max_per_window=4) == {}
    assert await warned(scheduler, "c", window="PT8S", max_per_window=4, calendar=blackout(12, 13)) == {
        WarningCode.CLOSED: 4
    }


async def test_shorter_windows_are_closed_one_by_one(slots: SlotStore) -> None:
    scheduler = SlotScheduler(slots)
    await scheduler.configure("c", WindowPolicy(8, "PT4S", spread="even"))
    made = await booked(scheduler, 16, "c")
    inside = between(made, 1, 4)
    assert 0 < inside < 8, "some of the first window's slots lie in its open second"
    assert await warned(scheduler, "c", window="PT1S", calendar=blackout(1, 4)) == {WarningCode.CLOSED: inside}
    assert await warned(scheduler, "c", window="PT1S", calendar=blackout(0, 1)) == {WarningCode.CLOSED: 8 - inside}
    held = Counter((slot.scheduled_time - AT) // timedelta(seconds=1) for slot in made)
    over = sum(taken - 1 for taken in held.values())
    assert await warned(scheduler, "c", window="PT1S", max_per_window=1) == {WarningCode.OVER_LIMIT: over}
    assert await warned(scheduler, "c", window="PT1S") == {}


async def test_slots_that_have_passed_fill_their_window_but_are_not_warned_of(slots: SlotStore) -> None:
    scheduler = SlotScheduler(slots)
    now, year = datetime.now(UTC), timedelta(days=366)
    start = now - (now - EPOCH) % year
    for name in ("c", "t-*"):
        await scheduler.configure(name, WindowPolicy(10, "PT4S"))
    for name in ("c", "t-1"):
        await slots.make_from_template(name, 10)
        for at, count in ((start + (now - start) / 2, 3), (now + (start + year - now) / 2, 2)):
            requests = [SlotRequest(f"{name}/{at}/{n}", to_ms(at)) for n in range(count)]
            await slots.book(name, requests, now_ms=to_ms(start))
    closed = {"zone": "UTC", "blackouts": [{"from": now.isoformat(), "to": (now + timedelta(hours=1)).isoformat()}]}
    for name in ("c", "t-1", "t-*"):
        for limit, over in ((4, 1), (2, 2), (5, 0)):
            warnings = await warned(scheduler, name, window=year, max_per_window=limit)
            assert warnings[WarningCode.OVER_LIMIT] == over
        assert await warned(scheduler, name, window=year, calendar=closed) == {WarningCode.CLOSED: 2}
    for name in ("c", "t-*"):
        await slots.configure(name, WindowPolicy(10, year))
    for name in ("c", "t-1", "t-*"):
        for limit, over in ((4, 1), (2, 2), (5, 0)):
            assert (await warned(scheduler, name, max_per_window=limit))[WarningCode.OVER_LIMIT] == over
        assert await warned(scheduler, name, calendar=closed) == {WarningCode.CLOSED: 2}, "windows of the same size"


async def test_a_window_that_is_full_because_slots_of_it_were_pruned_warns_of_no_slots(slots: SlotStore) -> None:
    scheduler = SlotScheduler(slots)
    now = to_ms(datetime.now(UTC))
    year = WindowPolicy(9, "P366D", first_window="whole")
    await slots.configure("t-*", WindowPolicy(2, "PT0.01S"), now_ms=now - 10_000)
    await slots.make_from_template("t-1", 10)
    await slots.book("t-1", [SlotRequest(f"past{n}", now - 5000) for n in range(2)], now_ms=now - 5000)
    await slots.book("t-1", [SlotRequest(f"ahead{n}", now + 60_000) for n in range(2)], now_ms=now)
    assert (await slots.prune(now)).slots == 2
    await slots.configure("t-*", year, now_ms=now)
    closed = {"zone": "UTC", "blackouts": [{"from": from_ms(now).isoformat(), "to": from_ms(now + 1000).isoformat()}]}
    for name in ("t-1", "t-*"):
        assert await warned(scheduler, name, max_per_window=2) == {}
        assert await warned(scheduler, name, max_per_window=1) == {WarningCode.OVER_LIMIT: 1}
        assert await warned(scheduler, name, calendar=closed) == {WarningCode.CLOSED: 2}


CHANGES: list[tuple[dict[str, Any], dict[WarningCode, int]]] = [
    ({"max_per_window": 1}, {WarningCode.OVER_LIMIT: 9}),
    ({"max_per_window": 3}, {}),
    ({"max_delay": "PT1H"}, {}),
    ({"max_delay": "PT7S"}, {WarningCode.PAST_HORIZON: 6}),
    ({"calendar": blackout(4, 12)}, {WarningCode.CLOSED: 12}),
    ({"window": "PT8S"}, {WarningCode.OVER_LIMIT: 6}),
    ({"window": "PT6S", "max_per_window": 5, "calendar": blackout(6, 12)}, {WarningCode.CLOSED: 9}),
    ({"max_delay": "PT7S", "max_per_window": 1}, {WarningCode.PAST_HORIZON: 6, WarningCode.OVER_LIMIT: 9}),
]


async def test_a_template_warns_of_what_its_configs_would_suffer(slots: SlotStore) -> None:
    scheduler = SlotScheduler(slots)
    await scheduler.configure("bank", WindowPolicy(100, "PT4S"))
    await scheduler.configure("t-*", WindowPolicy(2, "PT4S"))
    await scheduler.configure("other-*", WindowPolicy(2, "PT4S"))
    await scheduler.configure("t-own", WindowPolicy(2, "PT4S"))
    followers = [("t-1",), ("bank", "t-2"), ("t-3", "bank")]
    for names in [*followers, ("t-own",), ("other-1",), ("bank", "other-2")]:
        await booked(scheduler, 6, *names)
    await scheduler.cancel("t-1/0")
    await booked(scheduler, 1, "t-1")
    for changes, _ in CHANGES:
        warnings = await warned(scheduler, "t-*", **changes)
        each = [await warned(scheduler, f"t-{n}", **changes) for n in (1, 2, 3)]
        assert warnings == sum(each, Counter()), changes
    assert await warned(scheduler, "new-*", max_per_window=1, window="PT4S") == {}
    assert (await scheduler.policy("t-1")).version == 1, "a preview changes nothing"


@pytest.mark.parametrize(("changes", "expected"), CHANGES, ids="+".join)
async def test_a_template_counts_the_slots_of_all_its_configs(
    slots: SlotStore, changes: dict[str, Any], expected: dict[WarningCode, int]
) -> None:
    scheduler = SlotScheduler(slots)
    await scheduler.configure("t-*", WindowPolicy(2, "PT4S", spread="even"))
    for name in ("t-1", "t-2", "t-3"):
        await booked(scheduler, 6, name)
    assert await warned(scheduler, "t-*", **changes) == expected


async def test_a_config_that_is_behind_its_template_is_previewed_from_its_own_policy(
    slots: SlotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = SlotScheduler(slots)
    await scheduler.configure("t-*", WindowPolicy(2, "PT4S"))
    await booked(scheduler, 6, "t-1")
    with monkeypatch.context() as patch:
        patch.setattr("paceline.slots.stores.sql._follow", lambda *_: None)  # as if it was interrupted
        await scheduler.configure("t-*", WindowPolicy(1, "PT4S"))
    await booked(scheduler, 6, "t-2")
    assert (await scheduler.policy("t-1")).version == 1
    assert await warned(scheduler, "t-*", max_per_window=1) == {WarningCode.OVER_LIMIT: 3}
