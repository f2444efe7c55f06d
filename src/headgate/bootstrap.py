"""The only place that names concrete adapters: URL scheme -> factory."""

from __future__ import annotations

from headgate.adapters.memory.slots import MemorySlotStore
from headgate.slots.ports import SlotStore


async def slot_store(url: str) -> SlotStore:
    """The slot store at a database URL, migrated; `memory://` for one that lives in this process."""
    return MemorySlotStore()
