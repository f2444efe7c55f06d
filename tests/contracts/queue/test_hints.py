"""Waiting for work: a hint, no promise."""

from __future__ import annotations

import asyncio
import itertools

from paceline.dispatch.model import EnqueueRequest
from paceline.dispatch.ports import QueueStore


async def test_a_waiter_is_woken_by_an_enqueue(store: QueueStore) -> None:
    waiter = asyncio.create_task(store.wait(["OTHER", "PAY"], 60))
    deadline = asyncio.get_running_loop().time() + 30
    number = itertools.count()
    while not waiter.done() and asyncio.get_running_loop().time() < deadline:
        await store.enqueue([EnqueueRequest.of("PAY", f"wake{next(number)}")])
        await asyncio.wait([waiter], timeout=0.05)
    assert waiter.done()
    assert waiter.result() == ["PAY"]


async def test_a_waiter_with_nothing_to_do_returns_at_its_timeout(store: QueueStore) -> None:
    await store.wait(["QUIET"], 0.01)
