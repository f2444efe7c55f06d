"""Places for items that run plain functions: the worker's slots for activities are not bound to threads."""

from __future__ import annotations

from paceline.dispatch.downstream_turn import DownstreamTurn, turn_of
from paceline.dispatch.model import Claim
from paceline.dispatch.registry import Registry
from paceline.dispatch.worker.places import Place, Places
from paceline.dispatch.worker.threads import needs_thread


class ItemPlaces:
    """The threads of one process. An item takes one before it waits for the kill switch and its plan."""

    def __init__(self, registry: Registry, places: Places) -> None:
        self._registry = registry
        self._places = places

    async def of(self, claim: Claim, lane: str, priority: int) -> Place | None:
        """A place for the item's function, in turn; None if it needs no thread."""
        if claim.item_type not in self._registry or not needs_thread(self._registry[claim.item_type].execute):
            return None
        return await self._places.acquire(claim.item_type, lane, priority, on_thread=True)

    def turn(self, item_type: str) -> DownstreamTurn | None:
        """A call of the downstream of the item's function; None if it has none."""
        return turn_of(self._registry[item_type].execute) if item_type in self._registry else None
