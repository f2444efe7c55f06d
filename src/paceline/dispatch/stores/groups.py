"""Groups of items, batches and chains, whose first item names them: a key is used for one group only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from paceline.dispatch.encryption import PREFIX
from paceline.dispatch.model import EnqueueRequest
from paceline.dispatch.portions import is_group
from paceline.dispatch.stores.tables import config, context, queue
from paceline.errors import InvalidInput

OTHER_CALLS = "was used before, for other calls; take another key, or give the same calls, which changes nothing"
Enqueue = Callable[[Connection, Sequence[EnqueueRequest], datetime | None, Sequence[str]], set[tuple[str, str]]]


def enqueue(
    connection: Connection,
    write: Enqueue,
    head: EnqueueRequest,
    members: Sequence[EnqueueRequest],
    now: datetime | None,
    hints: Sequence[str],
) -> set[tuple[str, str]]:
    """Queues the head, which waits for concurrent enqueues of it, and then its members; returns the new items. Raises
    `InvalidInput`, and queues nothing, if the head's id belongs to another group."""
    new = write(connection, [head], now, hints)
    check(connection, head, is_new=bool(new))
    return new | (write(connection, members, now, hints) if members else set())


def check(connection: Connection, head: EnqueueRequest, *, is_new: bool = False) -> None:
    """Raises `InvalidInput` if the head's id belongs to another group. An item of that id without a
    group is compared by its context, if it has one."""
    types = list(connection.execute(sa.select(config.c.item_type)).scalars())
    joined = queue.outerjoin(
        context, (context.c.item_type == queue.c.item_type) & (context.c.item_id == queue.c.item_id)
    )
    statement = (
        sa.select(queue.c.item_type, queue.c.init_workflow_id, context.c.context_json)
        .select_from(joined)
        .where(queue.c.item_type.in_(types), queue.c.item_id == head.item_id)
    )
    for row in connection.execute(statement):
        is_own = row.item_type == head.item_type
        if not (is_own and is_new) and _is_other(row, head, is_own):
            raise InvalidInput("key", OTHER_CALLS)


def _is_other(row: Any, head: EnqueueRequest, is_own: bool) -> bool:
    if is_group(row.init_workflow_id):
        return bool(row.init_workflow_id != head.init_workflow_id)
    if not is_own or row.context_json is None:
        return False
    if PREFIX in (row.context_json[: len(PREFIX)], head.context_json[: len(PREFIX)]):
        return False  # each encryption of a text differs
    return bool(row.context_json != head.context_json)
