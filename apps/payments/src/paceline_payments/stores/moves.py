"""Payment, queue item and slot move together: plain functions over a connection, each inside one transaction.

Rows are locked in one order everywhere, queue item, payment, slot config, and in the order of their ids: two
transactions that move the same payments wait for each other instead of deadlocking.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from paceline.dispatch.changes import checked_redirection
from paceline.dispatch.encryption import Encryption
from paceline.dispatch.model import ItemMove
from paceline.dispatch.status import Status
from paceline.dispatch.stores import admin_queries
from paceline.dispatch.stores.rows import chunks, of_items
from paceline.dispatch.stores.tables import queue
from paceline.errors import Conflict
from paceline.slots.listing import Cancellation
from paceline.slots.stores import cancelling
from paceline.sql.in_lists import where_in
from paceline.sql.schema import Instant
from paceline.sql.schema import now as database_clock
from paceline_payments.lifecycle import PaymentEvent, PaymentStatus, dead_letter_event, refusal, transition
from paceline_payments.model import ITEM_TYPE, OWNER, PaymentRecord, slot_id
from paceline_payments.stores import seals
from paceline_payments.stores.statements import reason_columns, record
from paceline_payments.stores.tables import payment, payment_audit

QUEUE = "queue"
"""The actor of what follows from an item: a dead letter, or a change in the queue, which has an audit of its own."""
DISCARDED = "discarded from the queue"
REQUEUED = "requeued by an operator"
TWO_PERSONS = "its outcome was UNKNOWN once, and four eyes are required: two persons call paceline payments retry"
GIVEN_UP = Cancellation("its payment will not be made", OWNER)
"""The cancellation that is recorded with a payment's slot."""
_BY_ITEM = {Status.READY: PaymentEvent.RETRY, Status.CANCELLED: PaymentEvent.DISCARD}
"""The event of a payment whose item an operator moves."""


class _Standing(NamedTuple):
    """The status of a payment whose row is locked."""

    status: PaymentStatus
    begun: bool


class _Step(NamedTuple):
    """A payment's next step, decided."""

    payment_id: str
    before: PaymentStatus
    event: PaymentEvent
    detail: str | None


class PaymentFollower:
    """The `Follower` of payments: discarding, requeueing or dead-lettering a payment's item moves the payment and its
    slot, too. Items without a payment are ignored: other programs may queue items of this type. With `four_eyes`,
    payments that were in doubt are not requeued here: their retry takes two persons."""

    def __init__(self, key: bytes = b"", *, four_eyes: bool = False) -> None:
        self._key = key
        self._four_eyes = four_eyes

    def refusals(self, within: Connection, moves: Sequence[ItemMove]) -> dict[str, str]:
        standings = _locked(within, [move.item_id for move in moves])
        refused: dict[str, str] = {}
        if self._four_eyes:
            requeued = [move.item_id for move in moves if move.after is Status.READY]
            refused |= dict.fromkeys(_ever_unknown(within, requeued), TWO_PERSONS)
        for move in moves:
            standing = standings.get(move.item_id)
            if standing is not None:
                reason = refusal(standing.status, _BY_ITEM[move.after], begun=standing.begun)
                if reason is not None:
                    refused[move.item_id] = reason
        return refused

    def follow(self, within: Connection, moves: Sequence[ItemMove], now: datetime) -> None:
        standings = _locked(within, [move.item_id for move in moves])
        steps = []
        for move in moves:
            if move.after is Status.UNKNOWN:
                continue  # its execution has said of the payment what it knows
            standing = standings.get(move.item_id)
            event = _BY_ITEM.get(move.after) or (
                dead_letter_event(move.verdict, begun=standing.begun) if standing else PaymentEvent.UNSENT
            )
            if standing is None or refusal(standing.status, event, begun=standing.begun) is not None:
                continue
            detail = move.error if move.after is Status.DEAD_LETTER else _detail(move, standing.status)
            steps.append(_Step(move.item_id, standing.status, event, detail))
        _write(within, steps, now, actor=QUEUE, key=self._key)


def move(
    connection: Connection,
    payment_ids: Sequence[str],
    event: PaymentEvent,
    detail: str,
    reference: str | None = None,
    by: str | None = None,
    key: bytes = b"",
) -> dict[str, str]:
    """Moves each payment with its item and slot, by an event that an operator or the inquiry causes. Returns, by id,
    why a payment could not be moved; such a payment is unchanged."""
    ids = sorted(set(payment_ids))
    items = _locked_items(connection, ids)
    standings = _locked(connection, ids)
    moment = database_clock(connection)
    refused: dict[str, str] = {}
    steps: list[_Step] = []
    redirected: dict[Status, list[str]] = {}
    for payment_id in ids:
        standing = standings.get(payment_id)
        if standing is None:
            refused[payment_id] = "there is no such payment"
            continue
        reason = refusal(standing.status, event, begun=standing.begun)
        target = None if reason is not None else transition(standing.status, event).item
        if reason is None and target is not None and target is not items.get(payment_id):
            reason = _item_refusal(items.get(payment_id), target, event)
            if reason is None:
                redirected.setdefault(target, []).append(payment_id)
        if reason is not None:
            refused[payment_id] = reason
            continue
        steps.append(_Step(payment_id, standing.status, event, detail))
    for target, some in redirected.items():
        in_flight = event is PaymentEvent.CANCEL
        admin_queries.redirect(connection, ITEM_TYPE, some, target, moment, in_flight=in_flight)
    _write(connection, steps, moment, reference, actor=by, key=key)
    return refused


