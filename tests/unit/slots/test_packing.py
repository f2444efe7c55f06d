"""Booking many requests at once is booking them one after another."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.slots import WindowPolicy
from paceline.slots.model import AssignedSlot, PolicyVersion, SlotRequest
from paceline.slots.occupancy import CountedWindows, Occupancy, WindowCount
from paceline.slots.packing import Booking, Packer, book_all
from tests.effort import examples

NOW = 1_800_000_000_250

policies = st.builds(
    WindowPolicy,
    st.integers(1, 5),
    st.just("PT1S"),
    spread=st.sampled_from(["jitter", "even"]),
    max_delay=st.sampled_from([None, "PT0.3S", "PT2.5S"]),
    first_window=st.sampled_from(["proportional", "whole"]),
)
requests = st.lists(
    st.builds(SlotRequest, st.sampled_from("abcdefghijkl"), st.integers(-1, 4).map(lambda n: NOW + 400 * n)),
    max_size=30,
)
windows = st.lists(st.integers(0, 5), max_size=4).map(
    lambda taken: [WindowCount(NOW - NOW % 1000 + 1000 * n, count, count) for n, count in enumerate(taken)]
)


def booked(
    policy: WindowPolicy, counts: list[WindowCount], requests: list[SlotRequest], *, batch: int
) -> tuple[list[Booking], list[WindowCount]]:
    """What comes of the requests in batches of that size, and the windows afterwards."""
    active = PolicyVersion("bank", 1, policy, datetime.now(UTC))
    occupancy = Occupancy(policy, CountedWindows(counts))
    packer = Packer(policy, occupancy, NOW, Random(7).random)
    bookings: list[Booking] = []
    existing: dict[str, AssignedSlot] = {}
    for first in range(0, len(requests), batch):
        outcomes, fresh = book_all(active, packer, requests[first : first + batch], existing)
        existing |= {slot.event_id: slot for slot in fresh}
        bookings += outcomes
    return bookings, list(occupancy.changed_windows())


@given(policies, windows, requests)
@settings(max_examples=examples(500))
def test_a_batch_is_booked_as_its_requests_one_by_one(
    policy: WindowPolicy, counts: list[WindowCount], requests: list[SlotRequest]
) -> None:
    together, windows_then = booked(policy, counts, requests, batch=30)
    in_turn, windows_in_turn = booked(policy, counts, requests, batch=1)
    assert list(map(repr, together)) == list(map(repr, in_turn))
    assert windows_then == windows_in_turn
