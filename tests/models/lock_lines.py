"""Who holds the locks of a queue in this process's memory, and who waits for them."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.model import IN_LINE_UNTIL, Claim, Item
from paceline.dispatch.status import Status

Key = tuple[str, str]


class LockLines:
    """The locks of these items, under these settings."""

    def __init__(self, items: Mapping[Key, Item], configs: Mapping[str, DispatchConfig]) -> None:
        self._items = items
        self._configs = configs
        self._holders: dict[str, Key] = {}
        """By name: the item that holds it, or is the next to."""

    def take(self, claim: Claim) -> Key | None:
        """Takes the claim's lock; if another item holds it, returns that one."""
        key = claim.item_type, claim.item_id
        holder = self._holders.setdefault(str(claim.lock), key)
        return None if holder == key else holder

    def give_back(self, item: Item) -> tuple[list[Item], Key | None]:
        """If the item holds its lock, the first in the line that is not paused holds it now. Returns the items that
        leave the line, which are that one and all paused ones before it, and the new holder."""
        if item.lock is None or self._holders.get(item.lock) != (item.item_type, item.item_id):
            return [], None
        del self._holders[item.lock]
        line = [
            one
            for one in self._items.values()
            if one.lock == item.lock and one.status is Status.READY and one.due_at == IN_LINE_UNTIL
        ]
        leaving: set[str] = set()
        for first in sorted(line, key=lambda one: (one.priority, one.execute_at, one.item_id)):
            config = self._configs.get(first.item_type)
            if config is None or config.enabled:
                holder = self._holders[item.lock] = first.item_type, first.item_id
                return [first, *(one for one in line if one.item_type in leaving)], holder
            leaving.add(first.item_type)
        return line, None