def begin(
    connection: Connection, payment_ids: Sequence[str], encryption: Encryption | None = None
) -> dict[str, PaymentRecord]:
    """Marks payments that are SCHEDULED as begun now. Returns all that exist, in their earlier state."""
    records: dict[str, PaymentRecord] = {}
    for some in where_in(connection, payment.c.payment_id, sorted(set(payment_ids))):
        rows = connection.execute(sa.select(payment).where(some).order_by(payment.c.payment_id).with_for_update())
        records.update((row.payment_id, record(row, encryption)) for row in rows)
    # Also if it has begun before: a late `withdraw` of an earlier beginning must not undo this one.
    waiting = [payment_id for payment_id, kept in records.items() if kept.status is PaymentStatus.SCHEDULED]
    if waiting:
        moment = database_clock(connection)
        sent_at = sa.func.coalesce(payment.c.sent_at, sa.literal(moment, Instant))
        _update(connection, waiting, {"begun_at": moment, "sent_at": sent_at})
        records.update((payment_id, replace(records[payment_id], began_now=moment)) for payment_id in waiting)
    return records


def withdraw(connection: Connection, payment_id: str, began: datetime, reason: str | None) -> None:
    """Undoes the `begin` of that time, of a payment of which no call has left."""
    is_same = payment.c.begun_at == began
    waits = payment.c.status == PaymentStatus.SCHEDULED.value
    sent_at = sa.case((payment.c.sent_at == began, sa.null()), else_=payment.c.sent_at)
    connection.execute(
        sa.update(payment)
        .where(payment.c.payment_id == payment_id, waits, is_same)
        .values(begun_at=None, sent_at=sent_at, reason=reason)
    )


def _write(
    connection: Connection,
    steps: Sequence[_Step],
    moment: datetime,
    reference: str | None = None,
    *,
    actor: str | None,
    key: bytes,
) -> None:
    """Writes decided steps: the payments, by status and reason, their audit, and the slots that are given back."""
    groups: dict[tuple[PaymentStatus, PaymentStatus, str | None, PaymentEvent], list[str]] = {}
    freed, audited = [], []
    for payment_id, before, event, detail in steps:
        row = transition(before, event)
        groups.setdefault((before, row.after, detail, event), []).append(payment_id)
        audited.append(seals.Event(payment_id, before, row.after, detail, actor))
        if row.frees_slot:
            freed.append(slot_id(payment_id))
    for (before, after, detail, event), ids in groups.items():
        values: dict[str, Any] = {"status": after.value, "updated_at": moment}
        if after is not before:
            values |= reason_columns(after, detail)
        elif event is not PaymentEvent.RETRY_REQUESTED:
            values["reason"] = None if event is PaymentEvent.RETRY else detail
        if reference is not None:
            values["reference"] = reference
        _update(connection, ids, values)
    seals.append(connection, audited, moment, key)
    if freed:
        cancelling.cancel_many(connection, freed, OWNER, GIVEN_UP)


def _update(connection: Connection, ids: Sequence[str], values: Mapping[str, Any]) -> None:
    if ids:
        for some in where_in(connection, payment.c.payment_id, ids):
            connection.execute(sa.update(payment).where(some).values(**values))


def _locked(connection: Connection, ids: Iterable[str]) -> dict[str, _Standing]:
    standings: dict[str, _Standing] = {}
    for some in where_in(connection, payment.c.payment_id, sorted(set(ids))):
        rows = connection.execute(
            sa.select(payment.c.payment_id, payment.c.status, payment.c.begun_at)
            .where(some)
            .order_by(payment.c.payment_id)
            .with_for_update()
        )
        standings.update(
            (row.payment_id, _Standing(PaymentStatus(row.status), row.begun_at is not None)) for row in rows
        )
    return standings


def _ever_unknown(connection: Connection, ids: Iterable[str]) -> set[str]:
    """Those of these payments that are FAILED, and were UNKNOWN before."""
    found: set[str] = set()
    was_unknown = sa.exists().where(
        payment_audit.c.payment_id == payment.c.payment_id,
        payment_audit.c.status_after == PaymentStatus.UNKNOWN.value,
    )
    for some in where_in(connection, payment.c.payment_id, sorted(set(ids))):
        statement = sa.select(payment.c.payment_id)
        failed = payment.c.status == PaymentStatus.FAILED.value
        found.update(connection.execute(statement.where(some, failed, was_unknown)).scalars())
    return found


def _locked_items(connection: Connection, ids: Sequence[str]) -> dict[str, Status]:
    items: dict[str, Status] = {}
    for some in chunks(ids):
        rows = connection.execute(
            sa.select(queue.c.item_id, queue.c.queue_status)
            .where(of_items(ITEM_TYPE, some))
            .order_by(queue.c.item_id)
            .with_for_update()
        )
        items.update((row.item_id, Status(row.queue_status)) for row in rows)
    return items


def _item_refusal(status: Status | None, target: Status, event: PaymentEvent) -> str | None:
    if status is None:
        return "it has left the queue; send it as a new payment"
    try:
        checked_redirection(status, target, "", in_flight=event is PaymentEvent.CANCEL)
    except Conflict:
        return f"its item in the queue is {status}"
    return None


def _detail(move: ItemMove, status: PaymentStatus) -> str:
    if move.after is Status.READY:
        return REQUEUED
    # A failed payment keeps its reason: discarding only means that it will not be retried.
    return f"{DISCARDED}; before: {move.error}" if move.error and status is not PaymentStatus.SCHEDULED else DISCARDED
