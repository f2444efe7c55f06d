"""Renewals in the background: again and again, until cancelled or forgotten."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from paceline.limits.renewals import AsyncRenewals, Renewals
from paceline.testing import eventually


async def test_a_thread_renews_again_and_again_until_it_is_cancelled() -> None:
    renewals, renewed, other = Renewals(), threading.Semaphore(0), threading.Semaphore(0)
    first = renewals.start(renewed.release, 0.001)
    second = renewals.start(other.release, 0.001)
    for _ in range(3):
        assert renewed.acquire(timeout=10)
    first.cancel()
    second.cancel()
    await eventually(lambda: renewals._thread is None)
    again = renewals.start(renewed.release, 0.001)
    assert renewed.acquire(timeout=10)
    again.cancel()
    renewals.close()


async def test_a_task_renews_again_and_again_until_it_is_cancelled() -> None:
    class Held:
        renewed = asyncio.Semaphore(0)

        async def renew(self) -> None:
            self.renewed.release()

    renewals, held = AsyncRenewals(), Held()
    task = renewals.start(held.renew, 0.001)
    for _ in range(3):
        await asyncio.wait_for(held.renewed.acquire(), 10)
    renewals.close()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_thread_renews_nothing_that_was_forgotten_and_keeps_no_cancelled_renewals() -> None:
    class Held:
        def renew(self) -> None: ...

    renewals, held = Renewals(), Held()
    renewals.start(held.renew, 0.001)
    assert renewals._thread is not None
    del held
    gc.collect()
    asyncio.run(eventually(lambda: renewals._thread is None))  # there is nothing left to renew
    held = Held()
    for _ in range(1000):
        renewals.start(held.renew, 3600).cancel()
    assert len(renewals._due) < 200
    renewals.close()


async def test_a_task_renews_nothing_that_was_forgotten() -> None:
    class Held:
        async def renew(self) -> None: ...

    held = Held()
    task = AsyncRenewals().start(held.renew, 0.001)
    del held
    gc.collect()
    await asyncio.wait_for(task, 10)
