"""Changes that an operator makes to items, in the database: all or none of listed items, matching items in batches."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa

from paceline.dispatch.changes import Cancellation, ChangeResult, ItemChange, Preview, Rescheduling
from paceline.dispatch.model import Claim, Item
from paceline.dispatch.ports import Follower
from paceline.dispatch.search import ItemFilter
from paceline.dispatch.status import FINISHED, IN_FLIGHT, Status
from paceline.dispatch.stores import batches, booked_slots, following, locks, search
from paceline.dispatch.stores.admin_queries import UPDATE_ITEM
from paceline.dispatch.stores.rows import CHUNK, chunks, entry, item, item_columns, of_items, write_audit
from paceline.dispatch.stores.tables import context, queue
from paceline.errors import Conflict, NotFound
from paceline.sql.schema import now as database_clock

MAX_PREVIEWED = 10_000
"""The maximum of items that are read for a preview, if SQL can't count them."""


def change_listed(
    connection: sa.Connection,
    item_type: str,
    item_ids: Sequence[str],
    change: ItemChange,
    now: datetime | None,
    follower: Follower | None,
    *,
    with_slots: bool = True,
) -> ChangeResult:
    """Changes all of these items, or none: raises `NotFound` or `Conflict` if one does not exist or can't be changed.
    Changes their slots too, unless the caller does."""
    moment = now or database_clock(connection)
    unique_ids = list(dict.fromkeys(item_ids))
    rows: dict[str, Item] = {}
    for some in chunks(sorted(unique_ids)):
        rows.update(_locked(connection, item_type, some))
    for item_id in unique_ids:
        if item_id not in rows:
            raise NotFound("item", item_id)
    items = list(rows.values())
    slotted = _items_with_slots(connection, items, change, follower)
    changed = [change.applied(one, moment, is_followed=one.item_id in slotted) for one in items]
    if change.to is not None:
        following.checked_moves(connection, follower, items, change.to)
    return _write(connection, items, changed, change, moment, follower, with_slots=with_slots)


def change_matching(
    connection: sa.Connection,
    item_type: str,
    chosen: ItemFilter,
    after: str | None,
    change: ItemChange,
    now: datetime | None,
    follower: Follower | None,
) -> tuple[ChangeResult, str | None]:
    """Changes some of the matching items after the id `after`, except those that can't be changed. Returns the result,
    and the last id it read; None when there are no more."""
    ids = search.page_ids(connection, item_type, chosen, CHUNK, after)
    if not ids:
        return ChangeResult(0, []), None
    moment = now or database_clock(connection)
    # Another process may have moved some of them before they were locked.
    matching = [one for one in _locked(connection, item_type, ids).values() if chosen.matches(one)]
    items, changed = _changeable(connection, matching, change, moment, follower)
    return _write(connection, items, changed, change, moment, follower), ids[-1]


def preview(
    connection: sa.Connection,
    item_type: str,
    chosen: ItemFilter,
    change: ItemChange,
    now: datetime | None,
    follower: Follower | None,
) -> Preview:
    """The effect of `change_matching` on the items that match. Writes and locks nothing."""
    moment = now or database_clock(connection)
    if follower is None and chosen.error_group is None:
        return _preview_by_count(connection, item_type, chosen, change, moment)
    # A follower decides per item, and SQL can't group errors: items are read one by one.
    matching = search.items(connection, item_type, chosen, MAX_PREVIEWED + 1, None)
    is_whole = len(matching) <= MAX_PREVIEWED
    changing = 0
    for some in chunks(matching[:MAX_PREVIEWED]):
        changing += len(_changeable(connection, some, change, moment, follower)[0])
    return Preview(min(len(matching), MAX_PREVIEWED), changing, is_whole)


