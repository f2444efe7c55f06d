"""URL scheme -> queue store."""

from __future__ import annotations

from collections.abc import Mapping

from headgate.dispatch.ports import Follower, QueueStore
from headgate.dispatch.stores.sql import SqlQueueStore
from headgate.sql.databases import database


async def queue_store(url: str, *, pool_size: int = 10, followers: Mapping[str, Follower] | None = None) -> QueueStore:
    """The dispatch queue's store at a database URL; `memory://` for one that lives in this process. `followers`: by
    item type, what moves together with its items."""
    return SqlQueueStore(await database(url, pool_size=pool_size), followers)
