"""Bulk inserts of payments on PostgreSQL: COPY for the payments, one statement for the queue."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from sqlalchemy.engine import Connection

from paceline.dispatch.encryption import Encryption, lookups
from paceline.dispatch.stores import enqueue_within
from paceline.durations import format_ms, to_ms
from paceline.sql.pipeline import Raw, copy, run_async
from paceline.sql.schema import now as database_clock
from paceline_payments.model import ITEM_TYPE, Terms
from paceline_payments.ports import NewPayment
from paceline_payments.rules import account_key
from paceline_payments.stores import seals
from paceline_payments.stores.encrypting import PARTY_COLUMNS
from paceline_payments.stores.statements import ACCEPTED_DETAIL, accepted_event, facts_row, to_minor

SOON = timedelta(seconds=5)
"""Payments that are due later do not wake a dispatcher."""

COPY_PAYMENTS = """
    COPY paceline_payment (payment_id, amount_minor, currency, payer_name, payer_iban, payer_account,
        payee_name, payee_iban, payee_account, instruction, execute_at, fee_minor, value_date, fingerprint, payer_key,
        status, scheduled_at, created_at, updated_at, config_name, feed_id, seal)
    FROM STDIN
"""
SAID_COLUMNS = (*PARTY_COLUMNS, "instruction")
NULL = "\\N"
COPY_AUDIT = """
    COPY paceline_payment_audit (payment_id, status_after, detail, created_at, actor, feed_id, line, seal) FROM STDIN
"""


def schedule(
    connection: Connection, payments: Sequence[NewPayment], encryption: Encryption | None = None, key: bytes = b""
) -> None:
    """Stores and queues new payments; an existing id fails on its key. Sorted by id, so that two writers wait for each
    other instead of deadlocking."""
    moment = database_clock(connection)
    rows, audit = _copy_texts(payments, moment, key, encryption)

    async def copy_both(raw: Raw) -> None:
        await copy(raw, COPY_PAYMENTS, rows)
        await copy(raw, COPY_AUDIT, audit)

    run_async(connection, copy_both)
    soon = datetime.now(UTC) + SOON
    hints = [ITEM_TYPE] if any(new.scheduled_time <= soon for new in payments) else []
    enqueue_within(connection, [new.item for new in payments], hints, encryption)


def _copy_texts(
    payments: Sequence[NewPayment], moment: datetime, key: bytes, encryption: Encryption | None
) -> tuple[str, str]:
    """Rows in COPY's text form. All texts are printable, so only the backslash needs escaping."""
    now = format_ms(to_ms(moment))
    rows, audit = [], []
    for new in payments:
        payment, terms, scheduled, print_, _, feed_id, by, line = new
        payment_id, amount, currency, payer, _, execute_at, config_name, _ = payment
        facts = facts_row(new, encryption)
        seal = seals.first_seal(seals.facts_of(facts), accepted_event(new), moment, key)
        said = "\t".join([_text(facts[name]) for name in SAID_COLUMNS])
        print_, payer_key = (lookups(encryption, number)[0] for number in (print_, account_key(payer.number)))
        row = (
            f"{_escape(payment_id)}\t{amount.replace('.', '')}\t{currency}\t{said}"
            f"\t{_same_for_many(execute_at, terms)}\t{print_}\t{payer_key}\tSCHEDULED"
            f"\t{format_ms(to_ms(scheduled))}\t{now}\t{now}"
        )
        config = NULL if config_name is None else _escape(config_name)
        rows.append(f"{row}\t{config}\t{feed_id or NULL}\t{seal}\n")
        origin = f"{NULL if by is None else _escape(by)}\t{feed_id or NULL}\t{NULL if line is None else line}"
        audit.append(f"{_escape(payment_id)}\tSCHEDULED\t{ACCEPTED_DETAIL}\t{now}\t{origin}\t{seal}\n")
    return "".join(rows), "".join(audit)


@lru_cache(maxsize=1000)
def _same_for_many(execute_at: datetime, terms: Terms) -> str:
    return f"{format_ms(to_ms(execute_at))}\t{to_minor(terms.fee)}\t{terms.value_date}"


def _text(text: str | None) -> str:
    return NULL if text is None else _escape(text)


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\") if "\\" in text else text