def _preview_by_count(
    connection: sa.Connection, item_type: str, chosen: ItemFilter, change: ItemChange, now: datetime
) -> Preview:
    """An item's status and slot decide: one item of each kind is tried, the others are counted."""
    kinds = connection.execute(
        sa.select(sa.func.count(), sa.func.min(queue.c.item_id))
        .where(queue.c.item_type == item_type, *search.conditions(chosen))
        .group_by(queue.c.queue_status, queue.c.slotted)
    ).all()
    examples = connection.execute(sa.select(queue).where(of_items(item_type, [example for _, example in kinds])))
    tried = _changeable(connection, [item(row) for row in examples], change, now, None)[0]
    changeable = {one.item_id for one in tried}
    matching = sum(items for items, _ in kinds)
    return Preview(matching, sum(items for items, example in kinds if example in changeable))


def _changeable(
    connection: sa.Connection, matching: Sequence[Item], change: ItemChange, now: datetime, follower: Follower | None
) -> tuple[list[Item], list[Item]]:
    """Those of the items that can be changed, before and after the change."""
    slotted = _items_with_slots(connection, matching, change, follower)
    pairs = []
    slotted = _items_with_slots(connection, matching, change, follower)
    for one in matching:
        with contextlib.suppress(Conflict):
            pairs.append((one, change.applied(one, now, is_followed=one.item_id in slotted)))
    if change.to is not None:
        allowed = following.allowed_items(connection, follower, [before for before, _ in pairs], change.to)
        ids = {one.item_id for one in allowed}
        pairs = [pair for pair in pairs if pair[0].item_id in ids]
    return [before for before, _ in pairs], [after for _, after in pairs]


def _items_with_slots(
    connection: sa.Connection, items: Sequence[Item], change: ItemChange, follower: Follower | None
) -> set[str]:
    """The items with a follower; if the change is of the time, also those with a slot."""
    if follower is not None:
        return {one.item_id for one in items}
    if isinstance(change, Rescheduling) and change.execute_at is not None:
        return booked_slots.carried_slots(connection, items)
    return set()


def _locked(connection: sa.Connection, item_type: str, item_ids: Sequence[str]) -> dict[str, Item]:
    statement = sa.select(queue).where(of_items(item_type, item_ids)).order_by(queue.c.item_id).with_for_update()
    rows = connection.execute(statement)
    return {row.item_id: item(row) for row in rows}


def _write(
    connection: sa.Connection,
    items: Sequence[Item],
    changed: Sequence[Item],
    change: ItemChange,
    now: datetime,
    follower: Follower | None,
    *,
    with_slots: bool = True,
) -> ChangeResult:
    if not items:
        return ChangeResult(0, [])
    updates = []
    for before, after in zip(items, changed, strict=True):
        columns = item_columns(after)
        key = {"b_type": columns.pop("item_type"), "b_id": columns.pop("item_id"), "b_before": before.status.value}
        updates.append(columns | key)
    connection.execute(UPDATE_ITEM, updates)
    if change.to is not None:
        batches.move(connection, [(before, after.status) for before, after in zip(items, changed, strict=True)], now)
    locks.move(connection, items, now)
    if change.to in FINISHED:
        for some in chunks(items):
            these = context.c.item_id.in_([one.item_id for one in some])
            connection.execute(sa.delete(context).where(context.c.item_type == items[0].item_type, these))
    if change.to is not None and follower is not None:
        follower.follow(connection, following.item_moves(items, change.to), now)
    if change.to is Status.CANCELLED and with_slots:
        booked_slots.give_back(connection, items, now)
    write_audit(
        connection,
        [
            entry(
                before.item_type,
                before.item_id,
                before.batch_id,
                change.action,
                before.status,
                after.status,
                change.detail(before),
                now,
            )
            for before, after in zip(items, changed, strict=True)
        ],
    )
    claims = [Claim(one.item_type, one.item_id, one.claim_epoch, one.retry_count) for one in items if _runs(one)]
    return ChangeResult(len(items), claims if isinstance(change, Cancellation) else [])


def _runs(item: Item) -> bool:
    return item.status in IN_FLIGHT
