"""Payments and their queue items move with their slots."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from paceline.dispatch.stores.slot_carrier import NewTime, item_standings, move_items
from paceline.durations import from_ms
from paceline.errors import SlotInUse
from paceline.slots.carriers import SlotMove, Standing
from paceline.slots.model import AssignedSlot
from paceline.sql.in_lists import where_in
from paceline_payments.lifecycle import FINAL_STATUSES, PaymentStatus
from paceline_payments.model import ITEM_TYPE, SLOT_PREFIX
from paceline_payments.stores.tables import payment

_MOVE = (
    payment.update()
    .where(payment.c.payment_id == sa.bindparam("b_id"))
    .values(scheduled_at=sa.bindparam("b_at"), updated_at=sa.bindparam("b_now"))
)
_MOVE_ALL = sa.text(
    """
    UPDATE paceline_payment AS payment
    SET scheduled_at = 'epoch'::timestamptz + moved.at * interval '1 ms', updated_at = :now
    FROM unnest(CAST(:ids AS text[]), CAST(:times AS bigint[])) AS moved(payment_id, at)
    WHERE payment.payment_id = moved.payment_id
    """
)


class PaymentCarrier:
    """The `SlotCarrier` of payments: a slot may move while its payment is SCHEDULED and its item waits.

    A slot without a payment yet stays: the payment is being accepted, with the slot's time.
    """

    def standings(self, within: Connection, slots: Sequence[AssignedSlot], *, lock: bool) -> dict[str, Standing]:
        times = {_payment_id(slot): slot.scheduled_time for slot in slots}
        items = {item_id: standing for _, item_id, standing in item_standings(within, [ITEM_TYPE], times, lock=lock)}
        waiting = [item_id for item_id, standing in items.items() if standing is Standing.WAITING]
        scheduled = _scheduled(within, waiting, lock=lock)
        return {
            slot.event_id: _standing(items.get(_payment_id(slot)), _payment_id(slot) in scheduled) for slot in slots
        }

    def known(self, within: Connection, slots: Sequence[AssignedSlot]) -> set[str]:
        ids = {_payment_id(slot): slot.event_id for slot in slots}
        known: set[str] = set()
        for some in where_in(within, payment.c.payment_id, sorted(ids)):
            known.update(ids[name] for name in within.execute(sa.select(payment.c.payment_id).where(some)).scalars())
        return known

    def move(self, within: Connection, moves: Sequence[SlotMove], now: datetime) -> None:
        times = {_payment_id(move.slot): move.scheduled_ms for move in moves}
        move_items(within, [NewTime(ITEM_TYPE, name, at) for name, at in times.items()], now)
        if not times:
            return
        if within.dialect.name == "postgresql":
            within.execute(_MOVE_ALL, {"ids": list(times), "times": list(times.values()), "now": now})
        else:
            within.execute(_MOVE, [{"b_id": name, "b_at": from_ms(at), "b_now": now} for name, at in times.items()])

    def cancel(self, within: Connection, slot: AssignedSlot) -> None:
        payment_id = _payment_id(slot)
        kept = within.execute(
            sa.select(payment.c.status).where(payment.c.payment_id == payment_id).with_for_update()
        ).scalar()
        if kept is not None and PaymentStatus(kept) not in FINAL_STATUSES:
            raise SlotInUse(slot.event_id, f"payment {payment_id!r} is {kept}; cancel the payment instead")


def _standing(item: Standing | None, is_scheduled: bool) -> Standing:
    if item is Standing.WAITING:
        return Standing.WAITING if is_scheduled else Standing.BEGUN
    return Standing.BEGUN if item is None else item


def _scheduled(connection: Connection, ids: Sequence[str], *, lock: bool) -> set[str]:
    """Those of these payments whose execution has not begun, and that no other transaction has locked."""
    scheduled: set[str] = set()
    for some in where_in(connection, payment.c.payment_id, sorted(ids)):
        query = sa.select(payment.c.payment_id).where(
            some, payment.c.status == PaymentStatus.SCHEDULED.value, payment.c.begun_at.is_(None)
        )
        scheduled.update(connection.execute(query.with_for_update(skip_locked=True) if lock else query).scalars())
    return scheduled


def _payment_id(slot: AssignedSlot) -> str:
    return slot.event_id.removeprefix(SLOT_PREFIX)
