"""URL scheme -> queue store, and the enqueue of an application that writes its own rows in the same transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy.engine import Connection

from paceline.dispatch.encryption import Encryption
from paceline.dispatch.model import CLAIM_BYTES, EnqueueRequest
from paceline.dispatch.ports import Follower, QueueStore
from paceline.dispatch.stores import portable, sqlite
from paceline.dispatch.stores.encrypting import encrypted_requests
from paceline.dispatch.stores.slot_carrier import QueueCarrier as QueueCarrier
from paceline.dispatch.stores.sql import SqlQueueStore
from paceline.sql.databases import database
from paceline.sql.migrate import STEPS, Steps


async def queue_store(
    url: str,
    *,
    pool_size: int = 10,
    timeout: float | None = None,
    followers: Mapping[str, Follower] | None = None,
    claim_bytes: int = CLAIM_BYTES,
    encryption: Encryption | None = None,
    steps: Sequence[Steps] = (STEPS,),
) -> QueueStore:
    """The dispatch queue's store at a database URL; `memory://` for one in this process's memory. `followers` are, by
    item type, what changes together with its items, in tables that `steps` make. `claim_bytes` bounds the contexts of
    one claim. With `encryption`, contexts and results are encrypted at rest."""
    opened = await database(url, pool_size=pool_size, timeout=timeout, steps=steps)
    return SqlQueueStore(opened, followers, claim_bytes=claim_bytes, encryption=encryption)


def enqueue_within(
    connection: Connection,
    requests: Sequence[EnqueueRequest],
    hints: Sequence[str] = (),
    encryption: Encryption | None = None,
    now: datetime | None = None,
) -> None:
    """Queues items in the transaction of `connection`, at their own times: their slots belong to the application, which
    must not move them before it commits. Requests are unique and sorted. On PostgreSQL, dispatchers of the item types
    in `hints` are notified when it commits. `now` is the database's clock, if the caller has read it."""
    requests = encrypted_requests(encryption, requests)
    if connection.dialect.name == "postgresql":
        # Imported here: the driver is an optional extra.
        from paceline.dispatch.stores import postgres

        postgres.enqueue(connection, requests, now, hints, follow_slots=False)
    else:
        statements = sqlite if connection.dialect.name == "sqlite" else portable
        statements.enqueue(connection, requests, now, follow_slots=False)
