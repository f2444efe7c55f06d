"""Signal handlers that raise while a caller waits or holds a place, and processes that fork then."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable

import pytest

from paceline import Concurrency, FixedWindow, LeasePolicy, Limiter, Plan, TokenBucket
from paceline.circuit_breaker import Breaker, BreakerPolicy
from paceline.limits.ports import Settlement
from paceline.limits.stores.memory import MemoryLimitStore
from paceline.testing import FakeClock, eventually
from tests.interruptions import in_a_thread, interrupt_often
from tests.unit.limits.both import START, SwitchedStore

pytestmark = [
    # A signal handler that raises may do so in the callback of a weak reference, where Python can only report it.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
]


class Registry:
    """One that is asked for its plans with nearly every call."""

    refresh_every = 1e-6

    def load(self) -> dict[str, Plan]:
        return {plan.name: plan for plan in PLANS}


PLANS = [
    Plan("bucket", TokenBucket(10**9, 10**6)),
    Plan("window", FixedWindow(10**9, "PT1H")),
    Plan("places", Concurrency(100_000, expires="PT0.2S")),
]


def every_call(limiter: Limiter) -> None:
    assert limiter.acquire("u", "bucket").allowed
    assert limiter.acquire("u", ["bucket", "window"], 2).allowed
    assert limiter.wait("u", "window", timeout=1).allowed
    limiter.refund("u", "window")
    limiter.reserve("u", "bucket", 5).settle(2)
    with limiter.hold("u", "places"):
        limiter.peek("u", "bucket")
    limiter.reset("u", "bucket")


def remote() -> SwitchedStore:
    return SwitchedStore(FakeClock(START))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Limiter(plans=PLANS),
        lambda: Limiter(remote(), plans=PLANS),
        lambda: Limiter(remote(), plans=PLANS, lease=LeasePolicy(most=3, longest=0.001)),
        lambda: Limiter(plans=Registry()),
    ],
    ids=["memory", "remote", "leases", "registry"],
)
def test_after_interruptions_every_call_works_in_another_thread(make: Callable[[], Limiter]) -> None:
    limiter = make()
    interrupt_often(lambda: every_call(limiter), 2_000)
    in_a_thread(lambda: every_call(limiter))
    in_a_thread(limiter.close)


def test_after_interruptions_an_outage_is_still_decided_by_policy(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "paceline.limits")  # `logging` would report the interruption, not raise it
    store = remote()
    limiter = Limiter(store, plans=PLANS, breaker=BreakerPolicy(failures=1, first_pause=1e-6, longest_pause=1e-6))

    def call() -> None:
        store.down = True
        assert limiter.acquire("u", "bucket").allowed
        store.down = False
        limiter.acquire("u", "bucket")

    interrupt_often(call, 2_000)
    in_a_thread(call)


def test_after_interruptions_a_breaker_works_in_another_thread() -> None:
    breaker = Breaker(BreakerPolicy(failures=1))

    def call() -> None:
        breaker.record_failure(0)
        breaker.allows(10**9)
        breaker.record_success()

    interrupt_often(call, 2_000)
    in_a_thread(call)
    assert breaker.allows(10**9)


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
