"""Cancelling slots: plain functions over a connection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sqlalchemy.engine import Connection

from paceline.durations import to_ms
from paceline.errors import Conflict, SlotOwned
from paceline.slots.carriers import Carriers
from paceline.slots.listing import NO_CAUSE, Cancellation
from paceline.slots.model import AssignedSlot
from paceline.slots.occupancy import Occupancy
from paceline.slots.stores import slot_records
from paceline.slots.stores.policies import lock_all
from paceline.slots.stores.tables import slot
from paceline.slots.stores.window_rows import SqlWindowReader, rebuild_runs, release_windows, write_occupancy
from paceline.slots.windows import align
from paceline.sql.in_lists import MAX_IN_LIST
from paceline.sql.schema import now


def cancel(
    connection: Connection, event_id: str, owner: str | None = None, cause: Cancellation = NO_CAUSE
) -> AssignedSlot | None:
    """Deletes the slot, if it is the owner's, and frees its room in the windows that its time falls into now. Its
    record is kept, with the cause."""
    before = slot_records.find_all(connection, [event_id]).get(event_id)
    if before is None:
        return None
    actives = lock_all(connection, before.config_names)
    current = slot_records.find_all(connection, [event_id]).get(event_id)
    if current is None:
        return None
    if set(current.config_names) != set(before.config_names):
        # Cancelled and booked again elsewhere during the wait for the locks: other configs would have to be locked.
        raise Conflict
    if current.owner != owner:
        raise SlotOwned(event_id, current.owner)
    slot_records.keep_cancelled(connection, [event_id], now(connection), cause)
    connection.execute(slot.delete().where(slot.c.event_id == event_id))
    for name, active in actives.items():
        occupancy = Occupancy(active.policy, SqlWindowReader(connection, name), chunk=1)
        window = align(current.scheduled_ms, active.policy.size_ms)
        if occupancy.taken(window):
            occupancy.release(window)
            write_occupancy(connection, name, occupancy)
    return current


def cancel_with_work(
    connection: Connection, carriers: Carriers, event_id: str, owner: str | None, cause: Cancellation
) -> AssignedSlot | None:
    """`cancel`, with the work of the slot. The work is locked before the config, as everywhere."""
    before = slot_records.find_all(connection, [event_id]).get(event_id)
    if before is not None and before.owner == owner and (carrier := carriers.get(owner)) is not None:
        carrier.cancel(connection, before)
    cancelled = cancel(connection, event_id, owner, cause)
    if before is not None and cancelled is not None and cancelled.scheduled_ms != before.scheduled_ms:
        # Moved, or booked again, during the wait for the locks: other work was cancelled.
        raise Conflict
    return cancelled


def cancel_many(
    connection: Connection, event_ids: Sequence[str], owner: str | None = None, cause: Cancellation = NO_CAUSE
) -> int:
    """Deletes those of these events' slots that are the owner's, and frees their room; their records are kept, with the
    cause. Returns their number."""
    if len(event_ids) == 1:
        try:
            return 0 if cancel(connection, event_ids[0], owner, cause) is None else 1
        except SlotOwned:
            return 0
    names = {
        name for assigned in slot_records.find_all(connection, event_ids).values() for name in assigned.config_names
    }
    actives = lock_all(connection, names)
    slots = [assigned for assigned in slot_records.find_all(connection, event_ids).values() if assigned.owner == owner]
    if any(not names.issuperset(assigned.config_names) for assigned in slots):
        # Booked again meanwhile, in part under configs that are not locked.
        raise Conflict
    for first in range(0, len(slots), MAX_IN_LIST):
        ids = [assigned.event_id for assigned in slots[first : first + MAX_IN_LIST]]
        slot_records.keep_cancelled(connection, ids, now(connection), cause)
        connection.execute(slot.delete().where(slot.c.event_id.in_(ids)))
    for name, active in actives.items():
        of_config = [assigned.scheduled_ms for assigned in slots if name in assigned.config_names]
        counts = Counter(align(scheduled_ms, active.policy.size_ms) for scheduled_ms in of_config)
        release_windows(connection, name, counts)
        # Several windows of one full run may have opened: the runs are written again from the counters.
        rebuild_runs(connection, name, active.policy, to_ms(now(connection)))
    return len(slots)
