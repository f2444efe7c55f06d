"""The slots of items. When items end, their slots are cancelled in the same transaction.

An item has the slot that it was queued with; if it names none, the slot of the event with its id. Its time is the
slot's. A slot with an owner is cancelled by that application only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy.engine import Connection

from paceline.dispatch.model import EnqueueRequest, Item
from paceline.dispatch.status import IN_FLIGHT
from paceline.errors import SlotCancelled
from paceline.slots.listing import Cancellation
from paceline.slots.model import AssignedSlot
from paceline.slots.stores import cancelling, slot_records

WITH_ITEM = Cancellation("its item was cancelled", "queue")
"""The cause in the record of such a slot."""


def give_back(connection: Connection, items: Sequence[Item], now: datetime) -> None:
    """Cancels the slots of these items, which are locked and given as they were before they ended. A slot whose item
    was in flight at its time has been used: it is kept."""
    unused = [item for item in items if not (item.status in IN_FLIGHT and item.execute_at <= now)]
    carried = carried_slots(connection, unused)
    if carried:
        cancelling.cancel_many(
            connection, sorted({_event(item) for item in unused if item.item_id in carried}), None, WITH_ITEM
        )


def at_their_times(connection: Connection, requests: Sequence[EnqueueRequest]) -> list[EnqueueRequest]:
    """Requests with the current times of their slots, which a re-plan may have moved since the booking. On PostgreSQL,
    `ENQUEUE_AT` does the same.

    The slots are locked: this waits for a re-plan that moves one now, and a later re-plan sees the item. SQLite has one
    writer.

    Raises:
        SlotCancelled: a request names a slot that was cancelled.
    """
    one_writer = connection.dialect.name == "sqlite"
    requested = {
        request.slot_id or request.item_id: request
        for request in requests
        if request.execute_at is not None and (request.slotted or not one_writer)
    }
    if not requested:
        return list(requests)
    booked = slot_records.find_all(connection, sorted(requested))
    carried = [
        event
        for event, slot in booked.items()
        if slot.owner is None and (requested[event].slotted or slot.scheduled_time == requested[event].execute_at)
    ]
    current = booked if one_writer else slot_records.find_all(connection, sorted(carried), lock=True)
    times = {event: current[event].scheduled_time for event in carried if event in current}
    _check_cancelled(connection, requests, booked, current)
    return [
        request._replace(execute_at=times.get(request.slot_id or request.item_id, request.execute_at))
        if request.execute_at is not None
        else request
        for request in requests
    ]


def _check_cancelled(
    connection: Connection,
    requests: Sequence[EnqueueRequest],
    booked: Mapping[str, AssignedSlot],
    current: Mapping[str, AssignedSlot],
) -> None:
    """A slot that is not there is a cancelled one only if there is a record of that: it may be in another database."""
    missing = [
        (request.slot_id or request.item_id, request.execute_at, (request.item_type, request.item_id))
        for request in requests
        if request.slotted and request.execute_at is not None
        if (request.slot_id or request.item_id) not in current
    ]
    if not missing:
        return
    # One that was found, and is gone now that its lock was waited for, has just been cancelled.
    gone = {event for event, _, _ in missing if event in booked and booked[event].owner is None}
    unbooked = {(event, at) for event, at, _ in missing if event not in booked}
    cancelled = gone | slot_records.cancelled_among(connection, unbooked)
    if cancelled:
        raise SlotCancelled(sorted(cancelled), [item for event, _, item in missing if event in cancelled])


def carried_slots(connection: Connection, items: Sequence[Item]) -> set[str]:
    """Those of these items, all of one type, that have a slot."""
    booked = slot_records.find_all(connection, list({_event(item) for item in items}))
    carried: set[str] = set()
    for item in items:
        slot = booked.get(_event(item))
        if slot is not None and slot.owner is None and slot.scheduled_time == item.execute_at:
            carried.add(item.item_id)
    return carried


def _event(item: Item) -> str:
    return item.slot_id or item.item_id
