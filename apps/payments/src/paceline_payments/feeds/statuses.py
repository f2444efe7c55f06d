"""What a status report says of a payment: its status of ISO 20022, and a reason's code. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from paceline_payments.lifecycle import PaymentStatus

ACCEPTED, PENDING, REJECTED, SETTLED, RECEIVED, PARTLY = "ACCP", "PDNG", "RJCT", "ACSC", "RCVD", "PART"

STATUSES: Mapping[PaymentStatus, str] = {
    PaymentStatus.SCHEDULED: ACCEPTED,
    PaymentStatus.ACCEPTED: SETTLED,
    PaymentStatus.PROCESSING: SETTLED,
    PaymentStatus.PENDING: PENDING,
    PaymentStatus.UNKNOWN: PENDING,
    PaymentStatus.FAILED: REJECTED,
    PaymentStatus.CANCELLED: REJECTED,
    PaymentStatus.RETURNED: REJECTED,
}
"""A returned payment is reported as rejected, with the reason of the return."""
CANCELLED, NARRATIVE, SCHEMA = "DS02", "NARR", "FF01"
_CODES = (
    ("CdtrAcct", "AC03"),
    ("payee.iban", "AC03"),
    ("payeeIban", "AC03"),
    ("DbtrAcct", "AC02"),
    ("payer.iban", "AC02"),
    ("payerIban", "AC02"),
    ("Amt.InstdAmt.Ccy", "AM03"),
    ("currency", "AM03"),
    ("Amt", "AM12"),
    ("amount", "AM12"),
    ("payment: duplicates", "AM05"),
    ("paymentId", "AM05"),
    ("PmtMtd", "FF03"),
    ("ReqdExctnDt", "DT01"),
    ("executeAt", "DT01"),
    ("Cdtr.Nm", "BE22"),
)
"""The begin of a reason → its code in ISO 20022's external list."""
_OWN_CODE = re.compile(r"([A-Z]{2}[0-9]{2})\b")


def reason_code(reason: str, status: PaymentStatus | None = None) -> str:
    """The code of a reason: the bank's own if it begins with one, else by what the reason is about."""
    if status is PaymentStatus.CANCELLED:
        return CANCELLED
    if (own := _OWN_CODE.match(reason)) is not None:
        return own.group(1)
    return next((code for start, code in _CODES if reason.startswith(start)), NARRATIVE)


def group_status(statuses: Collection[str], *, is_whole: bool) -> str:
    """The status of a file by those of its transactions."""
    if not is_whole:
        return RECEIVED
    if not statuses or set(statuses) == {REJECTED}:
        return REJECTED
    if REJECTED in statuses:
        return PARTLY
    return next((status for status in (PENDING, ACCEPTED) if status in statuses), SETTLED)
