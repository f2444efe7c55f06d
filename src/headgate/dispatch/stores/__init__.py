"""URL scheme -> queue store."""

from __future__ import annotations

from headgate.dispatch.ports import QueueStore
from headgate.dispatch.stores.sql import SqlQueueStore
from headgate.sql.databases import database


async def queue_store(url: str, *, pool_size: int = 10) -> QueueStore:
    """The dispatch queue's store at a database URL; `memory://` for one that lives in this process."""
    return SqlQueueStore(await database(url, pool_size=pool_size))
