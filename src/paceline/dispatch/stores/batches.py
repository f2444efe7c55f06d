"""The counters of batches: each outcome of a call is counted in the transaction that writes it, and the last one
releases the callback."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

import sqlalchemy as sa

from paceline.dispatch.model import BatchCounts, Change, Item
from paceline.dispatch.portions import callback_of
from paceline.dispatch.status import Status
from paceline.dispatch.stores.rows import CHUNK, chunks, of_items
from paceline.dispatch.stores.tables import batch, queue
from paceline.sql.schema import now as database_clock

_NUMBERED = re.compile(r".:\d{1,6}\Z")
COUNTED = {Status.COMPLETED: "succeeded", Status.DEAD_LETTER: "failed", Status.CANCELLED: "cancelled"}
Key = tuple[str, str]


def may_end_member(change: Change) -> bool:
    """Whether it may end a call of a batch, by the form of its id: most items cost nothing here."""
    return change.status in COUNTED and _NUMBERED.search(change.claim.item_id) is not None


def count_ended(connection: sa.Connection, written: Sequence[Change], now: datetime | None) -> set[str]:
    """Counts the calls of batches that these changes ended. Returns the item types of callbacks that are due now."""
    ended = {change.claim[:2]: change.status for change in written if may_end_member(change)}
    return count(connection, _by_callback(connection, ended), now)


def move(connection: sa.Connection, items: Iterable[tuple[Item, Status]], now: datetime | None) -> None:
    """Counts items that an operator moves to another status: a dead letter that is requeued has not ended any more."""
    changes: dict[Key, Counter[str]] = {}
    for item, after in items:
        callback = callback_of(item.init_workflow_id)
        if callback is None or item.status is after:
            continue
        counts = changes.setdefault(callback, Counter())
        if item.status in COUNTED:
            counts[COUNTED[item.status]] -= 1
        if after in COUNTED:
            counts[COUNTED[after]] += 1
    count(connection, changes, now)


def _by_callback(connection: sa.Connection, ended: Mapping[Key, Status]) -> dict[Key, Counter[str]]:
    changes: dict[Key, Counter[str]] = {}
    for item_type in {item_type for item_type, _ in ended}:
        for some in chunks([item_id for kind, item_id in ended if kind == item_type], CHUNK):
            statement = sa.select(queue.c.item_id, queue.c.init_workflow_id).where(of_items(item_type, some))
            for item_id, mark in connection.execute(statement.where(queue.c.init_workflow_id.is_not(None))):
                if (callback := callback_of(mark)) is not None:
                    changes.setdefault(callback, Counter())[COUNTED[ended[item_type, item_id]]] += 1
    return changes


def count(connection: sa.Connection, changes: Mapping[Key, Mapping[str, int]], now: datetime | None) -> set[str]:
    """Adds to the counters of batches, in one order, so that transactions don't wait for each other in a circle.
    Returns the item types of the callbacks that are due now."""
    released: set[str] = set()
    for callback in sorted(changes):
        this = (batch.c.item_type == callback[0]) & (batch.c.item_id == callback[1])
        added = {name: batch.c[name] + number for name, number in changes[callback].items()}
        connection.execute(sa.update(batch).where(this, sa.not_(batch.c.released)).values(added))
        ended = batch.c.succeeded + batch.c.failed + batch.c.cancelled
        done = sa.update(batch).where(this, sa.not_(batch.c.released), ended >= batch.c.total).values(released=True)
        if connection.execute(done).rowcount:
            _release(connection, callback, now)
            released.add(callback[0])
    return released


def _release(connection: sa.Connection, callback: Key, now: datetime | None) -> None:
    moment = now or database_clock(connection)
    connection.execute(
        sa.update(queue)
        .where(of_items(callback[0], [callback[1]]), queue.c.queue_status == Status.READY.value)
        .values(scheduled_exec_time=moment, due_at=moment, updated_at=moment)
    )


def find(connection: sa.Connection, item_type: str, item_id: str) -> BatchCounts | None:
    """The counters of the batch with this callback."""
    statement = sa.select(batch.c.total, batch.c.succeeded, batch.c.failed, batch.c.cancelled).where(
        batch.c.item_type == item_type, batch.c.item_id == item_id
    )
    row = connection.execute(statement).one_or_none()
    return None if row is None else BatchCounts(*row)


FORGET = sa.delete(batch).where(batch.c.item_type == sa.bindparam("b_type"), batch.c.item_id == sa.bindparam("b_id"))
