"""The only place that names concrete adapters: URL scheme -> factory."""

from __future__ import annotations

from headgate.adapters.memory.slots import MemorySlotStore
from headgate.adapters.sql import migrate
from headgate.adapters.sql.engine import Database
from headgate.adapters.sql.slot_store import SqlSlotStore
from headgate.slots.ports import SlotStore


async def database(url: str, *, pool_size: int = 10) -> Database:
    """The database at a URL, migrated to this version's schema."""
    opened = Database(url, pool_size=pool_size)
    try:
        await migrate.upgrade(opened)
    except BaseException:
        await opened.close()
        raise
    return opened


async def slot_store(url: str) -> SlotStore:
    """The slot store at a database URL; `memory://` for one that lives in this process."""
    if url.startswith("memory:"):
        return MemorySlotStore()
    return SqlSlotStore(await database(url))
