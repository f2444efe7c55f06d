"""Every payment store, beside the queue and the slots of the same kind."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.encryption import Encryption
from paceline.dispatch.stores.sql import SqlQueueStore
from paceline.slots.stores.sql import SqlSlotStore
from paceline_payments.model import (
    ITEM_TYPE,
)
from paceline_payments.stores.moves import PaymentFollower
from paceline_payments.stores.sql import SqlPaymentStore
from tests.contracts.conftest import SLOT_STORES, slot_store_url
from tests.contracts.payments.records import Bench
from tests.every_schema import database
from tests.models.payment_store import MemoryPaymentStore
from tests.models.queue_store import MemoryQueueStore
from tests.models.slot_store import MemorySlotStore

KEY = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="


ENCRYPTED = [f"{kind} encrypted" for kind in SLOT_STORES if kind != "memory"]


@pytest.fixture(params=[*SLOT_STORES, *ENCRYPTED])
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    if request.param == "memory":
        queue, slots = MemoryQueueStore(), MemorySlotStore()
        bench = Bench(MemoryPaymentStore(queue, slots), queue, slots)
    else:
        kind, _, encrypted = request.param.partition(" ")
        encryption = Encryption([KEY]) if encrypted else None
        shared = await database(slot_store_url(kind, request))
        queue_store = SqlQueueStore(shared, {ITEM_TYPE: PaymentFollower()}, encryption=encryption)
        bench = Bench(
            SqlPaymentStore(shared, encryption=encryption), queue_store, SqlSlotStore(shared, owns_database=False)
        )
    await bench.queue.configure(DispatchConfig(item_type=ITEM_TYPE))
    yield bench
    await bench.slots.close()
    await bench.queue.close()
