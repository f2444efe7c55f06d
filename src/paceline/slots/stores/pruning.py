"""Deletes slots, counters and runs from before a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from paceline.durations import from_ms, to_ms
from paceline.slots.carriers import Carriers, Standing
from paceline.slots.model import AssignedSlot, PolicyVersion
from paceline.slots.stores import forgotten
from paceline.slots.stores.other_windows import parse_other_windows
from paceline.slots.stores.replanning import TOPIC, standings_of
from paceline.slots.stores.tables import slot, slot_config, slot_run, slot_window
from paceline.slots.windows import align
from paceline.sql import outbox as outbox_rows
from paceline.sql.in_lists import MAX_IN_LIST
from paceline.sql.outbox_tables import outbox

Cursor = tuple[int, str]


class PrunedPage(NamedTuple):
    """The result of one step of `prune_joint`."""

    removed: int
    cursor: Cursor | None
    """Where to continue; None at the end."""


def ends(versions: Iterable[PolicyVersion], before_ms: int) -> dict[str, int]:
    """By config, the start of the window that a time lies in: a window's slots are deleted together. If some were
    missing while its counters remain, a resize would count the rest only, and offer their room again."""
    return {active.name: align(before_ms, active.policy.size_ms) for active in versions}


def booked_alone_under(name: str) -> sa.ColumnElement[bool]:
    """Selects the slots under this config and no other."""
    return sa.and_(slot.c.config_name == name, slot.c.other_windows.is_(None))


OF_DELETED_CONFIGS = sa.and_(
    slot.c.other_windows.is_(None),
    ~sa.exists().where(slot_config.c.name == slot.c.config_name),
)
"""Selects the slots under one config that was made from a template and evicted: it has no windows to wait for."""


def _finished(connection: Connection, carriers: Carriers, slots: Sequence[AssignedSlot]) -> list[AssignedSlot]:
    """Those of these slots whose work is not pending. An overdue item keeps its slot: if that were deleted, a retry of
    the event would get a second one, and a re-plan would not see the item."""
    standings = standings_of(connection, carriers, slots, False) if carriers else {}
    done = (None, Standing.ENDED)
    return [assigned for assigned in slots if standings.get(assigned.event_id) in done]


def remove_finished(connection: Connection, carriers: Carriers, slots: Sequence[AssignedSlot]) -> int:
    """Deletes those of these slots whose work is not pending, and notes that they are missing. Returns their number."""
    done = _finished(connection, carriers, slots)
    for first in range(0, len(done), MAX_IN_LIST):
        event_ids = [assigned.event_id for assigned in done[first : first + MAX_IN_LIST]]
        connection.execute(slot.delete().where(slot.c.event_id.in_(event_ids)))
    until_ms: dict[str, int] = {}
    for assigned in done:
        for name in assigned.config_names:
            until_ms[name] = max(until_ms.get(name, 0), assigned.scheduled_ms + 1)
    forgotten.note_slots(connection, until_ms)
    return len(done)


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


def remove_move_records(connection: Connection, before_ms: int, limit: int) -> int:
    """Deletes up to `limit` records of moves from before a time that no subscriber has read."""
    old = (
        sa.select(outbox.c.id)
        .where(outbox.c.topic == TOPIC, outbox.c.created_at < from_ms(before_ms))
        .order_by(outbox.c.id)
        .limit(limit)
    )
    ids = list(connection.execute(old).scalars())
    if ids:
        outbox_rows.remove(connection, ids)
    return len(ids)


def names_to_prune(connection: Connection, before_ms: int) -> list[str]:
    """The configs that have counters or runs from before a time."""
    before = from_ms(before_ms)
    counted = sa.select(slot_window.c.config_name).where(slot_window.c.window_start < before)
    in_runs = sa.select(slot_run.c.config_name).where(slot_run.c.resume_at <= before)
    return sorted(connection.execute(sa.union(counted, in_runs)).scalars().all())


def remove_windows(connection: Connection, active: PolicyVersion, before_ms: int) -> int:
    """Deletes the counters and runs of a config's windows that ended before a time."""
    last = from_ms(before_ms - active.policy.size_ms)
    removed = connection.execute(
        slot_window.delete().where(slot_window.c.config_name == active.name, slot_window.c.window_start <= last)
    ).rowcount
    connection.execute(
        slot_run.delete().where(slot_run.c.config_name == active.name, slot_run.c.resume_at <= from_ms(before_ms))
    )
    return removed
