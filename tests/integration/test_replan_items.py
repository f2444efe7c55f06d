"""A re-plan by a program of one's own, which names no carriers: items move with their slots all the same."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from paceline import DispatchQueue, SlotScheduler, WindowPolicy

AT = "2030-03-01T16:00:00Z"


async def test_items_move_with_their_slots_and_what_has_begun_stays(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'work.db'}"
    async with SlotScheduler.open(url) as slots, DispatchQueue.open(url) as queue:
        await slots.configure("bank", WindowPolicy(max_per_window=1, window="PT4S"))
        await queue.configure("PAY", enabled=True)
        names = [f"pay-{number}" for number in range(5)]
        for name in names:
            slot = await slots.assign(name, "bank", AT)
            await queue.enqueue("PAY", name, context={}, execute_at=slot.scheduled_time, slot=slot)
        await slots.configure("bank", WindowPolicy(max_per_window=5, window="PT4S"))
        replanned = await slots.replan("bank")
        assert replanned.moved >= 4
        for name in names:
            booked = await slots.find(name)
            item = (await queue.show("PAY", name)).item
            assert item.execute_at == booked.scheduled_time, name
            assert booked.scheduled_time - booked.requested_time < timedelta(seconds=4)


async def test_items_move_with_slots_under_several_configs(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'work.db'}"
    async with SlotScheduler.open(url) as slots, DispatchQueue.open(url) as queue:
        await slots.configure("bank", WindowPolicy(max_per_window=1, window="PT4S"))
        await slots.configure("merchant", WindowPolicy(max_per_window=3, window="PT8S"))
        await queue.configure("PAY", enabled=True)
        names = [f"pay-{number}" for number in range(5)]
        for name in names:
            slot = await slots.assign(name, ["merchant", "bank"], AT)
            await queue.enqueue("PAY", name, context={}, execute_at=slot.scheduled_time, slot=slot)
        await slots.configure("bank", WindowPolicy(max_per_window=9, window="PT4S"))
        assert (await slots.replan("bank")).moved >= 3
        delays = []
        for name in names:
            booked = await slots.find(name)
            assert (await queue.show("PAY", name)).item.execute_at == booked.scheduled_time, name
            delays.append((booked.scheduled_time - booked.requested_time) // timedelta(seconds=8))
        assert delays == [0, 0, 0, 1, 1], "three in eight seconds, as the merchant's config has it"
        assert (await slots.cancel(names[0])).config_names == ("merchant", "bank")
        assert (await slots.replan("bank")).moved >= 1, "the place that was freed is taken"
