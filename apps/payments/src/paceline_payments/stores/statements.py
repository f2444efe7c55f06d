"""Payments in a database: plain functions over a connection, written once for SQLite, PostgreSQL and Oracle."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from paceline.dispatch.encryption import Encryption, lookups
from paceline.dispatch.stores import enqueue_within
from paceline.dispatch.stores.tables import queue
from paceline.sql.counting import count_up_to
from paceline.sql.in_lists import where_in
from paceline.sql.inserting import insert_rows
from paceline.sql.prefix import begins_with
from paceline.sql.schema import now as database_clock
from paceline_payments.currencies import MINOR_UNITS
from paceline_payments.model import (
    FINAL_STATUSES,
    ITEM_TYPE,
    Payment,
    PaymentAudit,
    PaymentFilter,
    PaymentRecord,
    PaymentStatus,
    StatusChange,
    Terms,
)
from paceline_payments.ports import DuplicateQuery, NewPayment, PaymentLoad
from paceline_payments.rules import account_key
from paceline_payments.stores import seals
from paceline_payments.stores.encrypting import read_said, said_columns
from paceline_payments.stores.tables import payment, payment_audit

PRUNE_PAGE = 2000
_WITH_REASON = (PaymentStatus.FAILED, PaymentStatus.CANCELLED, PaymentStatus.UNKNOWN, PaymentStatus.RETURNED)
ACCEPTED_DETAIL = "checked, slotted and queued"
EXECUTION = "execution"
"""The actor of what the execution finds out."""


def find(
    connection: Connection, payment_ids: Sequence[str], encryption: Encryption | None = None
) -> dict[str, PaymentRecord]:
    records: dict[str, PaymentRecord] = {}
    for some in where_in(connection, payment.c.payment_id, payment_ids):
        rows = connection.execute(sa.select(payment).where(some))
        records.update((row.payment_id, record(row, encryption)) for row in rows)
    return records


def history(connection: Connection, payment_id: str) -> list[PaymentAudit]:
    rows = connection.execute(
        sa.select(
            payment_audit.c.status_before,
            payment_audit.c.status_after,
            payment_audit.c.detail,
            payment_audit.c.created_at,
            payment_audit.c.actor,
            payment_audit.c.feed_id,
            payment_audit.c.line,
        )
        .where(payment_audit.c.payment_id == payment_id)
        .order_by(payment_audit.c.audit_id)
    )
    return [PaymentAudit(*row) for row in rows]


def list_payments(
    connection: Connection,
    selection: PaymentFilter,
    limit: int,
    after: str | None,
    last_first: bool = False,
    encryption: Encryption | None = None,
) -> list[PaymentRecord]:
    key = payment.c.payment_id
    statement = sa.select(payment).where(*conditions(selection)).limit(limit)
    statement = statement.order_by(key.desc() if last_first else key)
    if after is not None:
        statement = statement.where(key < after if last_first else key > after)
    return [record(row, encryption) for row in connection.execute(statement)]


def count_matching(connection: Connection, selection: PaymentFilter, at_most: int) -> int:
    return count_up_to(connection, payment, at_most, *conditions(selection))


def conditions(selection: PaymentFilter) -> list[sa.ColumnElement[bool]]:
    """A filter as conditions on the table."""
    status, feed_id, scheduled_from, scheduled_to, prefix = selection
    chosen: list[sa.ColumnElement[bool]] = []
    if status is not None:
        chosen.append(payment.c.status == status.value)
    if feed_id is not None:
        chosen.append(payment.c.feed_id == feed_id)
    if scheduled_from is not None:
        chosen.append(payment.c.scheduled_at >= scheduled_from)
    if scheduled_to is not None:
        chosen.append(payment.c.scheduled_at < scheduled_to)
    if prefix is not None:
        chosen.append(begins_with(payment.c.payment_id, prefix))
    return chosen


def find_duplicates(
    connection: Connection, queries: Sequence[DuplicateQuery], within: timedelta, encryption: Encryption | None = None
) -> dict[str, str]:
    rows: dict[int, list[tuple[str, datetime]]] = {}
    asked = {query.fingerprint: lookups(encryption, query.fingerprint) for query in queries}
    for some in where_in(
        connection, payment.c.fingerprint, sorted({print_ for all_ in asked.values() for print_ in all_})
    ):
        matches = connection.execute(
            sa.select(payment.c.fingerprint, payment.c.payment_id, payment.c.execute_at)
            .where(some, payment.c.status != PaymentStatus.CANCELLED.value)
            .order_by(payment.c.created_at, payment.c.payment_id)
        )
        for print_, payment_id, execute_at in matches:
            rows.setdefault(print_, []).append((payment_id, execute_at))
    duplicates: dict[str, str] = {}
    for query in queries:
        alike = (row for print_ in asked[query.fingerprint] for row in rows.get(print_, ()))
        for payment_id, execute_at in alike:
            if payment_id != query.payment_id and abs(execute_at - query.execute_at) <= within:
                duplicates.setdefault(query.payment_id, payment_id)
    return duplicates


def schedule(
    connection: Connection, payments: Sequence[NewPayment], encryption: Encryption | None = None, key: bytes = b""
) -> None:
    """Stores and queues new payments; an existing id fails on its key."""
    moment = database_clock(connection)
    rows, audited = [], []
    for new in payments:
        row, event = _new_row(new, moment, encryption), accepted_event(new)
        row["seal"] = seals.first_seal(seals.facts_of(row), event, moment, key)
        rows.append(row)
        audited.append(seals.audit_row(event, row["seal"], moment))
    insert_rows(connection, payment, rows)
    insert_rows(connection, payment_audit, audited)
    enqueue_within(connection, [new.item for new in payments], encryption=encryption)


def accepted_event(new: NewPayment) -> seals.Event:
    """The event that makes a payment."""
    return seals.Event(
        new.payment.payment_id, None, PaymentStatus.SCHEDULED, ACCEPTED_DETAIL, new.by, new.feed_id, new.line
    )


def advance(connection: Connection, changes: Sequence[StatusChange], key: bytes = b"") -> list[bool]:
    moment = database_clock(connection)
    made: dict[str, bool] = {}
    # In the order of their keys, so that two writers wait for each other instead of deadlocking.
    for change in sorted(changes):
        values: dict[str, Any] = {"status": change.after.value, "updated_at": moment}
        if change.reference is not None:
            values["reference"] = change.reference
        values |= reason_columns(change.after, change.detail)
        changed = connection.execute(
            sa.update(payment)
            .where(payment.c.payment_id == change.payment_id, payment.c.status == change.before.value)
            .values(**values)
        )
        made[change.payment_id] = changed.rowcount == 1
    events = [
        seals.Event(change.payment_id, change.before, change.after, change.detail, EXECUTION)
        for change in changes
        if made[change.payment_id]
    ]
    seals.append(connection, events, moment, key)
    return [made[change.payment_id] for change in changes]


def reason_columns(after: PaymentStatus, detail: str | None) -> dict[str, Any]:
    """The columns that a change of status writes beside it: the reason, or the start of a new attempt."""
    if after in _WITH_REASON:
        return {"reason": detail}
    if after is PaymentStatus.SCHEDULED:
        return {"reason": None, "begun_at": None}
    return {"reason": None}


def page_end(connection: Connection, after: str) -> str | None:
    """The last of the next `PRUNE_PAGE` ids past `after`; None if there is none. Pages walk the whole table once, by
    its key: an index on status and time would slow down every write for the sake of a nightly job."""
    page = sa.select(payment.c.payment_id).order_by(payment.c.payment_id).limit(PRUNE_PAGE)
    if after:  # to Oracle the empty text is NULL, and nothing is past that
        page = page.where(payment.c.payment_id > after)
    last: str | None = connection.execute(sa.select(sa.func.max(page.subquery().c.payment_id))).scalar()
    return last


def prune(connection: Connection, before: datetime, after: str, last: str) -> int:
    """Deletes prunable payments past `after`, up to `last`."""
    queued = sa.select(queue.c.item_id).where(queue.c.item_type == ITEM_TYPE, queue.c.item_id == payment.c.payment_id)
    conditions = [
        payment.c.payment_id <= last,
        payment.c.status.in_([status.value for status in FINAL_STATUSES]),
        payment.c.execute_at < before,
        payment.c.updated_at < before,
        ~queued.exists(),
    ]
    if after:
        conditions.append(payment.c.payment_id > after)
    old = sa.select(payment.c.payment_id).where(*conditions)
    connection.execute(sa.delete(payment_audit).where(payment_audit.c.payment_id.in_(old)))
    return connection.execute(sa.delete(payment).where(*conditions)).rowcount


def measure(connection: Connection) -> PaymentLoad:
    oldest = sa.func.min(payment.c.scheduled_at, type_=payment.c.scheduled_at.type)
    statement = sa.select(payment.c.status, sa.func.count(), oldest).group_by(payment.c.status)
    rows = {PaymentStatus(status): (number, first) for status, number, first in connection.execute(statement)}
    moment = database_clock(connection)
    _, first = rows.get(PaymentStatus.SCHEDULED, (0, moment))
    return PaymentLoad({status: number for status, (number, _) in rows.items()}, max(timedelta(0), moment - first))


def record(row: Row[Any], encryption: Encryption | None = None) -> PaymentRecord:
    """A row as the domain has it."""
    payer, payee, instruction = read_said(encryption, row)
    return PaymentRecord(
        Payment(
            row.payment_id,
            from_minor(row.amount_minor, row.currency),
            row.currency,
            payer,
            payee,
            row.execute_at.astimezone(UTC),
            row.config_name,
            instruction,
        ),
        Terms(from_minor(row.fee_minor, row.currency), date.fromisoformat(row.value_date)),
        PaymentStatus(row.status),
        row.scheduled_at,
        row.reference,
        row.reason,
        row.created_at,
        row.updated_at,
        row.begun_at,
        row.feed_id,
        sent_at=row.sent_at,
    )


def to_minor(amount: str) -> int:
    """`12.30` as 1230: amounts always have all the decimals of their currency."""
    return int(amount.replace(".", ""))


def from_minor(minor: int, currency: str) -> str:
    digits = MINOR_UNITS[currency]
    if not digits:
        return str(minor)
    text = str(minor).rjust(digits + 1, "0")
    return f"{text[:-digits]}.{text[-digits:]}"


def facts_row(new: NewPayment, encryption: Encryption | None = None) -> dict[str, Any]:
    """What a payment says, as columns. Encrypted, it differs from call to call."""
    source = new.payment
    return {
        "payment_id": source.payment_id,
        "amount_minor": to_minor(source.amount),
        "currency": source.currency,
        **said_columns(encryption, source),
        "execute_at": source.execute_at,
        "config_name": source.config_name,
        "feed_id": new.feed_id,
    }


def _new_row(new: NewPayment, moment: datetime, encryption: Encryption | None) -> dict[str, Any]:
    return {
        **facts_row(new, encryption),
        "fee_minor": to_minor(new.terms.fee),
        "value_date": new.terms.value_date.isoformat(),
        "fingerprint": lookups(encryption, new.fingerprint)[0],
        "payer_key": lookups(encryption, account_key(new.payment.payer.number))[0],
        "status": PaymentStatus.SCHEDULED.value,
        "scheduled_at": new.scheduled_time,
        "created_at": moment,
        "updated_at": moment,
    }
