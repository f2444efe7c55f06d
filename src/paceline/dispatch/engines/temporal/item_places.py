"""Places for items: a worker's slots for activities are per task queue, and not bound to threads."""

from __future__ import annotations

from paceline.dispatch.model import Claim
from paceline.dispatch.registry import Execute, Registry
from paceline.dispatch.worker.places import Place, Places
from paceline.dispatch.worker.threads import needs_thread


class ItemPlaces:
    """The places of one process. An item takes one before it waits for the kill switch and its turn."""

    def __init__(self, registry: Registry, places: Places) -> None:
        self._registry = registry
        self._places = places

    async def of(self, claim: Claim, lane: str, priority: int) -> Place | None:
        """A place for the item's function, in turn; None if another process runs that."""
        if claim.item_type not in self._registry:
            return None
        on_thread = needs_thread(self._registry[claim.item_type].execute)
        return await self._places.acquire(claim.item_type, lane, priority, on_thread=on_thread)

    def execute(self, item_type: str) -> Execute | None:
        """What executes items of a type; None if none is registered here."""
        return self._registry[item_type].execute if item_type in self._registry else None
