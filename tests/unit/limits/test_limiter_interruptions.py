"""Signal handlers that raise while a caller waits or holds a place, and processes that fork then."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from paceline import Concurrency, FixedWindow, Limiter, Plan
from paceline.limits.ports import Settlement
from paceline.limits.stores.memory import MemoryLimitStore
from paceline.testing import eventually
from tests.interruptions import in_a_thread, interrupt_often

pytestmark = [
    # A signal handler that raises may do so in the callback of a weak reference, where Python can only report it.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
]


def test_an_interrupted_wait_denies_no_other() -> None:
    limiter = Limiter(plans=[Plan("p", FixedWindow(10**9, "PT1H"))])

    def wait() -> None:
        assert limiter.wait("u", "p", timeout=1).allowed

    interrupt_often(wait, 3_000)
    assert in_a_thread(lambda: limiter.wait("u", "p", timeout=0.5).allowed)
    assert not limiter._wait_queues._queues


async def test_an_interrupted_block_neither_stops_renewals_nor_is_renewed_for_ever() -> None:
    limiter = Limiter(plans=[Plan("exports", Concurrency(100_000, expires="PT0.2S"))])

    def block() -> None:
        with limiter.hold("u", "exports"):
            pass

    interrupt_often(block, 2_000)
    renewed = threading.Semaphore(0)
    renewal = in_a_thread(lambda: limiter._renewals.start(renewed.release, 0.001))
    assert renewed.acquire(timeout=20)
    renewal.cancel()  # type: ignore[attr-defined]
    await eventually(lambda: limiter.peek("u", "exports").remaining == 100_000)
    await eventually(lambda: not limiter._renewals._due)


def test_a_forked_child_does_not_queue_behind_threads_of_its_parent() -> None:
    limiter = Limiter(plans=[Plan("p", FixedWindow(1, "PT1H"))])
    limiter.acquire("u", "p")
    waiter = threading.Thread(target=limiter.wait, args=("u", "p"), daemon=True)
    waiter.start()
    while not limiter._wait_queues._queues:
        pass
    child = os.fork()
    if child == 0:
        # Nothing may be raised here: pytest would continue in the child as well.
        try:
            limiter.reset("u", "p")
            os._exit(0 if limiter.wait("u", "p", timeout=2).allowed else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    limiter.reset("u", "p")
    waiter.join(30)
    assert not waiter.is_alive()


def test_a_forked_child_neither_renews_nor_leaves_the_places_of_its_parent() -> None:
    calls: list[tuple[str, str]] = []
    renewed = threading.Semaphore(0)

    class Store(MemoryLimitStore):
        in_process = False

        def renew(self, hold_id: str, *args: object, **options: object) -> Settlement:
            calls.append(("renew", hold_id))
            renewed.release()
            return Settlement.APPLIED

        def settle(self, hold_id: str, *args: object, **options: object) -> Settlement:
            calls.append(("settle", hold_id))
            return Settlement.APPLIED

    limiter = Limiter(Store(), plans=[Plan("exports", Concurrency(5, expires="PT0.03S"))])
    parents = limiter.hold("u", "exports")
    with parents:
        child = os.fork()
        if child == 0:
            # Nothing may be raised here: pytest would continue in the child as well.
            try:
                calls.clear()
                signal.alarm(30)  # ends a child that hangs
                own = limiter.hold("other", "exports")
                with own:
                    for _ in range(5):
                        renewed.acquire(timeout=20)
                parents.__exit__(None, None, None)
                expected = {("renew", own._id), ("settle", own._id)}
                os._exit(0 if set(calls) == expected else 1)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        assert ("settle", parents._id) not in calls
    assert ("settle", parents._id) in calls
