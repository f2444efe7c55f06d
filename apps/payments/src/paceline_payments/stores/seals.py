"""The history of each payment as a hash chain. Its first link covers what the payment says; each later one an event and
the link before; the payment's row holds the last. With `PACELINE_AUDIT_KEY`, which is not in the database, a writer to
the database can't forge one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from paceline.durations import to_ms
from paceline.sql.hash_chain import GENESIS, link_hash
from paceline.sql.in_lists import where_in
from paceline.sql.inserting import insert_rows
from paceline_payments.lifecycle import PaymentStatus
from paceline_payments.stores.tables import payment, payment_audit

PAGE = 1000
MAX_PROBLEMS = 100
FACTS = (
    "amount_minor",
    "currency",
    "payer_name",
    "payer_iban",
    "payer_account",
    "payee_name",
    "payee_iban",
    "payee_account",
    "execute_at",
    "config_name",
    "instruction",
    "feed_id",
)
"""What a payment says: never changed."""


_SEAL_ALL = sa.text(
    """
    UPDATE paceline_payment AS payment SET seal = made.seal
    FROM unnest(CAST(:ids AS text[]), CAST(:seals AS text[])) AS made(payment_id, seal)
    WHERE payment.payment_id = made.payment_id
    """
)


class Event(NamedTuple):
    """A line of history, before it is sealed."""

    payment_id: str
    before: PaymentStatus | None
    after: PaymentStatus
    detail: str | None
    actor: str | None
    feed_id: str | None = None
    line: int | None = None


def facts_of(row: Mapping[str, Any]) -> list[object]:
    """What the first link covers of a payment's row."""
    return [_plain(row[name]) for name in FACTS]


def first_seal(facts: Sequence[object], event: Event, moment: datetime, key: bytes) -> str:
    """The link of the event that makes a payment."""
    return link_hash(GENESIS, 0, [*_contents(event, moment), *facts], key)


def next_seal(before: str, event: Event, moment: datetime, key: bytes) -> str:
    """The link of a later event."""
    return link_hash(before, 1, _contents(event, moment), key)


def audit_row(event: Event, seal: str, moment: datetime) -> dict[str, Any]:
    """An event as a row."""
    return {
        "payment_id": event.payment_id,
        "status_before": None if event.before is None else event.before.value,
        "status_after": event.after.value,
        "detail": event.detail,
        "actor": event.actor,
        "feed_id": event.feed_id,
        "line": event.line,
        "seal": seal,
        "created_at": moment,
    }


def append(connection: Connection, events: Sequence[Event], moment: datetime, key: bytes) -> None:
    """Appends events, at most one of each payment, to the histories. The payments' rows are locked by the caller."""
    seals: dict[str, str] = {}
    for some in where_in(connection, payment.c.payment_id, sorted(event.payment_id for event in events)):
        rows = connection.execute(sa.select(payment.c.payment_id, payment.c.seal).where(some))
        seals.update((row.payment_id, row.seal) for row in rows)
    made = {event.payment_id: next_seal(seals[event.payment_id], event, moment, key) for event in events}
    if made and connection.dialect.name == "postgresql":
        # Many rows by one statement: to its driver, many parameters are as many statements.
        connection.execute(_SEAL_ALL, {"ids": list(made), "seals": list(made.values())})
    elif made:
        connection.execute(
            sa.update(payment).where(payment.c.payment_id == sa.bindparam("b_id")).values(seal=sa.bindparam("b_seal")),
            [{"b_id": payment_id, "b_seal": seal} for payment_id, seal in made.items()],
        )
    insert_rows(connection, payment_audit, [audit_row(event, made[event.payment_id], moment) for event in events])


def verify_page(connection: Connection, after: str, key: bytes) -> tuple[int, str | None, list[str]]:
    """Compares a page of payments past an id with their histories: how many, the last id, and what is wrong."""
    rows = connection.execute(
        sa.select(payment).where(payment.c.payment_id > after).order_by(payment.c.payment_id).limit(PAGE)
        if after
        else sa.select(payment).order_by(payment.c.payment_id).limit(PAGE)
    ).all()
    if not rows:
        return 0, None, []
    found = sa.select(payment_audit).order_by(payment_audit.c.payment_id, payment_audit.c.audit_id)
    within = payment_audit.c.payment_id.between(rows[0].payment_id, rows[-1].payment_id)
    events = {
        payment_id: list(some)
        for payment_id, some in groupby(connection.execute(found.where(within)), key=lambda row: row.payment_id)
    }
    problems = [problem for row in rows for problem in _problems(row, events.pop(row.payment_id, []), key)]
    problems += [f"payment {payment_id} is gone, and its history is not" for payment_id in events]
    return len(rows), rows[-1].payment_id, problems


def _problems(row: Row[Any], events: Iterable[Row[Any]], key: bytes) -> list[str]:
    seal, status = GENESIS, None
    for number, event in enumerate(events, start=1):
        told = Event(
            row.payment_id,
            None if event.status_before is None else PaymentStatus(event.status_before),
            PaymentStatus(event.status_after),
            event.detail,
            event.actor,
            event.feed_id,
            event.line,
        )
        moment = event.created_at
        if number == 1:
            seal = first_seal(facts_of(row._asdict()), told, moment, key)
            words = f"payment {row.payment_id} was changed: what it says differs from what was accepted"
        else:
            seal = next_seal(seal, told, moment, key)
            words = f"payment {row.payment_id} was changed: line {number} of its history has another hash"
        if seal != event.seal:
            return [words]
        status = event.status_after
    if seal != row.seal:
        return [f"payment {row.payment_id} was changed: its history does not end where it should"]
    if status != row.status:
        return [f"payment {row.payment_id} was changed: it is {row.status}, and its history says {status}"]
    return []


def _contents(event: Event, moment: datetime) -> list[object]:
    before = None if event.before is None else event.before.value
    origin = [event.actor, event.feed_id, event.line]
    return [event.payment_id, before, event.after.value, event.detail, *origin, to_ms(moment)]


def _plain(value: Any) -> object:
    if isinstance(value, datetime):
        return to_ms(value)
    return value if value != "" else None  # the empty text is NULL to Oracle
