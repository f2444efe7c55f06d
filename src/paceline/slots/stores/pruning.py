"""Deletes slots, counters and runs from before a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from paceline.durations import from_ms
from paceline.slots.carriers import Carriers, Standing
from paceline.slots.model import AssignedSlot, PolicyVersion
from paceline.slots.stores import forgotten
from paceline.slots.stores.replanning import TOPIC, standings_of
from paceline.slots.stores.tables import slot, slot_config, slot_run, slot_window
from paceline.slots.windows import align
from paceline.sql import outbox as outbox_rows
from paceline.sql.in_lists import MAX_IN_LIST
from paceline.sql.outbox_tables import outbox


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
