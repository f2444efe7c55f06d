"""The memory store is exact under threads, also those that run at the same time (a Python without the GIL)."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from random import Random

import pytest

from paceline import Concurrency, FixedWindow, Limiter, Plan, TokenBucket

THREADS = 4
KEYS = [f"user:{number}" for number in range(40)]


def in_threads(work: Callable[[Random], int]) -> int:
    """The sum of what `work` returns in several threads that begin together."""
    begin, results = threading.Barrier(THREADS), [0] * THREADS

    def run(number: int) -> None:
        begin.wait(60)
        results[number] = work(Random(number))

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(THREADS)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()
    finally:
        sys.setswitchinterval(before)
    return sum(results)


@pytest.mark.parametrize("spec", [TokenBucket(50, 1e-5), FixedWindow(50, "P1D")], ids=["bucket", "window"])
def test_threads_admit_exactly_the_limit_of_every_key(spec: TokenBucket | FixedWindow) -> None:
    limiter = Limiter(plans=[Plan("gold", spec)])
    admitted = in_threads(
        lambda random: sum(limiter.acquire(random.choice(KEYS), "gold").allowed for _ in range(60 * len(KEYS)))
    )
    assert admitted == 50 * len(KEYS)


def test_threads_that_charge_several_keys_at_once_admit_exactly_the_limit() -> None:
    """Each charges two keys in either order: they must not wait for each other for ever."""
    limiter = Limiter(plans=[Plan("gold", FixedWindow(10**6, "P1D"))])

    def work(random: Random) -> int:
        admitted = 0
        for _ in range(1_000):
            first, second = random.sample(KEYS, 2)
            admitted += limiter.acquire_chain([(first, "gold", 1), (second, "gold", 1)]).allowed
            limiter.acquire(first, "gold")
            limiter.refund(first, "gold")
        return admitted

    admitted = in_threads(work)
    assert admitted == THREADS * 1_000
    assert sum(10**6 - limiter.peek(key, "gold").remaining for key in KEYS) == 2 * admitted


def test_threads_give_back_every_place_and_reservation() -> None:
    limiter = Limiter(plans=[Plan("places", Concurrency(1000)), Plan("gold", FixedWindow(10**6, "P1D"))])

    def work(random: Random) -> int:
        spent = 0
        for _ in range(200):
            key = random.choice(KEYS)
            with limiter.hold(key, "places"):
                limiter.reserve(key, "gold", 5).settle(2)
                spent += 2
        return spent

    spent = in_threads(work)
    assert sum(10**6 - limiter.peek(key, "gold").remaining for key in KEYS) == spent
    assert {limiter.peek(key, "places").remaining for key in KEYS} == {1000}
    limiter.close()
