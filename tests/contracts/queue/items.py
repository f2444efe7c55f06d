"""Items and claims for the tests of queue stores."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.decisions import after_start, after_success, released, unrunnable
from paceline.dispatch.model import Claim, EnqueueRequest, Item
from paceline.dispatch.ports import STARTED, QueueStore
from paceline.dispatch.status import Status

T = datetime(2027, 3, 1, 16, 0, 0, tzinfo=UTC)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
NOW = timedelta(0)
CONFIG = DispatchConfig(item_type="PAY", max_dispatch_retries=3, retry_backoff_secs=5)


def wants(count: int, prefix: str = "p", item_type: str = "PAY", at: datetime | None = None) -> list[EnqueueRequest]:
    return [EnqueueRequest.of(item_type, f"{prefix}{n:03}", {"n": n}, at) for n in range(count)]


async def get(store: QueueStore, item_id: str, item_type: str = "PAY") -> Item:
    row = await store.find(item_type, item_id)
    assert row is not None
    return row[0]


async def context(store: QueueStore, item_id: str) -> str | None:
    row = await store.find("PAY", item_id)
    assert row is not None
    return row[1]


async def claims(store: QueueStore, count: int = 100, now: datetime = T, item_type: str = "PAY") -> list[Claim]:
    return [item.claim for item in (await store.claim(item_type, count, NOW, now=now)).items]


async def actions(store: QueueStore, item_id: str) -> list[tuple[str, str | None, str | None]]:
    entries = await store.audit("PAY", item_id, 100, None)
    return [(entry.action, entry.status_before, entry.status_after) for entry in reversed(entries)]


async def dead_letter(store: QueueStore, *item_ids: str) -> None:
    await store.enqueue([EnqueueRequest.of("PAY", item_id, {"id": item_id}, T) for item_id in item_ids], now=T)
    batch = await store.claim("PAY", len(item_ids), NOW, now=T)
    done = await store.settle([unrunnable(item.claim, "broken", batch.batch_id) for item in batch.items], now=T)
    assert all(done)


async def in_every_status(store: QueueStore, prefix: str = "") -> dict[Status, Claim]:
    """One item in each status an item can rest in, with the claim that brought it there."""
    names = ["dispatched", "completed", "dead", "gone", "returned", "claimed"]
    await store.enqueue([EnqueueRequest.of("PAY", prefix + name, {}) for name in names], now=T)
    claimed = (await store.claim("PAY", 10, NOW, now=T)).items
    batch = {item.claim.item_id.removeprefix(prefix): item.claim for item in claimed}
    assert (
        await store.settle(
            [
                after_start(batch["dispatched"], STARTED, CONFIG, "B"),
                after_success(batch["completed"]),
                unrunnable(batch["dead"], "x"),
                unrunnable(batch["gone"], "x"),
                released(batch["returned"], "x"),
            ],
            now=T,
        )
        == [True] * 5
    )
    await store.redirect("PAY", [f"{prefix}gone"], Status.CANCELLED, now=T)
    return {
        Status.CLAIMED: batch["claimed"],
        Status.DISPATCHED: batch["dispatched"],
        Status.COMPLETED: batch["completed"],
        Status.DEAD_LETTER: batch["dead"],
        Status.CANCELLED: batch["gone"],
        Status.READY: batch["returned"],
    }
