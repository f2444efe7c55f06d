"""URL scheme -> slot store."""

from __future__ import annotations

from paceline.slots.carriers import Carriers
from paceline.slots.ports import SlotStore
from paceline.slots.replanning import ReplanStore
from paceline.slots.stores.replanning import SqlReplanStore
from paceline.slots.stores.sql import SqlSlotStore
from paceline.sql.databases import database


async def slot_store(url: str, *, pool_size: int = 10) -> SlotStore:
    """The slot store at a database URL; `memory://` for one in this process's memory."""
    return SqlSlotStore(await database(url, pool_size=pool_size))


async def slot_stores(
    url: str, *, pool_size: int = 10, timeout: float | None = None, carriers: Carriers | None = None
) -> tuple[SlotStore, ReplanStore]:
    """The slot store at a database URL, and the one that re-plans it. Closing the first closes both."""
    opened = await database(url, pool_size=pool_size, timeout=timeout)
    return SqlSlotStore(opened, carriers), SqlReplanStore(opened, carriers)
