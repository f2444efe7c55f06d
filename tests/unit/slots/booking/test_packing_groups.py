"""Requests under any sets of configs are packed in the order in which they came."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.durations import from_ms
from paceline.errors import InvalidInput, NotFound
from paceline.slots import AssignedSlot, PolicyVersion, SlotRequest, WindowPolicy
from paceline.slots.booking.packer import Side
from paceline.slots.booking.packing import GroupPacker, event_ids_of, names_of, requests_by_config
from paceline.slots.model import BookingGroup
from paceline.slots.occupancy import Occupancy
from tests.effort import examples
from tests.models.held_windows import HeldWindows
from tests.models.slot_store import MemorySlotStore

NOW = 1_800_000_000_300
POLICIES = {
    "bank": WindowPolicy(4, "PT1S"),
    "a": WindowPolicy(1, "PT1S", spread="even"),
    "b": WindowPolicy(3, "PT2S", max_delay="PT3S"),
}
names = st.sampled_from([("bank",), ("a",), ("bank", "a"), ("b", "bank"), ("a", "b", "bank")])
groups = st.lists(
    st.builds(
        BookingGroup,
        names,
        st.lists(
            st.builds(
                SlotRequest, st.sampled_from("abcdefghijklmnop"), st.integers(-1, 4).map(lambda n: NOW + 400 * n)
            ),
            min_size=1,
            max_size=4,
        ),
        st.sampled_from([None, "payments"]),
    ),
    max_size=12,
)


@given(groups)
@settings(max_examples=examples(300))
async def test_one_transaction_books_what_one_for_each_request_would(groups: list[BookingGroup]) -> None:
    together, in_turn = MemorySlotStore(seed=1), MemorySlotStore(seed=1)
    for store in (together, in_turn):
        for name, policy in POLICIES.items():
            await store.configure(name, policy, now_ms=NOW)
    outcomes = [booking for bookings in await together.book_groups(groups, now_ms=NOW) for booking in bookings]
    expected = [
        (await in_turn.book(group.names, [request], now_ms=NOW, owner=group.owner))[0]
        for group in groups
        for request in group.requests
    ]
    windows = [one.windows if isinstance(one, AssignedSlot) else repr(one) for one in outcomes]
    # Times are drawn: where one was drawn differently, later requests may find other windows.
    drawn_alike = True
    for one, other, window in zip(outcomes, expected, windows, strict=True):
        if not drawn_alike:
            break
        assert window == (other.windows if isinstance(other, AssignedSlot) else repr(other))
        drawn_alike = repr(one) == repr(other)
    counts = Counter(
        charged for one in outcomes if isinstance(one, AssignedSlot) and not one.existing for charged in one.windows
    )
    assert all(count <= POLICIES[window.config_name].max_per_window for window, count in counts.items())


def test_an_event_of_an_earlier_group_keeps_its_slot() -> None:
    policy = WindowPolicy(5, "PT1S")
    sides = {
        name: Side(PolicyVersion(name, 1, policy, from_ms(0)), Occupancy(policy, HeldWindows([], 1000)))
        for name in ("a", "b")
    }
    packer = GroupPacker(sides, {"full": InvalidInput("config_name", "is full")}, 0, Random(1).random)
    request = SlotRequest("e", 5000)
    ((first,), (again,), (refused,), (missing,)) = packer.book(
        [
            BookingGroup(("a",), [request]),
            BookingGroup(("b", "a"), [request]),
            BookingGroup(("a", "full"), [SlotRequest("f", 5000)]),
            BookingGroup(("none",), [SlotRequest("g", 5000)]),
        ],
        {},
    )
    assert isinstance(first, AssignedSlot)
    assert again == first._replace(existing=True)
    assert packer.fresh == [first]
    assert (type(refused), type(missing)) == (InvalidInput, NotFound)


def test_what_is_locked_and_read_for_groups() -> None:
    one, other = SlotRequest("e", 1), SlotRequest("f", 2)
    groups = [BookingGroup(("b", "a"), [one]), BookingGroup(("c", "b"), [other])]
    assert names_of(groups) == ["a", "b", "c"]
    assert event_ids_of(groups) == ["e", "f"]
    assert requests_by_config(groups) == {"b": [one, other], "a": [one], "c": [other]}
    assert requests_by_config(groups[:1]) == {"b": [one], "a": [one]}
