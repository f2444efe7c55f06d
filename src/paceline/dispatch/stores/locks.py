"""Locks by name: over all item types and workers, one item of a lock runs at a time, and the others wait in line.

The row of a lock names the item that holds it, or that is the next to: it is claimed as any other item. An item that
is claimed while another one holds its lock goes to the line, where no claim finds it. Whoever takes a lock, or gives it
back, locks its row first: nobody comes to a line after the last look at it.

Nobody waits for an item of a paused type: it is not the next to hold a lock, and comes back to the line when it is
claimed again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

import sqlalchemy as sa

from paceline.dispatch.model import IN_LINE_UNTIL, Action, Change, Claim, Item
from paceline.dispatch.status import IN_FLIGHT, Status
from paceline.dispatch.stores.rows import chunks, entry, of_items, write_audit
from paceline.dispatch.stores.tables import LOCKED, among, config, lock, only, queue
from paceline.sql.schema import now as database_clock

Key = tuple[str, str]


def take(connection: sa.Connection, claims: Sequence[Claim], now: datetime | None) -> list[bool]:
    """Takes the lock of each claim; False for one that waits in line now, and whose claim is given back."""
    moment = now or database_clock(connection)
    taken = dict.fromkeys(claims, False)
    # In the order of the names: two callers wait for each other in one order.
    for claim in sorted(claims, key=lambda claim: str(claim.lock)):
        taken[claim] = _take(connection, claim, moment)
    return [taken[claim] for claim in claims]


def _take(connection: sa.Connection, claim: Claim, now: datetime) -> bool:
    name, key = str(claim.lock), (claim.item_type, claim.item_id)
    this = lock.c.lock_name == name
    row = connection.execute(sa.select(lock).where(this).with_for_update()).one_or_none()
    if row is None:
        # If somebody else inserts it at the same time, this is a `Conflict`, and it is there at the next try.
        connection.execute(sa.insert(lock).values(lock_name=name, item_type=key[0], item_id=key[1]))
        return True
    holder = row.item_type, row.item_id
    if holder != key and not _may_run(connection, name, holder):
        # It ended in a way that did not give the lock back.
        holder = _next_in_line(connection, name, now) or key
        connection.execute(sa.update(lock).where(this).values(item_type=holder[0], item_id=holder[1]))
    if holder == key:
        return True
    _put_in_line(connection, claim, holder, now)
    return False


def _may_run(connection: sa.Connection, name: str, holder: Key) -> bool:
    """Whether the holder runs, or is the next to."""
    mine = of_items(holder[0], [holder[1]]) & (queue.c.lock_name == name)
    row = connection.execute(sa.select(queue.c.queue_status, queue.c.due_at).where(mine)).one_or_none()
    if row is None or row.queue_status in IN_FLIGHT:
        return row is not None
    is_due = row.queue_status == Status.READY and row.due_at < IN_LINE_UNTIL
    return is_due and not _is_paused(connection, holder[0])


def _is_paused(connection: sa.Connection, item_type: str) -> bool:
    """Whether the type is paused. It is not until this transaction ends, if it is not now: `pass_on` then sees what
    was decided here."""
    enabled = sa.select(config.c.enabled).where(config.c.item_type == item_type).with_for_update(read=True)
    return connection.execute(enabled).scalar_one_or_none() is False


def _put_in_line(connection: sa.Connection, claim: Claim, holder: Key, now: datetime) -> None:
    mine = of_items(claim.item_type, [claim.item_id]) & (queue.c.claim_epoch == claim.epoch)
    in_flight = queue.c.queue_status.in_([status.value for status in IN_FLIGHT])
    row = connection.execute(sa.select(queue.c.queue_status).where(mine, in_flight).with_for_update()).one_or_none()
    if row is None:
        return  # the claim is lost
    connection.execute(
        sa.update(queue)
        .where(mine, in_flight)
        .values(queue_status=Status.READY.value, due_at=IN_LINE_UNTIL, begun_at=None, updated_at=now)
    )
    detail = f"waits for the lock {claim.lock!r}, which {holder[0]} {holder[1]} holds"[:2000]
    key = claim.item_type, claim.item_id, None
    write_audit(connection, [entry(*key, Action.RELEASED, row.queue_status, Status.READY, detail, now)])


def give_back(connection: sa.Connection, keys: Iterable[Key], now: datetime | None) -> set[str]:
    """Gives the locks that these items hold to the next in their lines. Returns the types of those."""
    by_type: dict[str, list[str]] = {}
    for item_type, item_id in keys:
        by_type.setdefault(item_type, []).append(item_id)
    if not by_type:
        return set()
    moment = now or database_clock(connection)
    rows: list[sa.Row[tuple[str, str, str]]] = []
    for item_type, item_ids in by_type.items():
        for some in chunks(item_ids):
            held = (lock.c.item_type == item_type) & lock.c.item_id.in_(list(some))
            rows += connection.execute(sa.select(lock).where(held).order_by(lock.c.lock_name).with_for_update()).all()
    following = set()
    for row in sorted(rows, key=lambda row: str(row.lock_name)):
        this = lock.c.lock_name == row.lock_name
        if (holder := _next_in_line(connection, row.lock_name, moment)) is None:
            connection.execute(sa.delete(lock).where(this))
        else:
            connection.execute(sa.update(lock).where(this).values(item_type=holder[0], item_id=holder[1]))
            following.add(holder[0])
    return following


def pass_on(connection: sa.Connection, item_type: str, now: datetime | None) -> set[str]:
    """The type was paused: locks that its items are the next to hold go to the next in their lines. Returns the types
    of those."""
    same = (lock.c.item_type == queue.c.item_type) & (lock.c.item_id == queue.c.item_id)
    is_next = (lock.c.item_type == item_type) & (queue.c.queue_status == Status.READY.value)
    item_ids = connection.execute(sa.select(lock.c.item_id).join(queue, same).where(is_next)).scalars().all()
    return give_back(connection, [(item_type, item_id) for item_id in item_ids], now)


def _next_in_line(connection: sa.Connection, name: str, now: datetime) -> Key | None:
    """The first in the line whose type is not paused; it is due now. None if nobody waits."""
    dialect = connection.dialect.name
    order = [only(LOCKED, column, dialect) for column in ("lock_name", "priority", "scheduled_exec_time", "item_id")]
    first = (
        sa.select(queue.c.item_type, queue.c.item_id)
        .where(among(LOCKED, dialect), order[0] == name, queue.c.due_at == IN_LINE_UNTIL)
        .order_by(*order)
        .limit(1)
    )
    in_line = (queue.c.queue_status == Status.READY.value) & (queue.c.due_at == IN_LINE_UNTIL)
    while (row := connection.execute(first).one_or_none()) is not None:
        is_paused = _is_paused(connection, row.item_type)
        # All of a paused type leave the line at once.
        these = order[0] == name if is_paused else queue.c.item_id == row.item_id
        leaving = sa.update(queue).where(queue.c.item_type == row.item_type, these, among(LOCKED, dialect), in_line)
        # An operator may have cancelled it since it was read: then another one is the first.
        if connection.execute(leaving.values(due_at=now, updated_at=now)).rowcount and not is_paused:
            return row.item_type, row.item_id
    return None


def ends_hold(change: Change) -> bool:
    """Whether the item of a change gives its lock back, if it has one."""
    return change.claim.lock is not None and change.status is not Status.DISPATCHED


def move(connection: sa.Connection, items: Iterable[Item], now: datetime | None) -> None:
    """An operator moved these items: those that held a lock, or were the next to, hold it no more."""
    if keys := [(item.item_type, item.item_id) for item in items if item.lock is not None]:
        give_back(connection, keys, now)
