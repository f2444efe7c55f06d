"""Re-plans on every store, against a naive model that walks windows one by one and knows nothing of chunks or runs."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.durations import LATEST_MS
from paceline.errors import Conflict, NotFound
from paceline.slots.carriers import SlotMove, Standing
from paceline.slots.model import AssignedSlot, SlotRequest, WindowPolicy
from paceline.slots.ports import SlotStore
from paceline.slots.replan.assignment import Direction
from paceline.slots.replan.run import Replan, Sizes, Span, SupposedLimit, preview, replan
from paceline.slots.stores import slot_stores
from paceline.slots.stores.replanning import TOPIC, SqlReplanStore, record_of
from paceline.slots.windows import align
from paceline.sql.outbox import records_of
from paceline.sql.outbox_looks import first_ids
from tests.contracts.conftest import slot_store_url
from tests.contracts.replanned import NOW, Stores, T, booked, check, configure_all
from tests.contracts.slot_windows import check_windows, naive_limit
from tests.contracts.test_slot_store import wants
from tests.effort import examples


async def test_a_raise_pulls_the_backlog_forward_in_order(stores: Stores) -> None:
    store, replans = stores
    await store.configure("c", WindowPolicy(2, "PT4S"), now_ms=NOW)
    await store.book("c", wants(20, T), now_ms=NOW)
    await store.configure("c", WindowPolicy(5, "PT4S"), now_ms=NOW)
    before = await booked(store)
    tried = await replan(replans, Span("c"), Direction.EARLIER, dry_run=True)
    assert await booked(store) == before, "a dry run changes nothing"
    done = await replan(replans, Span("c"), Direction.EARLIER, dry_run=False)
    slots = await check(store, before, Direction.EARLIER)
    assert Counter(align(slot.scheduled_ms, 4000) for slot in slots) == {T + n * 4000: 5 for n in range(4)}
    for result in (tried, done):
        assert result.examined == 20
        assert result.last_before_ms == before[-1].scheduled_ms
        assert result.saved_ms > 0
    assert done.last_after_ms == slots[-1].scheduled_ms < before[-1].scheduled_ms
    assert len(tried.moves) == tried.moved
    assert replace(tried, dry_run=False, moves=()) == done, "it does what the dry run said"
    assert {move.slot.event_id: move.scheduled_ms for move in tried.moves}.items() <= {
        (slot.event_id, slot.scheduled_ms) for slot in slots
    }
    again = await replan(replans, Span("c"), Direction.EARLIER, dry_run=False)
    assert (again.moved, again.saved_ms, again.examined) == (0, 0, 20)


async def test_a_lowered_limit_is_spread_only_when_asked_for_by_name(stores: Stores) -> None:
    store, replans = stores
    await store.configure("c", WindowPolicy(10, "PT4S"), now_ms=NOW)
    await store.book("c", wants(25, T), now_ms=NOW)
    await store.configure("c", WindowPolicy(4, "PT4S"), now_ms=NOW)
    before = await booked(store)
    assert (await replan(replans, Span("c"), Direction.EARLIER, dry_run=False)).moved == 0
    tried = await replan(replans, Span("c"), Direction.SPREAD, dry_run=True)
    assert await booked(store) == before
    done = await replan(replans, Span("c"), Direction.SPREAD, dry_run=False)
    slots = await check(store, before, Direction.SPREAD)
    held = Counter(align(slot.scheduled_ms, 4000) for slot in slots)
    assert held == {T + n * 4000: 4 for n in range(6)} | {T + 24_000: 1}
    assert replace(tried, dry_run=False, moves=()) == done, "it does what the dry run said"
    assert done.saved_ms < 0
    assert (await replan(replans, Span("c"), Direction.SPREAD, dry_run=False)).moved == 0


@pytest.mark.parametrize(("now", "then", "way"), [(2, 5, Direction.EARLIER), (10, 4, Direction.SPREAD)])
async def test_another_limit_is_tried_before_it_is_made(stores: Stores, now: int, then: int, way: Direction) -> None:
    store, replans = stores
    await store.configure("c", WindowPolicy(now, "PT4S"), now_ms=NOW)
    await store.book("c", wants(25, T), now_ms=NOW)
    before = await booked(store)
    tried = await preview(SupposedLimit(replans, then), Span("c"), way)
    assert tried.moved > 0
    assert await booked(store) == before
    assert (await replan(replans, Span("c"), way, dry_run=True)).moved == 0
    await store.configure("c", WindowPolicy(then, "PT4S"), now_ms=NOW)
    done = await replan(replans, Span("c"), way, dry_run=False)
    assert replace(tried, dry_run=False, moves=()) == done, "it does what was tried"


async def test_a_template_stands_for_the_configs_that_follow_it(stores: Stores) -> None:
    store, replans = stores
    await store.configure("m-*", WindowPolicy(1, "PT4S"), now_ms=NOW)
    for name in ("m-1", "m-2", "m-own"):
        await store.make_from_template(name, 10)
        await store.book(name, wants(4, T, prefix=name), now_ms=NOW)
    await store.configure("m-own", WindowPolicy(1, "PT4S"), now_ms=NOW)
    await store.configure("m-*", WindowPolicy(2, "PT4S"), now_ms=NOW)
    before = {name: await booked(store, name) for name in ("m-1", "m-2")}
    tried = await replan(replans, Span("m-*"), Direction.EARLIER, dry_run=True)
    done = await replan(replans, Span("m-*"), Direction.EARLIER, dry_run=False)
    assert (done.config_name, done.examined, done.moved) == ("m-*", 8, len(tried.moves))
    assert replace(tried, dry_run=False, moves=()) == done, "it does what the dry run said"
    for name, slots in before.items():
        after = await check(store, slots, Direction.EARLIER, name)
        assert Counter(align(slot.scheduled_ms, 4000) for slot in after) == {T: 2, T + 4000: 2}
    with pytest.raises(NotFound):
        await replan(replans, Span("n-*"), Direction.EARLIER, dry_run=False)


async def test_nothing_moves_inside_the_notice_or_out_of_the_span(stores: Stores) -> None:
    store, replans = stores
    await store.configure("c", WindowPolicy(1, "PT4S"), now_ms=NOW)
    await store.book("c", wants(10, T), now_ms=NOW)
    await store.cancel("e0")
    before = await booked(store)
    span = Span("c", from_ms=T + 8000, to_ms=T + 20_000)
    assert (await replan(replans, span, Direction.EARLIER, dry_run=False)).moved == 0, "no room inside the span"
    await store.configure("c", WindowPolicy(2, "PT4S"), now_ms=NOW)
    done = await replan(replans, span, Direction.EARLIER, dry_run=False)
    slots = await check(store, before, Direction.EARLIER)
    assert done.moved
    for old, new in zip(before, slots, strict=True):
        if not T + 8000 <= old.scheduled_ms < T + 20_000:
            assert new == old
        else:
            assert new.scheduled_ms >= T + 8000
    _, clock = await replans.survey(span)
    far = Span("c", notice_ms=T + 100_000 - clock)
    assert (await replan(replans, far, Direction.EARLIER, dry_run=False)).examined == 0


async def test_a_window_that_holds_more_than_a_chunk_is_filled_in_order(stores: Stores) -> None:
    store, replans = stores
    replans.sizes = Sizes(max_slots=7)
    await store.configure("c", WindowPolicy(10, "PT40S", spread="even"), now_ms=NOW)
    await store.book("c", wants(60, T), now_ms=NOW)
    await store.configure("c", WindowPolicy(40, "PT40S", spread="even"), now_ms=NOW)
    before = await booked(store)
    await replan(replans, Span("c"), Direction.EARLIER, dry_run=False)
    slots = await check(store, before, Direction.EARLIER)
    assert sorted(Counter(align(slot.scheduled_ms, 40_000) for slot in slots).values()) == [20, 40]


async def cancel(store: SlotStore, event_id: str) -> None:
    """Cancels a slot as the scheduler does: again, if it was moved meanwhile."""
    while True:
        try:
            await store.cancel(event_id)
        except Conflict:
            continue
        return


async def test_slots_under_several_configs_move_to_where_all_have_room(stores: Stores) -> None:
    store, replans = stores
    await configure_all(
        store, {"c": WindowPolicy(1, "PT4S"), "a": WindowPolicy(1, "PT10S"), "z": WindowPolicy(9, "PT1S")}
    )
    await store.book(("c", "a", "z"), wants(6, T), now_ms=NOW)
    await store.book("a", [SlotRequest("lone", T)], now_ms=NOW)
    await store.configure("c", WindowPolicy(5, "PT4S"), now_ms=NOW)
    before = await booked(store)
    held_back = await replan(replans, Span("c"), Direction.EARLIER, dry_run=False)
    assert held_back.moved == 0, "one config was raised, the other still has no room"
    assert await booked(store) == before
    await store.configure("a", WindowPolicy(4, "PT10S"), now_ms=NOW)
    tried = await replan(replans, Span("a"), Direction.EARLIER, dry_run=True)
    assert await booked(store) == before, "a dry run changes nothing"
    done = await replan(replans, Span("a"), Direction.EARLIER, dry_run=False)
    slots = await check(store, before, Direction.EARLIER)
    assert replace(tried, dry_run=False, moves=()) == done, "it does what the dry run said"
    assert done.examined == 7
    assert done.moved >= 5
    assert Counter(align(slot.scheduled_ms, 10_000) for slot in slots) == {T: 4, T + 10_000: 2}
    for slot in slots:
        assert slot.config_names == ("c", "a", "z")
        sizes = {"c": 4000, "a": 10_000, "z": 1000}
        assert [window.window_start_ms for window in slot.windows] == [
            align(slot.scheduled_ms, sizes[name]) for name in slot.config_names
        ]
    moved = [new for old, new in zip(before, slots, strict=True) if new.window_start_ms != old.window_start_ms]
    assert {slot.config_version for slot in moved} == {2}
    for name in ("a", "z"):
        await check_windows(store, name, NOW)
    assert (await replan(replans, Span("a"), Direction.EARLIER, dry_run=False)).moved == 0
    for slot in slots:
        await store.cancel(slot.event_id)
    for name in ("c", "z"):
        assert await check_windows(store, name, NOW) == {}


async def test_a_slot_that_another_config_holds_back_is_not_overtaken(stores: Stores) -> None:
    store, replans = stores
    await configure_all(store, {"c": WindowPolicy(1, "PT4S"), "d": WindowPolicy(1, "PT40S")})
    await store.book("c", wants(2, T), now_ms=NOW)
    await store.book(("c", "d"), [SlotRequest("j1", T), SlotRequest("j2", T)], now_ms=NOW)
    await store.book("c", [SlotRequest(f"late{n}", T + 40_000) for n in range(3)], now_ms=NOW)
    before = await booked(store)
    assert [slot.event_id for slot in before] == ["e0", "e1", "j1", "j2", "late0", "late1", "late2"]
    await store.configure("c", WindowPolicy(5, "PT4S"), now_ms=NOW)
    await replan(replans, Span("c"), Direction.EARLIER, dry_run=False)
    slots = await check(store, before, Direction.EARLIER)
    at = {slot.event_id: slot.scheduled_ms for slot in slots}
    assert [align(at[name], 4000) for name in ("e0", "e1", "j1")] == [T] * 3
    assert align(at["j2"], 40_000) == T + 40_000, "its other config has one place in forty seconds"
    assert at["late0"] >= at["j2"]


async def test_the_place_that_one_leaves_is_taken_by_the_next(stores: Stores) -> None:
    store, replans = stores
    await configure_all(store, {"c": WindowPolicy(5, "PT4S"), "d": WindowPolicy(1, "PT4S")})
    await store.book("d", wants(3, T), now_ms=NOW)
    await store.book(("c", "d"), [SlotRequest(f"j{n}", T) for n in range(4)], now_ms=NOW)
    await store.cancel("e1")
    before = await booked(store)
    tried = await replan(replans, Span("c"), Direction.EARLIER, dry_run=True)
    assert [align(move.scheduled_ms, 4000) for move in tried.moves] == [T + 4000 * n for n in (1, 3, 4, 5)]
    await replan(replans, Span("c"), Direction.EARLIER, dry_run=False)
    slots = await check(store, before, Direction.EARLIER)
    assert [slot.window_start_ms for slot in slots] == [T + 4000 * n for n in (1, 3, 4, 5)]
    assert (await check_windows(store, "d", NOW)).keys() == {T + 4000 * n for n in range(6)}


async def test_slots_under_several_configs_are_spread_to_where_all_have_room(stores: Stores) -> None:
    store, replans = stores
    await configure_all(store, {"c": WindowPolicy(6, "PT4S"), "d": WindowPolicy(3, "PT2S", spread="even")})
    await store.book(("d", "c"), wants(12, T), now_ms=NOW)
    await store.configure("c", WindowPolicy(2, "PT4S"), now_ms=NOW)
    await store.book("d", [SlotRequest(f"d{n}", T + 8000) for n in range(6)], now_ms=NOW)
    before = await booked(store)
    tried = await replan(replans, Span("c"), Direction.SPREAD, dry_run=True)
    assert await booked(store) == before, "a dry run changes nothing"
    done = await replan(replans, Span("c"), Direction.SPREAD, dry_run=False)
    slots = await check(store, before, Direction.SPREAD)
    assert done.moved == tried.moved
    held = Counter(align(slot.scheduled_ms, 4000) for slot in slots)
    # From T + 8 s on, four seconds of the other config are full.
    assert held == {T + 4000 * n: 2 for n in (0, 1, 3, 4, 5, 6)}
    assert max((await check_windows(store, "d", NOW)).values()) <= 3


@pytest.mark.parametrize("names", ["c", ("c", "a")])
async def test_a_spread_that_the_horizon_holds_back_keeps_the_order_and_does_what_its_dry_run_said(
    stores: Stores, names: str | tuple[str, str]
) -> None:
    store, replans = stores
    even = WindowPolicy(10, "PT4S", spread="even", max_delay="PT1M")
    await configure_all(store, {"c": even, "a": WindowPolicy(1000, "PT4S")})
    await store.book(names, wants(120, T), now_ms=NOW)
    await store.configure("c", replace(even, max_per_window=5), now_ms=NOW)
    before = await booked(store)
    tried = await replan(replans, Span("c"), Direction.SPREAD, dry_run=True)
    done = await replan(replans, Span("c"), Direction.SPREAD, dry_run=False)
    slots = await check(store, before, Direction.SPREAD)
    assert replace(tried, dry_run=False, moves=()) == done
    assert Counter(slot.window_start_ms for slot in slots) == {T + 4000 * n: 10 if n < 9 else 5 for n in range(15)}, (
        "until the horizon nothing is free"
    )
    assert len({slot.scheduled_ms for slot in slots}) == 120, "no two at once"
    assert (await replan(replans, Span("c"), Direction.SPREAD, dry_run=False)).moved == 0


async def test_a_spread_overtakes_no_slot_behind_its_span(stores: Stores) -> None:
    store, replans = stores
    await store.configure("c", WindowPolicy(2, "PT4S"), now_ms=NOW)
    requests = [SlotRequest(f"e{n}", at) for n, at in enumerate((T, T, T + 4000, T + 8000))]
    await store.book("c", requests, now_ms=NOW)
    await store.configure("c", WindowPolicy(1, "PT4S"), now_ms=NOW)
    before = await booked(store)
    assert (await replan(replans, Span("c", to_ms=T + 4000), Direction.SPREAD, dry_run=False)).moved == 0
    assert (await replan(replans, Span("c", to_ms=T + 8000), Direction.SPREAD, dry_run=False)).moved == 0
    assert (await replan(replans, Span("c"), Direction.SPREAD, dry_run=False)).moved == 3
    slots = await check(store, before, Direction.SPREAD)
    assert [slot.window_start_ms for slot in slots] == [T, T + 4000, T + 8000, T + 12_000]


async def test_one_transaction_locks_few_configs(stores: Stores) -> None:
    store, replans = stores
    replans.sizes = Sizes(max_others=2)
    names = [f"merchant-{n}" for n in range(7)]
    await configure_all(store, {"c": WindowPolicy(1, "PT4S")} | dict.fromkeys(names, WindowPolicy(1, "PT20S")))
    for n in range(14):
        await store.book(("c", names[n % 7]), [SlotRequest(f"e{n:02}", T)], now_ms=NOW)
    await store.configure("c", WindowPolicy(20, "PT4S"), now_ms=NOW)
    before = await booked(store)
    await replan(replans, Span("c"), Direction.EARLIER, dry_run=False)
    slots = await check(store, before, Direction.EARLIER)
    assert Counter(align(slot.scheduled_ms, 20_000) for slot in slots) == {T: 7, T + 20_000: 7}
    await store.configure("c", WindowPolicy(2, "PT4S"), now_ms=NOW)
    await replan(replans, Span("c"), Direction.SPREAD, dry_run=False)
    await check(store, slots, Direction.SPREAD)
    assert max((await check_windows(store, "c", NOW)).values()) <= 2
    for name in names:
        await check_windows(store, name, NOW)


@pytest.mark.parametrize("owner", [None, "shop"])
async def test_subscribers_hear_of_a_move_the_same_from_every_store(stores: Stores, owner: str | None) -> None:
    store, replans = stores
    name, event = 'c"\\ü', 'e"\\ü' + "x" * 130
    await store.configure(name, WindowPolicy(1, "PT4S"), now_ms=NOW)
    await store.book(name, [SlotRequest("first", T), SlotRequest(event, T)], now_ms=NOW, owner=owner)
    await store.configure(name, WindowPolicy(2, "PT4S"), now_ms=NOW)
    if owner is not None:
        replans = SqlReplanStore(store._database, {owner: Carried()})  # type: ignore[attr-defined]
    (_, before), _ = await booked(store, name), await replan(replans, Span(name), Direction.EARLIER, dry_run=False)
    _, after = await booked(store, name)
    database = store._database  # type: ignore[attr-defined]
    *_, (record, *_) = await database.read(records_of, TOPIC, await database.read(first_ids, TOPIC, 10))
    assert record.key == event[:128]
    assert json.loads(record.value) == json.loads(record_of(SlotMove(before, T, after.scheduled_ms)))


class Carried:
    """A carrier whose work always waits."""

    def standings(self, within: Any, slots: Sequence[AssignedSlot], *, lock: bool) -> dict[str, Standing]:
        return dict.fromkeys([slot.event_id for slot in slots], Standing.WAITING)

    def known(self, within: Any, slots: Sequence[AssignedSlot]) -> set[str]:
        return {slot.event_id for slot in slots}

    def move(self, within: Any, moves: Sequence[SlotMove], now: datetime) -> None:
        pass

    def cancel(self, within: Any, slot: AssignedSlot) -> None:
        pass


async def test_records_of_moves_that_nobody_reads_are_pruned(stores: Stores) -> None:
    store, replans = stores
    await store.configure("c", WindowPolicy(1, "PT4S"), now_ms=NOW)
    await store.book("c", wants(4, T), now_ms=NOW)
    await store.configure("c", WindowPolicy(4, "PT4S"), now_ms=NOW)
    assert (await replan(replans, Span("c"), Direction.EARLIER, dry_run=False)).moved >= 3
    database = store._database  # type: ignore[attr-defined]
    assert len(await database.read(first_ids, TOPIC, 10)) >= 3
    _, clock = await replans.survey(Span("c"))
    await store.prune(clock - 3_600_000)
    assert len(await database.read(first_ids, TOPIC, 10)) >= 3, "they are not old yet"
    await store.prune(clock + 60_000)
    assert await database.read(first_ids, TOPIC, 10) == []
    assert len(await booked(store)) == 4


async def test_even_slots_stay_even(stores: Stores) -> None:
    store, replans = stores
    await store.configure("c", WindowPolicy(20, "PT4S", spread="even"), now_ms=NOW)
    await store.book("c", wants(200, T), now_ms=NOW)
    await store.configure("c", WindowPolicy(40, "PT4S", spread="even"), now_ms=NOW)
    before = await booked(store)
    await replan(replans, Span("c"), Direction.EARLIER, dry_run=False)
    slots = await check(store, before, Direction.EARLIER)
    seconds = Counter(slot.scheduled_ms // 1000 for slot in slots)
    assert max(seconds.values()) <= 13, "ten a second, nearly equal"


async def test_bookings_go_on_while_slots_move(stores: Stores) -> None:
    store, replans = stores
    replans.sizes = Sizes(max_slots=10)
    await store.configure("c", WindowPolicy(1, "PT4S"), now_ms=NOW)
    await store.book("c", wants(60, T), now_ms=NOW)
    await store.configure("c", WindowPolicy(3, "PT4S"), now_ms=NOW)
    before = {slot.event_id: slot for slot in await booked(store)}

    async def others() -> None:
        for n in range(30):
            await store.book("c", [SlotRequest(f"n{n}", T)], now_ms=NOW)
            if n % 5 == 0:
                await cancel(store, f"e{n}")

    async def plan() -> Replan:
        return await replan(replans, Span("c"), Direction.EARLIER, dry_run=False)

    await asyncio.gather(others(), plan(), plan())
    last = await plan()
    slots = await booked(store)
    assert len(slots) == 60 + 30 - 6
    for slot in slots:
        if slot.event_id in before:
            assert slot.scheduled_ms <= before[slot.event_id].scheduled_ms
    held = await check_windows(store, "c", NOW)
    assert max(held.values()) <= 3
    assert sorted(held) == [T + n * 4000 for n in range(28)], "no hole is left"
    assert last.examined == 84


async def test_both_configs_of_slots_are_replanned_at_once(stores: Stores) -> None:
    store, replans = stores
    replans.sizes = Sizes(max_slots=6)
    await configure_all(store, {"c": WindowPolicy(1, "PT4S"), "a": WindowPolicy(2, "PT6S")})
    await store.book(("c", "a"), wants(30, T), now_ms=NOW)
    await configure_all(store, {"c": WindowPolicy(3, "PT4S"), "a": WindowPolicy(5, "PT6S")})
    before = {slot.event_id: slot for slot in await booked(store)}

    async def others() -> None:
        for n in range(10):
            await store.book(("a", "c"), [SlotRequest(f"n{n}", T)], now_ms=NOW)
            if n % 3 == 0:
                await cancel(store, f"e{n}")

    replanned = [replan(replans, Span(name), Direction.EARLIER, dry_run=False) for name in ("c", "a", "c", "a")]
    await asyncio.gather(others(), *replanned)
    for name in ("c", "a"):
        await replan(replans, Span(name), Direction.EARLIER, dry_run=False)
    slots = await booked(store)
    assert len(slots) == 30 + 10 - 4
    for slot in slots:
        if slot.event_id in before:
            assert slot.scheduled_ms <= before[slot.event_id].scheduled_ms, "never later"
    assert max((await check_windows(store, "c", NOW)).values()) <= 3
    assert max((await check_windows(store, "a", NOW)).values()) <= 5


HOURS = {"zone": "UTC", "blackouts": [{"from": "2033-05-18T03:33:40Z", "to": "2033-05-18T03:34:00Z"}]}
"""Closed from 20 to 40 s after T."""
CURVE = [{"from": "03:33:25", "to": "03:33:31", "max": 1}, {"from": "03:33:33", "to": "03:33:38", "max": 7}]
"""Limits of their own soon after T, which is 03:33:20."""
policies = st.builds(
    WindowPolicy,
    st.integers(1, 6),
    st.sampled_from(["PT1S", "PT2S", "PT4S"]),
    spread=st.sampled_from(["jitter", "even"]),
    calendar=st.sampled_from([None, None, HOURS]),
    first_window=st.sampled_from(["proportional", "whole"]),
    curve=st.sampled_from([None, CURVE]),
)
requested = st.lists(st.integers(T, T + 20_000), min_size=1, max_size=60)
SIZES = [(3, 1000), (10, 1000), (10, 2), (500, 1000), (500, 2)]
"""Slots of a transaction at most, and at least."""


def naive_windows(policy: WindowPolicy, slots: list[AssignedSlot]) -> list[int]:
    """The window of each slot after a pull forward, by counting all slots anew for each window that is looked at."""
    size, windows = policy.size_ms, [align(slot.scheduled_ms, policy.size_ms) for slot in slots]
    for index, slot in enumerate(slots):
        first = slot.requested_ms - slot.requested_ms % size
        for start in range(max([first, *windows[:index]]), windows[index], size):
            rest = size if policy.first_window == "whole" or start > first else first + size - slot.requested_ms
            is_closed = policy.calendar is not None and T + 20_000 - size < start < T + 40_000
            if not is_closed and windows.count(start) < naive_limit(policy, start, CURVE) * rest // size:
                windows[index] = start
                break
    return windows


@pytest.mark.parametrize(("kind", "count"), [("memory", 60), ("sqlite", 15), ("postgresql", 15)])
def test_every_store_moves_as_the_naive_model_does(kind: str, count: int, request: pytest.FixtureRequest) -> None:
    loop = asyncio.new_event_loop()
    store, replans = loop.run_until_complete(slot_stores(slot_store_url(kind, request)))
    serial = 0

    @settings(max_examples=examples(count), deadline=None, suppress_health_check=list(HealthCheck))
    @given(policies, policies, requested, st.sets(st.integers(0, 59)), st.sampled_from(SIZES))
    def moves_as_the_model(
        first: WindowPolicy, second: WindowPolicy, times: list[int], cancelled: set[int], sizes: tuple[int, int]
    ) -> None:
        nonlocal serial
        serial += 1
        name = f"c{serial}"
        replans.sizes = Sizes(max_slots=sizes[0], min_slots=sizes[1])

        async def case() -> None:
            await store.configure(name, first, now_ms=NOW)
            events = [SlotRequest(f"{name}-{n}", at) for n, at in enumerate(times)]
            await store.book(name, events, now_ms=NOW)
            for n in cancelled & set(range(len(times))):
                await store.cancel(f"{name}-{n}")
            await store.configure(name, second, now_ms=NOW)
            before = await booked(store, name)
            expected = naive_windows(second, before)
            tried = await replan(replans, Span(name), Direction.EARLIER, dry_run=True)
            done = await replan(replans, Span(name), Direction.EARLIER, dry_run=False)
            slots = {slot.event_id: slot for slot in await check(store, before, Direction.EARLIER, name)}
            assert [align(slots[slot.event_id].scheduled_ms, second.size_ms) for slot in before] == expected
            assert (tried.examined, done.examined) == (len(before), len(before))
            await replan(replans, Span(name), Direction.SPREAD, dry_run=False)
            middle = sorted(slots.values(), key=lambda slot: (slot.scheduled_ms, slot.event_id))
            for slot in await check(store, middle, Direction.SPREAD, name):
                if align(slot.scheduled_ms, second.size_ms) != align(slots[slot.event_id].scheduled_ms, second.size_ms):
                    assert second.next_open(slot.window_start_ms) == slot.window_start_ms
            held = await check_windows(store, name, NOW)
            assert all(count <= naive_limit(second, start, CURVE) for start, count in held.items())

        loop.run_until_complete(case())

    try:
        moves_as_the_model()
    finally:
        loop.run_until_complete(store.prune(LATEST_MS - 1))
        loop.run_until_complete(store.close())
        loop.close()
