"""Groups of items, batches and chains, whose first item names them: a key is used for one group only."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from paceline.dispatch.encryption import PREFIX
from paceline.dispatch.model import EnqueueRequest
from paceline.dispatch.portions import is_batch, is_group
from paceline.dispatch.stores.tables import batch, config, context, queue
from paceline.errors import InvalidInput

OTHER_CALLS = "was used before, for other calls; take another key, or give the same calls, which changes nothing"
Steps = Generator[sa.Executable, Any, None]
"""Statements of one transaction, for any kind of connection: it is sent the rows of each."""
Enqueue = Callable[[Connection, Sequence[EnqueueRequest], datetime | None, Sequence[str]], set[tuple[str, str]]]


def enqueue(
    connection: Connection,
    write: Enqueue,
    head: EnqueueRequest,
    members: Sequence[EnqueueRequest],
    total: int,
    now: datetime | None,
    hints: Sequence[str],
) -> set[tuple[str, str]]:
    """Queues the head, which waits for concurrent enqueues of it and then its members; returns the new items. Raises
    `InvalidInput`, and queues nothing, if the head's id belongs to another group."""
    new = write(connection, [head], now, hints)
    check(connection, head, is_new=bool(new))
    if not new:
        return write(connection, members, now, hints) if members else set()
    run_steps(connection, create_steps(head, total))
    new |= write(connection, members, now, hints) if members else set()
    check_members(head, members, new)
    return new


def create_steps(head: EnqueueRequest, total: int) -> Steps:
    """The counters of a new batch, as the statements of a transaction; none for a chain."""
    if is_batch(head.init_workflow_id):
        row = {"item_type": head.item_type, "item_id": head.item_id, "total": total}
        counts = {"succeeded": 0, "failed": 0, "cancelled": 0, "released": False}
        yield sa.insert(batch).values(row | counts).returning(batch.c.item_id)


def check_members(head: EnqueueRequest, members: Sequence[EnqueueRequest], new: set[tuple[str, str]]) -> None:
    """Raises `InvalidInput` if another item has the id of a call of the new batch: it would not be counted."""
    for member in members:
        if is_batch(head.init_workflow_id) and member[:2] not in new:
            raise InvalidInput("key", f"is taken: there is an item {member.item_id!r} of {member.item_type} already")


def check(connection: Connection, head: EnqueueRequest, *, is_new: bool = False) -> None:
    """Raises `InvalidInput` if the head's id belongs to another group."""
    run_steps(connection, check_steps(head, is_new=is_new))


def check_steps(head: EnqueueRequest, *, is_new: bool = False) -> Steps:
    """`check` as the statements of a transaction. An item of the head's id without a group is compared by its context,
    if it has one."""
    types = [row[0] for row in (yield sa.select(config.c.item_type))]
    joined = queue.outerjoin(
        context, (context.c.item_type == queue.c.item_type) & (context.c.item_id == queue.c.item_id)
    )
    statement = (
        sa.select(queue.c.item_type, queue.c.init_workflow_id, context.c.context_json)
        .select_from(joined)
        .where(queue.c.item_type.in_(types), queue.c.item_id == head.item_id)
    )
    for item_type, mark, text in (yield statement):
        is_own = item_type == head.item_type
        if not (is_own and is_new) and _is_other(mark, text, head, is_own):
            raise InvalidInput("key", OTHER_CALLS)


def run_steps(connection: Connection, steps: Steps) -> None:
    """Runs the statements of a transaction on a connection."""
    rows = None
    try:
        while True:
            rows = connection.execute(steps.send(rows)).all()
    except StopIteration:
        return


def _is_other(mark: str | None, text: str | None, head: EnqueueRequest, is_own: bool) -> bool:
    if is_group(mark):
        return mark != head.init_workflow_id
    if not is_own or text is None:
        return False
    if PREFIX in (text[: len(PREFIX)], head.context_json[: len(PREFIX)]):
        return False  # each encryption of a text differs
    return text != head.context_json
