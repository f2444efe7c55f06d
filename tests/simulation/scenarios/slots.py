"""Schedulers in several processes on one store: no window over its limit, and what was answered stays so."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, cast

from paceline.durations import LATEST_MS, from_ms
from paceline.errors import NotFound, SlotsExhausted, StoreUnavailable
from paceline.slots.booking.packing import Booking
from paceline.slots.model import AssignedSlot, BookingGroup, PolicyVersion, SlotRequest, WindowPolicy
from paceline.slots.ports import SlotStore
from paceline.slots.replan.assignment import Direction
from paceline.slots.replan.run import ReplanStore
from paceline.slots.scheduler import SlotScheduler
from paceline.slots.stores.replanning import SqlReplanStore
from paceline.slots.stores.sql import SqlSlotStore
from paceline.slots.windows import align
from tests.models.slot_store import MemorySlotStore
from tests.simulation.loop import Process
from tests.simulation.network import Remote, SimulatedDatabase, finished
from tests.simulation.sqlite import fresh_engine
from tests.simulation.world import Violation, World

CONFIGS = ("bank", "merchant")
SECONDS = 10.0


class WatchedSlots:
    """The store, with a look at each change right after it was made."""

    def __init__(self, world: World, store: SlotStore) -> None:
        self._world = world
        self.store = store
        self.slots: dict[str, AssignedSlot] = {}
        self.active: dict[str, PolicyVersion] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def configure(self, name: str, policy: WindowPolicy, **options: Any) -> PolicyVersion:
        self.active[name] = await self.store.configure(name, policy, **options)
        return self.active[name]

    async def book_groups(self, groups: Sequence[BookingGroup], **options: Any) -> list[list[Booking]]:
        now_ms = self._world.now_us() // 1000
        outcomes = await self.store.book_groups(groups, **options)
        booked = [
            booking
            for group, bookings in zip(groups, outcomes, strict=True)
            for request, booking in zip(group.requests, bookings, strict=True)
            if self._is_new(request, booking, now_ms)
        ]
        self.check_fresh({booking.event_id for booking in booked if isinstance(booking, AssignedSlot)})
        return outcomes

    def _is_new(self, request: SlotRequest, booking: Booking, now_ms: int) -> bool:
        if not isinstance(booking, AssignedSlot):
            return False
        known = self.slots.get(booking.event_id)
        if booking.existing:
            if known is None or known.scheduled_ms != booking.scheduled_ms:
                raise Violation(f"{booking} is said to exist, and {known} does")
            return False
        if known is not None:
            raise Violation(f"{booking} was booked again, over {known}")
        if booking.scheduled_ms < max(request.requested_ms, now_ms):
            raise Violation(f"{booking} is before its time")
        self.slots[booking.event_id] = booking
        return True

    async def cancel(self, event_id: str, **options: Any) -> AssignedSlot | None:
        slot = await self.store.cancel(event_id, **options)
        if (slot is None) is (event_id in self.slots):
            raise Violation(f"the cancellation of {event_id!r} gave {slot}")
        self.slots.pop(event_id, None)
        return slot

    def check_fresh(self, event_ids: set[str], before: Mapping[str, AssignedSlot] | None = None) -> None:
        """No window that one of these has come into is over the limit of the policy in force; `before` says where they
        were."""
        for name, version in self.active.items():
            size = version.policy.size_ms
            counts = Counter(align(s.scheduled_ms, size) for s in self.slots.values() if name in s.config_names)
            for event_id in event_ids:
                slot = self.slots[event_id]
                if name in slot.config_names:
                    start = align(slot.scheduled_ms, size)
                    if before is not None and align(before[event_id].scheduled_ms, size) == start:
                        continue  # it stays in a window that may be over a limit that was lowered since
                    if counts[start] > version.policy.limit_at(start):
                        raise Violation(f"{counts[start]} in the window {start} of {name}, {version.policy}")

    def read_moves(self, direction: Direction) -> None:
        """What a re-plan moved, read from the store."""
        slots = finished(self.store.booked(LATEST_MS - 1, None, 100_000))
        if {slot.event_id for slot in slots} != set(self.slots):
            raise Violation("a re-plan lost or made slots")
        moved = [slot for slot in slots if slot.scheduled_ms != self.slots[slot.event_id].scheduled_ms]
        self.check_moved(moved, slots, direction)

    def check_moved(self, moved: Sequence[AssignedSlot], slots: Sequence[AssignedSlot], direction: Direction) -> None:
        for slot in moved:
            before = self.slots[slot.event_id]
            later = slot.scheduled_ms > before.scheduled_ms
            if later is (direction is Direction.EARLIER) or slot.scheduled_ms < slot.requested_ms:
                raise Violation(f"{before} was moved to {slot}")
        known, self.slots = self.slots, {slot.event_id: slot for slot in slots}
        self.check_fresh({slot.event_id for slot in moved}, known)


class WatchedReplans:
    """The re-planner, with a look at each chunk right after it was moved."""

    def __init__(self, store: ReplanStore, slots: WatchedSlots) -> None:
        self._store = store
        self._slots = slots
        self.sizes = store.sizes

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        async def call(*args: Any, **options: Any) -> Any:
            result = await method(*args, **options)
            self._slots.read_moves(Direction.SPREAD if name == "push_back" else Direction.EARLIER)
            return result

        return call


def policy(world: World) -> WindowPolicy:
    random = world.random
    return WindowPolicy(
        max_per_window=random.choice([1, 2, 5, 10]),
        window=timedelta(milliseconds=random.choice([500, 1000, 4000])),
        spread=random.choice(["jitter", "even"]),
        max_delay=None if random.random() < 0.8 else timedelta(seconds=60),
    )


async def play(world: World) -> None:
    """Clients assign, repeat, cancel; an operator raises, lowers and resizes, and re-plans."""
    random = world.random
    server = world.server("database")
    store: SlotStore = MemorySlotStore(clock=world, seed=random.getrandbits(32))
    replans: ReplanStore | None = None
    if random.random() < 0.25:
        database = SimulatedDatabase(fresh_engine())
        store, replans = SqlSlotStore(database), SqlReplanStore(database)
    watched = WatchedSlots(world, store)
    watching = None if replans is None else WatchedReplans(replans, watched)
    for name in CONFIGS:
        await watched.configure(name, policy(world))
    answers: dict[str, set[int]] = {}
    cancelled: set[str] = set()

    async def assign(scheduler: SlotScheduler) -> None:
        event_id = f"e{random.randrange(60)}"
        at = from_ms(world.now_us() // 1000 + random.randrange(-2000, 8000))
        names: str | list[str] = list(CONFIGS) if random.random() < 0.2 else random.choice(CONFIGS)
        try:
            slot = await scheduler.assign(event_id, names, at)
        except (StoreUnavailable, SlotsExhausted):
            return
        answers.setdefault(event_id, set()).add(slot.scheduled_ms)

    async def cancel(scheduler: SlotScheduler) -> None:
        event_id = f"e{random.randrange(60)}"
        cancelled.add(event_id)
        try:
            await scheduler.cancel(event_id)
        except (StoreUnavailable, NotFound):
            return

    async def change(scheduler: SlotScheduler) -> None:
        try:
            if random.random() < 0.5:
                await scheduler.configure(random.choice(CONFIGS), policy(world))
            else:
                await scheduler.change(random.choice(CONFIGS), {"max_per_window": random.choice([1, 3, 8])})
        except StoreUnavailable:
            return

    async def replan(scheduler: SlotScheduler) -> None:
        if watching is None:
            return
        try:
            notice, direction = timedelta(seconds=random.choice([0, 2])), random.choice(list(Direction))
            await scheduler.replan(random.choice(CONFIGS), notice=notice, direction=direction)
        except StoreUnavailable:
            return

    async def client(scheduler: SlotScheduler) -> None:
        while True:
            (act,) = random.choices([assign, cancel, change, replan], [80, 12, 4, 4])
            await act(scheduler)
            await asyncio.sleep(random.expovariate(1 / 0.3))

    async def main(process: Process) -> None:
        link = world.link(process, server)
        remote_replans = None if watching is None else cast(ReplanStore, Remote(ReplanStore, watching, link))
        scheduler = SlotScheduler(cast(SlotStore, Remote(SlotStore, watched, link)), replans=remote_replans, batch=8)
        await asyncio.gather(*(client(scheduler) for _ in range(random.randint(1, 4))))

    for number in range(random.randint(2, 3)):
        world.process(f"app-{number}", main)
    await world.endure(SECONDS)
    for event_id, times in answers.items():
        if event_id in cancelled or replans is not None:
            continue
        if len(times) > 1 or event_id not in watched.slots or watched.slots[event_id].scheduled_ms not in times:
            raise Violation(f"{event_id} was answered {times}, and has {watched.slots.get(event_id)}")
    stored = finished(watched.store.booked(LATEST_MS - 1, None, 100_000))
    if {(slot.event_id, slot.scheduled_ms) for slot in stored} != {
        (slot.event_id, slot.scheduled_ms) for slot in watched.slots.values()
    }:
        raise Violation("the store has other slots than were booked")
