"""Payments from a Kafka topic: stored once, rejected ones passed on, none lost when a store is down."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Sequence
from typing import Any

import pytest

from paceline.dispatch.config import DispatchConfig
from paceline.errors import StoreUnavailable
from paceline.kafka.log import KafkaLog
from paceline.messaging import LogEntry, Record
from paceline.slots.model import WindowPolicy
from paceline.slots.scheduler import SlotScheduler
from paceline.testing import eventually
from paceline_payments.intake import PaymentIntake
from paceline_payments.intake_topic import PaymentTopic, rejected_topic
from paceline_payments.model import ITEM_TYPE, IntakeResult, Payment
from tests.models.payment_store import MemoryPaymentStore
from tests.models.queue_store import MemoryQueueStore
from tests.models.slot_store import MemorySlotStore

pytestmark = pytest.mark.quick

PARTY = {"name": "Alice", "iban": "DE89370400440532013000"}


def document(payment_id: str, **changes: Any) -> str:
    document = {
        "paymentId": payment_id,
        "amount": "1.00",
        "currency": "EUR",
        "payer": PARTY,
        "payee": PARTY | {"iban": "GB29NWBK60161331926819"},
    }
    return json.dumps({**document, "executeAt": "2030-03-01T16:00:00Z", **changes})


async def test_a_topic_of_payments(kafka_bootstrap: str) -> None:
    topic = f"payments-{uuid.uuid4().hex[:8]}"
    messages = KafkaLog(kafka_bootstrap, topics=(topic, rejected_topic(topic)), delivery_seconds=20)
    queue, slot_store = MemoryQueueStore(), MemorySlotStore()
    await queue.configure(DispatchConfig(item_type=ITEM_TYPE))
    store = MemoryPaymentStore(queue, slot_store)
    outages = 1

    async with SlotScheduler(slot_store) as slots:
        await slots.configure("default", WindowPolicy(100, "PT4S"))
        intake = PaymentIntake(store, slots)

        async def initiate(payments: Sequence[Payment]) -> list[IntakeResult]:
            nonlocal outages
            if outages:
                outages -= 1
                raise StoreUnavailable("the database is away")
            return await intake.initiate(payments)

        values = [
            document("k1"),
            "not json",
            document("k2"),
            document("k1"),
            document("k1", amount="2.00"),
            document("k3", currency="EURO"),
        ]
        outcomes = await messages.publish([Record(topic, "key", value) for value in values])
        assert list(outcomes) == [None] * len(values)
        stop = asyncio.Event()
        running = asyncio.create_task(PaymentTopic(messages, topic, initiate).run(stop))
        source = await messages.read(rejected_topic(topic), "test")
        refused: list[LogEntry] = []

        async def all_refused() -> bool:
            refused.extend(await source.receive(10, 0.5))
            return len(refused) >= 3

        await eventually(all_refused, within=60)
        assert sorted(await store.find(["k1", "k2", "k3"])) == ["k1", "k2"]
        rejections = sorted(
            (json.loads(message.record.value) for message in refused), key=lambda rejection: rejection["offset"]
        )
        assert [rejection["record"] for rejection in rejections] == [values[1], values[4], values[5]]
        for rejection, word in zip(rejections, ("not valid JSON", "was used before", "currency"), strict=True):
            assert word in rejection["reason"]
        stop.set()
        await running
        await source.close()
        await intake.close()
    await messages.close()
