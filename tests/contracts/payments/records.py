"""Payments for the contract of their stores, and what they are kept in."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime

from paceline.dispatch.model import EnqueueRequest
from paceline.dispatch.ports import QueueStore
from paceline.durations import to_ms
from paceline.slots.ports import SlotStore
from paceline_payments.model import (
    ITEM_TYPE,
    Party,
    Payment,
    Terms,
)
from paceline_payments.ports import NewPayment, PaymentStore
from paceline_payments.rules import fingerprint
from paceline_payments.serialization import context_json

AT = datetime(2030, 3, 1, 16, 0, tzinfo=UTC)
ALICE = Party("Alice", "DE89370400440532013000")
BOB = Party("Bob \\ Söhne \\N", "", "0532-013000")
INSTRUCTION = '{"PmtId":{"EndToEndId":"\\\\N"},"RmtInf":{"Ustrd":["Büro\\t\\n17"]}}'
TERMS = Terms("0.01", date(2030, 3, 1))


@dataclass
class Bench:
    store: PaymentStore
    queue: QueueStore
    slots: SlotStore


def payment(payment_id: str, amount: str = "12.30", currency: str = "EUR", config: str | None = None) -> Payment:
    return Payment(payment_id, amount, currency, ALICE, BOB, AT, config, INSTRUCTION)


def new(source: Payment, scheduled: datetime = AT) -> NewPayment:
    item = EnqueueRequest(ITEM_TYPE, source.payment_id, context_json(source, TERMS, to_ms(scheduled)), scheduled, True)
    return NewPayment(source, TERMS, scheduled, fingerprint(source), item)
