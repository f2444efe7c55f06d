"""What the contracts of re-plans share: the stores, and what holds after every one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from paceline.slots.carriers import SlotMove
from paceline.slots.listing import SlotFilter, SlotStatus
from paceline.slots.model import AssignedSlot, WindowPolicy
from paceline.slots.ports import SlotStore
from paceline.slots.replan.assignment import Direction
from paceline.slots.replan.parts import Reading
from paceline.slots.replan.run import Chunk, ReplanStore, Span
from tests.contracts.slot_windows import check_windows

T = 2_000_000_000_000
"""A time far ahead of every clock, aligned to every window of these tests."""
NOW = T - 3_600_000

Stores = tuple[SlotStore, ReplanStore]


async def booked(store: SlotStore, name: str = "c") -> list[AssignedSlot]:
    records = await store.page(SlotFilter(name, status=SlotStatus.BOOKED), None, 100_000)
    return [record.slot for record in records]


async def check(
    store: SlotStore, before: list[AssignedSlot], direction: Direction, name: str = "c"
) -> list[AssignedSlot]:
    """The invariants after every re-plan: order, direction, limits, and correct counters."""
    slots = await booked(store, name)
    after = {slot.event_id: slot for slot in slots}
    assert len(after) == len(before)
    times = [after[slot.event_id].scheduled_ms for slot in before]
    assert times == sorted(times), "the order of scheduled times is kept"
    for slot in before:
        moved = after[slot.event_id]
        assert moved.scheduled_ms >= slot.requested_ms
        if direction is Direction.EARLIER:
            assert moved.scheduled_ms <= slot.scheduled_ms
        else:
            assert moved.scheduled_ms >= slot.scheduled_ms
        assert moved.window_start_ms <= moved.scheduled_ms
    await check_windows(store, name, NOW)
    return slots


async def configure_all(store: SlotStore, policies_by_name: dict[str, WindowPolicy]) -> None:
    for name, policy in policies_by_name.items():
        await store.configure(name, policy, now_ms=NOW)


class Wrapped:
    """A `ReplanStore` around another."""

    def __init__(self, replans: ReplanStore) -> None:
        self._replans = replans
        self.again: list[bool] = []
        self.pieces: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._replans, name)


class Busy(Wrapped):
    """A `ReplanStore` for which bookings wait all the time; `meanwhile` happens before each piece of a plan."""

    def __init__(
        self, replans: ReplanStore, meanwhile: Callable[[Sequence[SlotMove]], Awaitable[object]] | None = None
    ) -> None:
        super().__init__(replans)
        self._meanwhile = meanwhile

    async def pull_forward(self, span: Span, reading: Reading, limit: int, *, reads_again: bool = False) -> Chunk:
        self.again.append(reads_again)
        chunk = await self._replans.pull_forward(span, reading, limit, reads_again=reads_again)
        return chunk._replace(is_awaited=True, seconds=1.0)

    async def carry_out(self, span: Span, moves: Sequence[SlotMove]) -> Chunk:
        if self._meanwhile is not None:
            await self._meanwhile(moves)
        self.pieces.append(len(moves))
        return (await self._replans.carry_out(span, moves))._replace(is_awaited=True, seconds=1.0)
