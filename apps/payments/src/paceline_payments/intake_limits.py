"""Rules about several payments together: no equal ones, and no more a day than an account may move. Pure; the stores
call it in the transaction that stores the payments."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import NamedTuple

from paceline.errors import InvalidInput
from paceline_payments.model import PaymentStatus
from paceline_payments.ports import DuplicateQuery, IntakeLimits, NewPayment, duplicate_of

UNPAID_STATUSES = (PaymentStatus.FAILED, PaymentStatus.CANCELLED, PaymentStatus.RETURNED)
"""Payments that move nothing, and don't count."""


class Spending(NamedTuple):
    """What daily limits are counted by."""

    account: str
    currency: str
    value_date: str


def spending_of(new: NewPayment) -> Spending:
    return Spending(new.payment.payer.number, new.payment.currency, new.terms.value_date.isoformat())


def duplicate_queries(payments: Sequence[NewPayment]) -> list[DuplicateQuery]:
    return [DuplicateQuery(new.fingerprint, new.payment.payment_id, new.payment.execute_at) for new in payments]


def refusals(
    payments: Sequence[NewPayment],
    limits: IntakeLimits,
    *,
    duplicates: Mapping[str, str],
    spent: Mapping[Spending, Decimal],
) -> dict[str, InvalidInput]:
    """By id: why a payment breaks the limits, given stored ones and those before it. `duplicates` has, by id, the
    stored payment that equals it; `spent` what the accounts move already."""
    refused = {payment_id: duplicate_of(other) for payment_id, other in duplicates.items()}
    if limits.duplicate_window is not None:
        _refuse_repeats(payments, limits.duplicate_window, refused)
    totals: dict[Spending, Decimal] = defaultdict(Decimal, spent)
    for new in payments:
        source, key = new.payment, spending_of(new)
        most = limits.daily.get(source.currency)
        if most is None or source.payment_id in refused:
            continue
        total = totals[key] + source.decimal
        if total > most:
            problem = f"the account would move {total} {source.currency} on {key.value_date}, and may move {most} a day"
            refused[source.payment_id] = InvalidInput("amount", problem)
        else:
            totals[key] = total
    return refused


def _refuse_repeats(payments: Sequence[NewPayment], window: timedelta, refused: dict[str, InvalidInput]) -> None:
    before: dict[int, list[tuple[str, datetime]]] = defaultdict(list)
    for query in duplicate_queries(payments):
        if query.payment_id in refused:
            continue
        alike = [other for other, at in before[query.fingerprint] if abs(at - query.execute_at) <= window]
        if alike:
            refused[query.payment_id] = duplicate_of(alike[0])
        else:
            before[query.fingerprint].append((query.payment_id, query.execute_at))
