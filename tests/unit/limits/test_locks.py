"""The lock of the memory store: one thread holds it at a time, others wait, and it is free in a forked child."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from paceline import FixedWindow, LeasePolicy, Limiter, Plan, TokenBucket
from paceline.limits.locks import SpinLock
from paceline.limits.stores.memory import MemoryLimitStore
from paceline.testing import FakeClock
from tests.interruptions import Interrupted, in_a_thread, interrupt_often
from tests.unit.limits.both import START, SwitchedStore

# A signal handler that raises may do so in the callback of a weak reference, where Python can only report it.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def many_switches() -> Iterator[None]:
    """Threads that take turns as often as Python lets them, so that many are interrupted in a critical section."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def test_one_thread_holds_the_lock_at_a_time(many_switches: None) -> None:
    lock, holders, most = SpinLock(), [0], [0]

    def critical_section() -> None:
        holders[0] += 1
        for _ in range(50):  # where Python checks whether another thread should run
            most[0] = max(most[0], holders[0])
        holders[0] -= 1

    def work() -> None:
        for _ in range(2_000):
            lock.run(critical_section)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert most == [1]
    lock.try_acquire()  # it is free in the end


def test_try_acquire_raises_while_the_lock_is_held() -> None:
    lock = SpinLock()
    lock.acquire()
    with pytest.raises(IndexError):
        lock.try_acquire()


@pytest.mark.parametrize("spec", [TokenBucket(10, 1), FixedWindow(10, "PT1H")], ids=["bucket", "window"])
def test_a_decision_waits_for_the_one_before(spec: TokenBucket | FixedWindow) -> None:
    store = MemoryLimitStore()
    limiter = Limiter(store, plans=[Plan("gold", spec)])
    limiter.acquire("ada", "gold")
    remaining: list[int] = []
    store._lock.acquire()
    assert limiter.fast_paths["gold"]("ada") is None  # the fast path does not wait
    caller = threading.Thread(target=lambda: remaining.append(limiter.acquire("ada", "gold").remaining))
    caller.start()
    caller.join(0.05)
    assert caller.is_alive()
    store._lock.release(None)
    caller.join(60)
    assert remaining == [8]


@pytest.mark.parametrize("spec", [TokenBucket(5_000, 0.001), FixedWindow(5_000, "P1D")], ids=["bucket", "window"])
def test_threads_that_interrupt_each_other_admit_exactly_the_limit(
    spec: TokenBucket | FixedWindow, many_switches: None
) -> None:
    limiter = Limiter(plans=[Plan("gold", spec)])
    admitted = [0] * 4

    def work(number: int) -> None:
        admitted[number] = sum(limiter.acquire("ada", "gold").allowed for _ in range(2_000))

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert sum(admitted) == 5_000


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_does_not_wait_for_a_thread_of_its_parent() -> None:
    store = MemoryLimitStore()
    limiter = Limiter(store, plans=[Plan("gold", TokenBucket(10, 1))])
    limiter.acquire("ada", "gold")
    held, release = threading.Event(), threading.Event()

    def hold_the_lock() -> None:
        held.set()
        release.wait(60)

    holder = threading.Thread(target=store._lock.run, args=(hold_the_lock,))
    holder.start()
    assert held.wait(60)
    child = os.fork()
    if child == 0:
        # Nothing may be raised here: pytest would continue in the child as well.
        os._exit(0 if limiter.acquire("ada", "gold").remaining == 8 else 1)
    try:
        assert os.waitpid(child, 0)[1] == 0
    finally:
        release.set()
        holder.join(60)


@pytest.mark.parametrize("spec", [TokenBucket(10**9, 1), FixedWindow(10**9, "P1D")], ids=["bucket", "window"])
def test_a_signal_handler_that_raises_leaves_the_lock_free(spec: TokenBucket | FixedWindow) -> None:
    """As Ctrl-C does, or a worker's time limit: at any moment, also while the lock is being taken."""

    store = MemoryLimitStore()
    limiter = Limiter(store, plans=[Plan("gold", spec), Plan("other", spec)])

    def call() -> None:
        limiter.acquire("ada", "gold")
        limiter.acquire("ada", ["gold", "other"])
        limiter.refund("ada", "gold")

    interrupt_often(call, 3_000)
    store._lock.try_acquire()
    with pytest.raises(IndexError):
        store._lock.try_acquire()


class Late(IndexError):
    """A time limit, of the kind that the lock raises itself."""


@contextmanager
def interrupted_when_taken(lock: SpinLock, error: type[Exception]) -> Iterator[None]:
    """As a signal handler would that runs just when the lock has been taken: raises `error` there, once."""

    def interrupt(_frame: object, event: str, function: Any) -> None:
        if event == "c_return" and function == lock.try_acquire:
            raise error

    sys.setprofile(interrupt)  # Python removes it when it raises
    try:
        with pytest.raises(error):
            yield
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("error", [Interrupted, IndexError, Late])
@pytest.mark.parametrize("way", ["bucket", "window", "lease", "acquire", "spin"])
def test_whatever_a_signal_handler_raises_the_lock_is_free(way: str, error: type[Exception]) -> None:
    spec = FixedWindow(10, "PT1H") if way == "window" else TokenBucket(10, 1)
    store = SwitchedStore(FakeClock(START)) if way == "lease" else MemoryLimitStore()
    limiter = Limiter(store, plans=[Plan("gold", spec)], lease=LeasePolicy(share=1) if way == "lease" else None)
    lock = limiter._leases.spin_lock if limiter._leases is not None else store._lock  # type: ignore[union-attr]
    for _ in range(3):
        limiter.acquire("ada", "gold")
    ways: dict[str, Callable[[], object]] = {"acquire": lock.acquire, "spin": lock._spin}
    take = ways.get(way) or partial(limiter.fast_paths["gold"], "ada")

    def take_interrupted() -> bool:
        with interrupted_when_taken(lock, error):
            take()
        return True

    assert in_a_thread(take_interrupted)  # it would wait for itself
    lock.try_acquire()


def test_a_signal_handler_that_raises_leaves_a_lease_unlocked() -> None:
    limiter = Limiter(
        SwitchedStore(FakeClock(START)),
        plans=[Plan("gold", TokenBucket(10**9, 10**6))],
        lease=LeasePolicy(most=50),
    )
    interrupt_often(lambda: limiter.acquire("ada", "gold"), 3_000)
    admitted: list[bool] = []
    late = threading.Thread(target=lambda: admitted.append(limiter.acquire("ada", "gold").allowed), daemon=True)
    late.start()
    late.join(20)
    assert admitted == [True]
