"""The public API as a strict type checker sees it. Not run: `make types` checks it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import assert_type

from paceline import (
    AsyncLimiter,
    BlockingSlotScheduler,
    Decision,
    DispatchQueue,
    FixedWindow,
    Limiter,
    Plan,
    RateLimitExceeded,
    SlotScheduler,
    Tasks,
    TokenBucket,
    WindowPolicy,
)
from paceline.integrations.functions import rate_limit

limiter = Limiter("memory://", plans=[Plan("partner", TokenBucket(capacity=10, per_second=1))])
on_a_loop = AsyncLimiter("memory://", plans=[Plan("partner", FixedWindow(limit=10, window="PT1M"))])


@rate_limit(limiter, "partner", key="partner")
def fetch(page: int, *, size: int = 10) -> list[str]:
    return [str(page)] * size


@rate_limit(limiter, ["partner"], key=lambda user, text: user, cost=lambda user, text: len(text), wait=10)
def send(user: str, text: str) -> int:
    return len(text)


@rate_limit(on_a_loop, "partner", key="partner", wait=10)
async def pay(payment: str) -> float:
    return float(payment)


assert_type(fetch(1, size=2), list[str])
assert_type(send("ada", "hello"), int)
fetch("1")  # type: ignore[arg-type]
send("ada", 5)  # type: ignore[arg-type]
send("ada", wrong=5)  # type: ignore[call-arg]

try:
    limiter.check("ada", "partner")
except RateLimitExceeded as error:
    assert_type(error.decision, Decision)
    assert_type(error.decision.retry_after, float)
    assert_type(error.decision.plan, str)


async def main() -> None:
    assert_type(await pay("12.5"), float)
    await pay(12)  # type: ignore[arg-type]
    async with SlotScheduler.open("sqlite:///slots.db", batch=500, cache_ttl=1.0) as slots:
        assert_type(slots, SlotScheduler)
        await slots.configure("default", WindowPolicy(max_per_window=100, window="PT4S"))
        slot = await slots.assign("pay-123", "default", datetime(2027, 3, 1, tzinfo=UTC))
        assert_type(slot.scheduled_time, datetime)
    SlotScheduler.open("sqlite:///slots.db", batch="500")  # type: ignore[arg-type]
    SlotScheduler.open("sqlite:///slots.db", bacth=500)  # type: ignore[call-arg]
    BlockingSlotScheduler("sqlite:///slots.db", cache_ttl="a while")  # type: ignore[arg-type]
    async with DispatchQueue.open("sqlite:///queue.db", batch=100, largest_context=1000) as queue:
        assert_type(queue, DispatchQueue)
        await queue.configure("PAYMENT", enabled=False, batch_size=10, retryBackoffSecs=0.5)
        await queue.configure("PAYMENT", enabled="no")  # type: ignore[arg-type]
        await queue.configure("PAYMENT", batchsize=10)  # type: ignore[call-arg]
    DispatchQueue.open("sqlite:///queue.db", batch=None)  # type: ignore[arg-type]


tasks = Tasks("memory://")


@tasks.task(retries=5, timeout=30, rate="50/second", backoff=["PT1S", 5])
async def resize(path: str, width: int = 800) -> bytes:
    return path.encode() * width


@tasks.task
def shrink(path: str) -> int:
    return len(path)


async def enqueue_tasks() -> None:
    assert_type(await resize("a.png"), bytes)
    assert_type(shrink("a.png"), int)
    assert_type((await resize.enqueue("a.png", width=7)).existing, bool)
    assert_type((await resize.options(key="a", at=datetime.now(UTC)).enqueue("a.png", width=7)).item_id, str)
    await resize.options(key="a").enqueue("a.png")
    await resize.enqueue(7)  # type: ignore[arg-type]
    await resize.enqueue("a.png", height=7)  # type: ignore[call-arg]
    await resize.options(key="a").enqueue(7)  # type: ignore[arg-type]
    await shrink.enqueue()  # type: ignore[call-arg]
    await shrink.enqueue("a.png", key="a")  # type: ignore[call-arg]
    assert_type((await shrink.enqueue_many(["a.png", "b.png"]))[0].existing, bool)


def enqueue_from_a_thread() -> None:
    assert_type(shrink.blocking.enqueue("a.png").existing, bool)
    assert_type(resize.options(key="a").blocking.enqueue("a.png", width=7).item_id, str)
    shrink.blocking.enqueue(7)  # type: ignore[arg-type]
    resize.options(key="a").blocking.enqueue()  # type: ignore[call-arg]
