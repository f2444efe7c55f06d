"""Booking, cancelling and pruning slots under several configs, one statement after another.

Every config's row is locked, in the order of the names. A transaction that needs several locks takes all of them in
this order before any other work, so writers of overlapping sets wait for each other and never deadlock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from paceline.durations import from_ms, to_ms
from paceline.slots.carriers import Carriers
from paceline.slots.joint import JointPacker, JointSide
from paceline.slots.model import AssignedSlot, PolicyVersion, SlotRequest
from paceline.slots.occupancy import Occupancy
from paceline.slots.packing import Booking, book_all
from paceline.slots.stores.other_windows import parse_other_windows
from paceline.slots.stores.pruning import remove_finished
from paceline.slots.stores.tables import slot
from paceline.slots.stores.window_rows import FEW_WINDOWS, SqlWindowReader, read_ahead, window_queries, write_occupancy

Cursor = tuple[int, str]


def book_under(
    connection: Connection,
    actives: Sequence[PolicyVersion],
    requests: Sequence[SlotRequest],
    existing: Mapping[str, AssignedSlot],
    now_ms: int,
    owner: str | None,
    uniform: Callable[[], float],
) -> tuple[list[Booking], list[AssignedSlot]]:
    """Books every request under several configs, whose rows are locked. Writes the windows; the caller writes the new
    slots."""
    sides: list[JointSide] = []
    is_sparse = len({requested for _, requested in requests}) > FEW_WINDOWS
    for active in actives:
        reader = SqlWindowReader(connection, active.name)
        occupancy = Occupancy(active.policy, reader)
        if is_sparse and connection.dialect.name == "sqlite":
            read_ahead(reader, occupancy, window_queries(active.policy, requests, now_ms))
        sides.append(JointSide(active, occupancy))
    packer = JointPacker(sides, now_ms, uniform)
    bookings, fresh = book_all(actives[0], packer, requests, existing, owner, joint_label(actives))
    if fresh:
        for side in sides:
            write_occupancy(connection, side.active.name, side.occupancy)
    return bookings, fresh


def joint_label(actives: Iterable[PolicyVersion]) -> str:
    """The configs of a set, in an error."""
    return ", ".join(active.name for active in actives)


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
