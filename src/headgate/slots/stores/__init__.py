"""URL scheme -> slot store."""

from __future__ import annotations

from headgate.slots.ports import SlotStore
from headgate.slots.stores.sql import SqlSlotStore
from headgate.sql.databases import database


async def slot_store(url: str, *, pool_size: int = 10) -> SlotStore:
    """The slot store at a database URL; `memory://` for one that lives in this process."""
    return SqlSlotStore(await database(url, pool_size=pool_size))
