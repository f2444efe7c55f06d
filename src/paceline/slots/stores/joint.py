"""Booking, cancelling and pruning slots under several configs, one statement after another.

Every config's row is locked, in the order of the names. A transaction that needs several locks takes all of them in
this order before any other work, so writers of overlapping sets wait for each other and never deadlock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from paceline.durations import from_ms, to_ms
from paceline.slots.carriers import Carriers
from paceline.slots.model import AssignedSlot
from paceline.slots.stores.other_windows import parse_other_windows
from paceline.slots.stores.pruning import remove_finished
from paceline.slots.stores.tables import slot

Cursor = tuple[int, str]


class PrunedPage(NamedTuple):
    """The result of one step of `prune_joint`."""

    removed: int
    cursor: Cursor | None
    """Where to continue; None at the end."""


def prune_joint(
    connection: Connection,
    carriers: Carriers,
    ends_ms: Mapping[str, int],
    before_ms: int,
    after: Cursor | None,
    limit: int,
) -> PrunedPage:
    """Deletes slots under several configs that are past the end of each config, and whose work is not pending.
    `ends_ms` is the time by config before which slots are deleted. Reads up to `limit` slots after a cursor."""
    last = from_ms(max(ends_ms.values(), default=before_ms))
    query = sa.select(
        slot.c.event_id, slot.c.config_name, slot.c.scheduled_at, slot.c.owner, slot.c.other_windows
    ).where(slot.c.other_windows.is_not(None), slot.c.scheduled_at < last)
    if after is not None:
        at, event_id = from_ms(after[0]), after[1]
        query = query.where((slot.c.scheduled_at > at) | ((slot.c.scheduled_at == at) & (slot.c.event_id > event_id)))
    rows = connection.execute(query.order_by(slot.c.scheduled_at, slot.c.event_id).limit(limit)).all()
    old: list[AssignedSlot] = []
    for event_id, config_name, scheduled_at, owner, other_windows in rows:
        others, at_ms = parse_other_windows(other_windows), to_ms(scheduled_at)
        names = [config_name, *(window.config_name for window in others)]
        if at_ms < min(ends_ms.get(name, before_ms) for name in names):
            old.append(AssignedSlot(event_id, config_name, 0, at_ms, at_ms, at_ms, True, owner, others))
    cursor = (to_ms(rows[-1].scheduled_at), rows[-1].event_id) if len(rows) == limit else None
    return PrunedPage(remove_finished(connection, carriers, old), cursor)
