"""Transactions are cut by what they take, not only by how many they carry."""

from __future__ import annotations

from paceline.slots import SlotRequest
from paceline.slots.booking.writer import LEAST, TARGET_SECONDS, Paces
from paceline.slots.model import BookingGroup


def drained(paces: Paces, requests: list[SlotRequest], seconds_each: float) -> list[int]:
    """The sizes of the transactions that carry `requests`, if each request takes that long."""
    sizes: list[int] = []
    groups, at = [BookingGroup(("bank",), requests)], (0, 0)
    while at[0] < len(groups):
        portion, at = paces.next(groups, at, 500)
        sizes.append(sum(len(group.requests) for group in portion))
        paces.learn(portion, sizes[-1] * seconds_each)
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


def test_a_transaction_ends_with_the_most_configs_and_continues_within_a_group() -> None:
    paces = Paces(25)
    groups = [BookingGroup((f"c{n}", "bank"), CROWDED[:10]) for n in range(5)]
    portions, at = [], (0, 0)
    while at[0] < len(groups):
        portion, at = paces.next(groups, at, 3)
        portions.append([(group.names[0], len(group.requests)) for group in portion])
    assert portions == [[("c0", 10), ("c1", 10)], [("c2", 10), ("c3", 10)], [("c4", 10)]]
    portion, at = paces.next(groups, (0, 0), 500)
    assert ([len(group.requests) for group in portion], at) == ([10, 10, 5], (2, 5))
    portion, at = paces.next(groups, at, 500)
    assert ([len(group.requests) for group in portion], at) == ([5, 10, 10], (5, 0))
    assert portion[0].requests == CROWDED[5:10]
