"""Keeping many payments at once on PostgreSQL: COPY for the payments, one statement for the queue."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from sqlalchemy.engine import Connection

from headgate.apps.payments.model import ITEM_TYPE
from headgate.apps.payments.ports import NewPayment
from headgate.apps.payments.stores.statements import ACCEPTED_DETAIL, to_minor
from headgate.dispatch.encryption import Encryption
from headgate.dispatch.stores import enqueue_within
from headgate.durations import to_ms
from headgate.sql.pipeline import Raw, copy, run_async
from headgate.sql.schema import instant_text
from headgate.sql.schema import now as database_clock

SOON = timedelta(seconds=5)
"""Payments due later are no reason to wake a dispatcher."""

COPY_PAYMENTS = """
    COPY headgate_payment (payment_id, amount_minor, currency, payer_name, payer_iban, payee_name, payee_iban,
        execute_at, config_name, fee_minor, value_date, fingerprint, status, scheduled_at, created_at, updated_at,
        feed_id)
    FROM STDIN
"""
COPY_AUDIT = "COPY headgate_payment_audit (payment_id, status_after, detail, created_at) FROM STDIN"


def schedule(connection: Connection, payments: Sequence[NewPayment], encryption: Encryption | None = None) -> None:
    """Keeps and queues new payments; an id that is taken fails on its key. Sorted by id, so that two writers wait for
    each other instead of deadlocking."""
    moment = database_clock(connection)
    rows, audit = _copy_texts(payments, moment)

    async def copy_both(raw: Raw) -> None:
        await copy(raw, COPY_PAYMENTS, rows)
        await copy(raw, COPY_AUDIT, audit)

    run_async(connection, copy_both)
    soon = datetime.now(UTC) + SOON
    hints = [ITEM_TYPE] if any(new.scheduled_time <= soon for new in payments) else []
    enqueue_within(connection, [new.item for new in payments], hints, encryption)


def _copy_texts(payments: Sequence[NewPayment], moment: datetime) -> tuple[str, str]:
    """Rows in COPY's text form. All texts are printable, so only the backslash needs escaping."""
    now = instant_text(to_ms(moment)) + "Z"
    no_feed = "\\N"
    rows, audit = [], []
    for payment, terms, scheduled, print_, _, feed_id in payments:
        payment_id, amount, currency, payer, payee, execute_at, config_name = payment
        payment_id = _escape(payment_id)
        parties = _escape(f"{payer.name}\t{payer.iban}\t{payee.name}\t{payee.iban}")
        config = "\\N" if config_name is None else _escape(config_name)
        rows.append(
            f"{payment_id}\t{to_minor(amount)}\t{currency}\t{parties}\t{instant_text(to_ms(execute_at))}Z\t{config}"
            f"\t{to_minor(terms.fee)}\t{terms.value_date}\t{print_}\tSCHEDULED\t{instant_text(to_ms(scheduled))}Z"
            f"\t{now}\t{now}\t{feed_id or no_feed}\n"
        )
        audit.append(f"{payment_id}\tSCHEDULED\t{ACCEPTED_DETAIL}\t{now}\n")
    return "".join(rows), "".join(audit)


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\") if "\\" in text else text
