"""URL scheme -> slot store."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.slots.carriers import Carriers
from paceline.slots.ports import SlotStore
from paceline.slots.replan.run import ReplanStore
from paceline.slots.stores.replanning import SqlReplanStore
from paceline.slots.stores.sql import SqlSlotStore
from paceline.sql.databases import database
from paceline.sql.migrate import STEPS, Steps


async def slot_store(url: str, *, pool_size: int = 10) -> SlotStore:
    """The slot store at a database URL; `memory://` for one in this process's memory."""
    return SqlSlotStore(await database(url, pool_size=pool_size))


async def slot_stores(
    url: str,
    *,
    pool_size: int = 10,
    timeout: float | None = None,
    carriers: Carriers | None = None,
    steps: Sequence[Steps] = (STEPS,),
) -> tuple[SlotStore, ReplanStore]:
    """The slot store at a database URL, and the one that re-plans it. Closing the first closes both. The `carriers` may
    write to all tables that these steps make."""
    opened = await database(url, pool_size=pool_size, timeout=timeout, steps=steps)
    return SqlSlotStore(opened, carriers), SqlReplanStore(opened, carriers)
