"""Intake, operations and slots over memory stores."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from paceline.dispatch.status import Status
from paceline.slots.scheduler import SlotScheduler
from paceline_payments.intake import PaymentIntake
from paceline_payments.model import (
    ITEM_TYPE,
    Party,
    Payment,
)
from paceline_payments.operations import PaymentOperations
from paceline_payments.rules import rules_of
from tests.models.payment_store import MemoryPaymentStore
from tests.models.queue_store import MemoryQueueStore
from tests.models.slot_store import MemorySlotStore

AT = datetime(2030, 3, 1, 16, 0, tzinfo=UTC)

ALICE = Party("Alice", "DE89370400440532013000")

BOB = Party("Bob", "GB29NWBK60161331926819")


def payment(payment_id: str, amount: str = "12.30", at: datetime = AT, config: str | None = None) -> Payment:
    return Payment(payment_id, amount, "EUR", ALICE, BOB, at, config)


class Bench:
    def __init__(self) -> None:
        self.queue, slot_store = MemoryQueueStore(), MemorySlotStore()
        self.store = MemoryPaymentStore(self.queue, slot_store)
        self.slots = SlotScheduler(slot_store)
        self.intake = PaymentIntake(self.store, self.slots)
        self.operations = PaymentOperations(self.store)

    def ruled(self, **rules: Any) -> PaymentIntake:
        return PaymentIntake(self.store, self.slots, rules=rules_of(rules).itself)

    async def depth(self) -> int:
        return (await self.queue.stats(ITEM_TYPE)).depth.get(Status.READY, 0)
