"""The slots of items that end: they are given back in the same transaction.

An item carries the slot of the event that has its id, if its time is the slot's. A slot that belongs to an application
is that application's to give back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from sqlalchemy.engine import Connection

from headgate.dispatch.model import Item
from headgate.dispatch.status import IN_FLIGHT
from headgate.slots.listing import Cancellation
from headgate.slots.stores import cancelling, slot_records

WITH_ITEM = Cancellation("its item was cancelled", "queue")
"""What the record of such a slot says."""


def give_back(connection: Connection, items: Sequence[Item], now: datetime) -> None:
    """Cancels the slots that these items carry; the items are locked, and stand as they did before they ended. A slot
    whose item was in flight at its time has been used: it stays."""
    unused = [item for item in items if not (item.status in IN_FLIGHT and item.execute_at <= now)]
    event_ids = carried_slots(connection, unused)
    if event_ids:
        cancelling.cancel_many(connection, sorted(event_ids), None, WITH_ITEM)


def carried_slots(connection: Connection, items: Iterable[Item]) -> set[str]:
    """The events whose slots these items carry."""
    times = {item.item_id: item.execute_at for item in items}
    booked = slot_records.find_all(connection, list(times))
    return {
        event_id for event_id, slot in booked.items() if slot.owner is None and slot.scheduled_time == times[event_id]
    }
