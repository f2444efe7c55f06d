"""Transactions are cut by what they take, not only by how many they carry."""

from __future__ import annotations

from paceline.slots import SlotRequest
from paceline.slots.pace import LEAST, TARGET_SECONDS, Paces


def drained(paces: Paces, requests: list[SlotRequest], seconds_each: float) -> list[int]:
    """The sizes of the transactions that carry `requests`, if each request takes that long."""
    sizes: list[int] = []
    while sum(sizes) < len(requests):
        batch, pace = paces.next(requests, sum(sizes))
        sizes.append(len(batch))
        pace.learn(len(batch), len(batch) * seconds_each)
    return sizes


CROWDED = [SlotRequest(f"c{n}", 0) for n in range(10_000)]
SPARSE = [SlotRequest(f"s{n}", n) for n in range(10_000)]


def test_quick_requests_for_one_time_go_in_one_transaction() -> None:
    assert drained(Paces(10_000), CROWDED, 0.000_02) == [10_000]


def test_a_slow_store_gets_smaller_transactions_and_a_quick_one_larger_again() -> None:
    paces = Paces(10_000)
    slow = drained(paces, SPARSE, 0.002)
    assert slow[0] <= 1000
    assert all(size * 0.002 <= TARGET_SECONDS for size in slow[1:])
    assert drained(paces, CROWDED, 0.000_02) == [10_000], "what sparse times cost says nothing of crowded ones"
    assert max(drained(paces, SPARSE, 0.000_02)) > 1000


def test_transactions_do_not_shrink_to_nothing() -> None:
    assert min(drained(Paces(10_000), SPARSE, 1.0)) == LEAST
    assert drained(Paces(10), CROWDED[:25], 1.0) == [10, 10, 5]


def test_a_small_transaction_that_was_quick_says_nothing() -> None:
    paces = Paces(10_000)
    for _ in range(5):
        drained(paces, CROWDED[:3], 0.01)
    assert drained(paces, CROWDED, 0.000_02) == [10_000]
