"""Reconciling, freeing and pruning slots over the memory store: what is touched, and what is left alone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from paceline import WindowPolicy
from paceline.errors import ConfigurationError, InvalidInput, SlotInUse
from paceline.slots.model import AssignedSlot
from paceline.slots.scheduler import SlotScheduler
from paceline.testing import FakeClock
from tests.models.slot_store import MemorySlotStore

START = datetime(2027, 1, 1, tzinfo=UTC)
LATER = START + timedelta(minutes=1)


class Store(MemorySlotStore):
    """Refuses to cancel the slots whose work has begun."""

    begun: frozenset[str] = frozenset()

    async def cancel(self, event_id: str, *args: Any, **options: Any) -> AssignedSlot | None:
        if event_id in self.begun:
            raise SlotInUse(event_id, "it has begun")
        return await super().cancel(event_id, *args, **options)


@pytest.fixture
async def store() -> Store:
    return Store(FakeClock(START), seed=1)


@pytest.fixture
async def slots(store: Store) -> SlotScheduler:
    slots = SlotScheduler(store)
    await slots.configure("bank", WindowPolicy(5, "PT1S"))
    await slots.assign_many([("a", START), ("b", START), ("c", START)], "bank")
    await slots.assign_many([("owned", START)], "bank", owner="payments")
    return slots


async def only_a(page: Sequence[AssignedSlot]) -> set[str]:
    return {slot.event_id for slot in page} & {"a"}


async def left(store: Store) -> set[str]:
    return {event for event in ("a", "b", "c", "owned") if await store.find(event) is not None}


async def test_slots_without_work_are_cancelled_and_those_of_others_stay(slots: SlotScheduler, store: Store) -> None:
    store.begun = frozenset("c")
    leaked = await slots.reconcile(only_a, before=LATER)
    assert {slot.event_id for slot in leaked} == {"b"}
    assert await left(store) == {"a", "c", "owned"}
    assert await slots.reconcile(only_a, before=LATER, owner="payments", page=1) != []
    assert await left(store) == {"a", "c"}


async def test_slots_without_work_are_dispatched_again_where_somebody_can(slots: SlotScheduler, store: Store) -> None:
    again: list[str] = []

    async def redispatch(slot: AssignedSlot) -> None:
        again.append(slot.event_id)

    leaked = await slots.reconcile(only_a, before=LATER, redispatch=redispatch)
    assert sorted(again) == sorted(slot.event_id for slot in leaked) == ["b", "c"]
    assert await left(store) == {"a", "b", "c", "owned"}


async def test_a_slot_cancelled_meanwhile_is_reported_and_breaks_nothing(slots: SlotScheduler, store: Store) -> None:
    async def started(page: Sequence[AssignedSlot]) -> set[str]:
        await slots.cancel("b")
        return {"a", "c"}

    leaked = await slots.reconcile(started, before=LATER)
    assert [slot.event_id for slot in leaked] == ["b"]


async def test_an_operator_frees_the_slots_of_every_owner(slots: SlotScheduler, store: Store) -> None:
    store.begun = frozenset("c")
    freed = await slots.free_unstarted(only_a, before=LATER, reason="crashed", actor="ops")
    assert {slot.event_id for slot in freed} == {"b", "owned"}
    assert await left(store) == {"a", "c"}
    page, _ = await slots.page()
    cancelled = {listed.slot.event_id: (listed.reason, listed.actor) for listed in page if listed.serial}
    assert cancelled == {"b": ("crashed", "ops"), "owned": ("crashed", "ops")}


async def test_a_replan_needs_a_store_for_it(slots: SlotScheduler) -> None:
    with pytest.raises(ConfigurationError, match=r"SlotScheduler\.open"):
        await slots.replan("bank")


async def test_nothing_is_pruned_that_is_still_to_come(slots: SlotScheduler) -> None:
    with pytest.raises(InvalidInput, match="future") as caught:
        await slots.prune(datetime.now(UTC) + timedelta(hours=1))
    assert caught.value.field == "before"
    assert await slots.count() == 4
