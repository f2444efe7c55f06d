"""Each request gets the earliest open window with room, and many at once what they would get one after another."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.durations import LATEST_MS, from_ms
from paceline.errors import NotFound, SlotsExhausted, StoreUnavailable
from paceline.slots import WindowPolicy
from paceline.slots.booking.packer import Full, Packer, Place, Places, Side
from paceline.slots.booking.packing import Booking, book_all, proves_config, unbooked
from paceline.slots.calendars import DAYS
from paceline.slots.model import AssignedSlot, PolicyVersion, SlotRequest, SlotWindow
from paceline.slots.occupancy import Occupancy, WindowCount
from paceline.slots.windows import align, even_position, usable
from tests.effort import examples
from tests.models.held_windows import HeldWindows, held_times

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
    occupancy = Occupancy(policy, HeldWindows(counts, policy.size_ms))
    packer = Packer([Side(active, occupancy)], NOW, Random(7).random)
    bookings: list[Booking] = []
    existing: dict[str, AssignedSlot] = {}
    for first in range(0, len(requests), batch):
        outcomes, fresh = book_all(packer, requests[first : first + batch], existing)
        assert all(existing[slot.event_id] is slot for slot in fresh)
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


def place_plainly(policy: WindowPolicy, times: list[int], now: int, requested: int) -> tuple[int, int, int] | Full:
    """The window, and the span for the slot, by a walk from window to window; or the first time with room."""
    effective, size = max(requested, now), policy.size_ms
    horizon = LATEST_MS - 1 if policy.max_delay_ms is None else effective + policy.max_delay_ms
    start = align(effective, size)

    def has_room(until: int) -> bool:
        """Whether the part of the window up to a time has room."""
        limit, end = policy.limit_at(start), start + size
        offered = usable(limit, size, start, effective, until, policy.first_window)
        taken = sum(start <= at < end for at in times)
        if start >= effective or policy.first_window == "whole":
            return taken < offered.capacity
        ahead = sum(effective <= at < end for at in times)
        share = limit * (end - effective) // size
        within = sum(effective <= at < offered.high_ms for at in times)
        return taken < limit and ahead < share and within < offered.capacity

    while True:
        is_open = policy.next_open(start) == start
        if is_open and has_room(start + size - 1):
            if start > horizon:
                return Full(start)
            _, low, high = usable(policy.limit_at(start), size, start, effective, horizon, policy.first_window)
            return (start, low, high) if has_room(horizon) else Full(high)
        start += size


hours = {"zone": "UTC", "open": [{"from": "08:00:00", "to": "08:00:03"}, {"from": "08:00:05", "to": "09:00:00"}]}
EIGHT = NOW - NOW % 86_400_000 + 8 * 3_600_000
some_policies = st.builds(
    WindowPolicy,
    st.integers(1, 4),
    st.just("PT1S"),
    spread=st.sampled_from(["jitter", "even"]),
    max_delay=st.sampled_from([None, "PT0S", "PT0.3S", "PT1S", "PT2.5S"]),
    first_window=st.sampled_from(["proportional", "whole"]),
    calendar=st.sampled_from([None, hours]),
    curve=st.sampled_from([(), [{"days": list(DAYS), "from": "08:00:02", "to": "08:00:04", "max": 1}]]),
)


@given(
    some_policies,
    st.lists(st.integers(0, 4), max_size=6),
    st.lists(st.tuples(st.integers(-2000, 7000), st.integers(1, 4)), max_size=12),
    st.integers(0, 1500),
)
@settings(max_examples=examples(1000))
def test_each_request_gets_the_earliest_open_window_with_room(
    policy: WindowPolicy, counts: list[int], requested: list[tuple[int, int]], after: int
) -> None:
    now = EIGHT + after
    windows = [WindowCount(EIGHT + 1000 * number, count, count) for number, count in enumerate(counts) if count]
    held = held_times({window.start_ms: window.taken for window in windows}, policy.size_ms)
    packer = packed(policy, *windows, now=now, seed=3)
    for early, most in requested:
        at = EIGHT + early
        found = packer.take_places(at, most)
        expected = place_plainly(policy, held, now, at)
        if isinstance(expected, Full):
            assert found == expected
            continue
        assert not isinstance(found, Full)
        start, times, others = found
        assert (start, others) == (expected[0], ())
        assert 1 <= len(times) <= most
        assert all(expected[1] <= time < expected[2] for time in times)
        for time in times:
            assert place_plainly(policy, held, now, at) == expected, "every one of them has room"
            held.append(time)
        if len(times) < most and start >= max(at, now):
            assert place_plainly(policy, held, now, at) != expected, "and no other has"


def packed(policy: WindowPolicy, *windows: WindowCount, now: int = 0, seed: int = 1, version: int = 1) -> Packer:
    occupancy = Occupancy(policy, HeldWindows(windows, policy.size_ms))
    return Packer([Side(PolicyVersion("bank", version, policy, from_ms(0)), occupancy)], now, Random(seed).random)


def test_one_place_is_the_first_of_several() -> None:
    policy = WindowPolicy(3, "PT1S", spread="even")
    assert packed(policy).place(0) == Place(0, 0)
    assert packed(policy, WindowCount(0, 1, 1)).place(0) == Place(0, even_position(1, 1000))
    assert packed(policy, WindowCount(0, 1, 2)).place(0) == Place(0, even_position(2, 1000)), "by the places ever given"
    packer = packed(policy)
    packer.place(0)
    assert packer.sides[0].occupancy.taken(0) == 1, "and takes no other"
    full = packed(WindowPolicy(1, "PT1S", max_delay="PT0S"), WindowCount(0, 1, 1))
    assert full.place(0) == Full(1000)


def test_a_request_for_the_same_time_goes_on_where_the_last_one_was() -> None:
    packer = packed(WindowPolicy(2, "PT1S", spread="even"))
    assert [packer.take_places(0, 5) for _ in range(2)] == [
        (0, [0, even_position(1, 1000)], ()),
        (1000, [1000, 1000 + even_position(1, 1000)], ()),
    ]
    assert packer.take_places(0, 1) == (2000, [2000], ())
    assert packer.take_places(500, 1) == (2000, [2000 + even_position(1, 1000)], ())
    assert packer.take_places(0, 1) == (3000, [3000], ())


def test_time_ends() -> None:
    policy = WindowPolicy(1, "PT1S")
    last = align(LATEST_MS - 1, 1000)
    assert packed(policy).take_places(LATEST_MS, 1) == Full(None)
    assert packed(policy).take_places(LATEST_MS + 1000, 1) == Full(None)
    found = packed(policy).take_places(last, 1)
    assert not isinstance(found, Full)
    assert found[0] == last
    assert packed(policy, WindowCount(last, 1, 1)).take_places(last, 1) == Full(None)
    assert packed(WindowPolicy(1, "PT1S", first_window="whole")).place(LATEST_MS - 1) == Place(last, LATEST_MS - 1)
    sevens = WindowPolicy(7, "PT7S")
    cut = align(LATEST_MS - 1, 7000)
    capacity = 7 * (LATEST_MS - cut) // 7000
    assert 0 < capacity < 7, "the last window is cut by the end of time"
    assert packed(sevens, WindowCount(cut, capacity, 7)).take_places(cut, 1) == Full(None)
    bounded = WindowPolicy(1, "PT1S", max_delay="P1D")
    assert packed(bounded, WindowCount(last, 1, 1)).take_places(last, 1) == Full(None)
    assert not isinstance(packed(bounded).take_places(last, 1), Full)


def test_where_the_horizon_cuts_a_window_places_keep_pace_with_it() -> None:
    """Four of ten fit into the first 400 ms of the second window, each behind its share of them."""
    policy = WindowPolicy(10, "PT1S", max_delay="PT1.399S")
    packer = packed(policy, WindowCount(0, 10, 10))
    found = packer.take_places(0, 9)
    assert not isinstance(found, Full)
    start, times, _ = found
    assert (start, len(times)) == (1000, 4)
    assert all(1000 + 100 * number <= at < 1400 for number, at in enumerate(times))
    assert packer.take_places(0, 1) == Full(1400), "the rest of it lies beyond the horizon"


def test_even_places_in_a_window_that_the_horizon_cuts() -> None:
    policy = WindowPolicy(10, "PT1S", max_delay="PT1.399S", spread="even")
    found = packed(policy, WindowCount(0, 10, 10), WindowCount(1000, 1, 3)).take_places(0, 9)
    spans = [(1000 + 100 * number, 400 - 100 * number) for number in (1, 2, 3)]
    places = [low + even_position(3 + number, span) for number, (low, span) in enumerate(spans)]
    assert found == (1000, places, ())


def test_a_horizon_a_moment_before_the_end_of_a_window_cuts_it() -> None:
    for delay, places in (("PT0.999S", 10), ("PT0.998S", 9)):
        found = packed(WindowPolicy(10, "PT1S", max_delay=delay)).take_places(0, 99)
        assert not isinstance(found, Full)
        assert len(found[1]) == places


ACTIVE = PolicyVersion("bank", 7, WindowPolicy(2, "PT1S", spread="even", max_delay="PT1S"), datetime.now(UTC))


def requested(*names: str, at: int = 0) -> list[SlotRequest]:
    return [SlotRequest(name, at) for name in names]


def test_new_slots_have_all_their_values() -> None:
    bookings, fresh = book_all(packed(ACTIVE.policy, version=7), requested("a", "b"), {}, "payments")
    assert (
        bookings
        == fresh
        == [
            AssignedSlot("a", "bank", 7, 0, 0, 0, False, "payments"),
            AssignedSlot("b", "bank", 7, 0, 0, even_position(1, 1000), False, "payments"),
        ]
    )


def test_an_event_that_has_a_slot_keeps_it() -> None:
    known = AssignedSlot("b", "other", 1, 5, 6, 7, False, None)
    bookings, fresh = book_all(packed(ACTIVE.policy, version=7), requested("a", "b", "a", "c"), {"b": known})
    assert [slot.event_id for slot in fresh] == ["a", "c"]
    first = fresh[0]
    assert bookings == [first, known._replace(existing=True), first._replace(existing=True), fresh[1]]


def test_requests_that_do_not_fit_are_refused_with_the_earliest_time() -> None:
    requests = [*requested(*"abcdefg"), *requested("z", at=9000)]
    bookings, fresh = book_all(packed(ACTIVE.policy, version=7), requests, {})
    refused = [booking for booking in bookings if isinstance(booking, SlotsExhausted)]
    assert [slot.event_id for slot in fresh] == ["a", "b", "z"]
    assert [type(booking) for booking in bookings[2:7]] == [SlotsExhausted] * 5
    assert {(error.config, error.earliest) for error in refused} == {("bank", from_ms(1001))}
    ended, _ = book_all(packed(ACTIVE.policy, version=7), requested("a", at=LATEST_MS), {})
    (error,) = ended
    assert isinstance(error, SlotsExhausted)
    assert (error.config, error.earliest) == ("bank", None)


class Handing(Packer):
    """A packer that hands out prepared places, and notes what it is asked for."""

    def __init__(self, *places: Places) -> None:
        super().__init__(packed(ACTIVE.policy).sides, 0, Random(1).random)
        self.places = list(places)
        self.asked: list[tuple[int, int]] = []

    def take_places(self, requested_ms: int, max_places: int) -> Places | Full:
        self.asked.append((requested_ms, max_places))
        return self.places.pop(0)


def test_adjacent_requests_for_one_time_are_placed_together() -> None:
    others = (SlotWindow("merchant", 2, 500),)
    packer = Handing((0, [1, 2], others), (1000, [1003], ()), (2000, [2004], ()), (0, [5], ()))
    requests = [*requested("a", "b", "c"), *requested("d", at=9), *requested("e")]
    bookings, _ = book_all(packer, requests, {})
    assert packer.asked == [(0, 3), (0, 1), (9, 1), (0, 1)]
    slots = [booking for booking in bookings if isinstance(booking, AssignedSlot)]
    assert [(slot.window_start_ms, slot.scheduled_ms) for slot in slots] == [
        (0, 1),
        (0, 2),
        (1000, 1003),
        (2000, 2004),
        (0, 5),
    ]
    assert [slot.other_windows for slot in slots] == [others, others, (), (), ()]


def test_more_places_than_were_asked_for_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="argument 2"):
        book_all(Handing((0, [1, 2], ())), requested("a"), {})


def test_without_a_config_only_events_with_a_slot_get_one() -> None:
    known = AssignedSlot("b", "other", 1, 5, 6, 7, False, None)
    missing, kept = unbooked(NotFound("config", "bank"), requested("a", "b"), {"b": known})
    assert isinstance(missing, NotFound)
    assert (missing.kind, missing.name) == ("config", "bank")
    assert kept == known._replace(existing=True)


def test_a_config_is_proven_by_its_own_slots_and_by_a_refusal() -> None:
    own = AssignedSlot("a", "bank", 1, 0, 0, 0, False)
    other = own._replace(config_name="other")
    joint = other._replace(other_windows=(SlotWindow("bank", 1, 0),))
    assert proves_config("bank", [other, own])
    assert proves_config("bank", [joint])
    assert proves_config("bank", [NotFound("config", "bank"), SlotsExhausted("bank", None)])
    assert not proves_config("bank", [other, NotFound("config", "bank"), StoreUnavailable()])
    assert not proves_config("bank", [])
