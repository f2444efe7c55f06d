"""One look at many item types: what there is to do, by the store's clock."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from paceline.dispatch.config import DispatchConfig, OnUnknown
from paceline.dispatch.decisions import after_unknown
from paceline.dispatch.model import EnqueueRequest, Outlook
from paceline.dispatch.ports import QueueStore
from tests.contracts.queue.items import CONFIG, MINUTE, NOW, SECOND, T, claims, dead_letter, wants

HOLDING = DispatchConfig(item_type="HELD", on_unknown=OnUnknown.HOLD, hold_for_secs=60)


async def test_one_look_finds_of_each_type_what_comes_first(store: QueueStore) -> None:
    for config in (CONFIG, HOLDING, DispatchConfig(item_type="IDLE"), DispatchConfig(item_type="BUSY", enabled=False)):
        await store.configure(config)
    await dead_letter(store, "dead")
    await store.enqueue([*wants(2, at=T + MINUTE), *wants(1, "soon", at=T + SECOND)], now=T)
    await store.enqueue([*wants(3, item_type="BUSY"), *wants(1, item_type="HELD")], now=T)
    assert len(await claims(store, 2, T, "BUSY")) == 2
    (doubtful,) = await claims(store, 1, T + SECOND, "HELD")
    assert await store.settle([after_unknown(doubtful, HOLDING, "half an answer")], now=T + SECOND) == [True]
    looked_at = T + 2 * MINUTE
    found = await store.outlooks(["PAY", "IDLE", "NOBODY", "HELD", "BUSY"], now=looked_at)
    outlooks = {outlook.config.item_type: outlook for outlook in found}
    assert outlooks == {
        "PAY": Outlook(CONFIG, looked_at, T + SECOND, None, None),
        "IDLE": Outlook(DispatchConfig(item_type="IDLE"), looked_at, None, None, None),
        "HELD": Outlook(HOLDING, looked_at, None, None, T + SECOND + MINUTE),
        "BUSY": Outlook(DispatchConfig(item_type="BUSY", enabled=False), looked_at, T, T, None),
    }
    assert [outlooks[name].needs_recovery for name in ("PAY", "IDLE", "HELD", "BUSY")] == [False, False, True, True]


async def test_an_item_is_due_within_the_look_ahead(store: QueueStore) -> None:
    await store.configure(CONFIG)
    await store.enqueue(wants(1, at=T + 5 * SECOND), now=T)
    (outlook,) = await store.outlooks(["PAY"], now=T)
    assert not outlook.is_due(4 * SECOND)
    assert outlook.is_due(5 * SECOND)


async def test_a_look_that_does_not_search_leaves_it_to_the_claims(store: QueueStore) -> None:
    await store.configure(CONFIG)
    (outlook,) = await store.outlooks(["PAY"], finds_due=False, now=T)
    assert outlook.is_due(NOW)


async def test_claims_of_many_types_at_once_are_each_their_own(store: QueueStore) -> None:
    types = [f"TYPE{number}" for number in range(20)]
    for item_type in types:
        await store.configure(DispatchConfig(item_type=item_type, concurrency=3))
    await store.enqueue([EnqueueRequest.of(item_type, f"{item_type}-{n}") for item_type in types for n in range(5)])
    limited = DispatchConfig(item_type="ANY", concurrency=3).places
    batches = await asyncio.gather(
        *(store.claim(item_type, 2 + n % 3, timedelta(0), places=limited) for n, item_type in enumerate(types)),
        *(store.claim(item_type, 2, timedelta(0), places=limited) for item_type in reversed(types)),
    )
    taken = [item.claim.item_id for batch in batches for item in batch.items]
    assert sorted(taken) == sorted(f"{item_type}-{n}" for item_type in types for n in range(3)), "three places each"
    assert all(item.claim.item_type == types[n] for n, batch in enumerate(batches[:20]) for item in batch.items)
