"""Which earlier windows slots move to: the earliest with room that keeps their order, against a plain walk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.durations import LATEST_MS, from_ms
from paceline.errors import Conflict
from paceline.slots.model import AssignedSlot, PolicyVersion, SlotWindow, WindowPolicy
from paceline.slots.occupancy import CountedWindows, Occupancy, WindowCount
from paceline.slots.replan.assignment import (
    Candidate,
    Counts,
    Limits,
    PlannedConfig,
    assign_earlier,
    capacity,
    common_windows,
)
from tests.effort import examples

SIZE = 1000
MINUTE = 60_000


def planned(policy: WindowPolicy, times: Sequence[int], name: str = "bank") -> PlannedConfig:
    counts = Counter(at // policy.size_ms * policy.size_ms for at in times)
    windows = [WindowCount(start, count, count) for start, count in sorted(counts.items())]
    return PlannedConfig(PolicyVersion(name, 2, policy, from_ms(0)), Occupancy(policy, CountedWindows(windows)))


def candidate(number: int, at: int, requested: int, *, may_move: bool = True) -> Candidate:
    return Candidate(AssignedSlot(f"e{number}", "bank", 1, requested, at // SIZE * SIZE, at, True), may_move)


@given(
    st.integers(1, 3),
    st.lists(st.tuples(st.integers(0, 8 * SIZE - 1), st.integers(0, 8 * SIZE), st.booleans()), max_size=12),
    st.integers(0, 3 * SIZE),
    st.integers(0, 3 * SIZE),
)
@settings(max_examples=examples(500))
def test_each_slot_gets_the_earliest_window_with_room_that_keeps_the_order(
    limit: int, booked: list[tuple[int, int, bool]], earliest: int, reached: int
) -> None:
    policy = WindowPolicy(limit, "PT1S")
    candidates = [
        candidate(number, at, min(asked, at), may_move=may_move)
        for number, (at, asked, may_move) in enumerate(sorted(booked))
    ]
    config = planned(policy, [one.slot.scheduled_ms for one in candidates])
    assigned = assign_earlier(Limits(policy, earliest), candidates, config, reached)

    taken = Counter(one.slot.scheduled_ms // SIZE for one in candidates)
    last = reached
    for one, assignment in zip(candidates, assigned, strict=True):
        own = one.slot.scheduled_ms // SIZE
        expected, low = own, one.slot.scheduled_ms
        if one.may_move and one.slot.scheduled_ms >= earliest:
            effective = max(one.slot.requested_ms, earliest)
            for window in range(max(effective, last) // SIZE, own):
                if taken[window] < capacity(policy, window * SIZE, effective):
                    expected, low = window, max(effective, window * SIZE)
                    taken[own] -= 1
                    taken[window] += 1
                    break
        last = max(last, low)
        assert assignment.window_ms == expected * SIZE
        assert assignment.candidate is one


def test_closed_windows_are_passed_over() -> None:
    policy = WindowPolicy(
        1,
        "PT1M",
        calendar={"zone": "UTC", "open": [{"from": "00:01", "to": "00:02"}, {"from": "00:04", "to": "00:06"}]},
    )
    slots = [Candidate(AssignedSlot(f"e{n}", "bank", 1, 0, 0, 5 * MINUTE + n, True)) for n in range(3)]
    config = planned(policy, [one.slot.scheduled_ms for one in slots])
    windows = [one.window_ms // MINUTE for one in assign_earlier(Limits(policy, 0), slots, config, 0)]
    assert windows == [1, 4, 5]


def test_a_slot_under_several_configs_moves_to_where_all_have_room() -> None:
    bank, merchant = WindowPolicy(1, "PT4S"), WindowPolicy(2, "PT1S")
    slot = AssignedSlot("e", "bank", 1, 0, 8000, 9500, True, None, (SlotWindow("merchant", 1, 9000),))
    config = planned(bank, [100, 9500])
    other = planned(merchant, [4100, 4200, 9500], "merchant")
    (moved,) = assign_earlier(Limits(bank, 0), [Candidate(slot)], config, 0, {"merchant": other})
    assert (moved.window_ms, moved.starts_ms) == (4000, (4000, 5000))
    crowded = planned(merchant, [*range(0, 9000, 500), 9500], "merchant")
    (stays,) = assign_earlier(Limits(bank, 0), [Candidate(slot)], planned(bank, [100, 9500]), 0, {"merchant": crowded})
    assert (stays.window_ms, stays.starts_ms) == (8000, (8000, 9000))


def test_a_window_offers_what_a_booking_would_find_there() -> None:
    policy = WindowPolicy(10, "PT1S")
    assert capacity(policy, 1000, 0) == capacity(policy, 1000, 1000) == 10
    assert [capacity(policy, 1000, at) for at in (1001, 1500, 1899, 1900)] == [9, 5, 1, 1]
    assert capacity(WindowPolicy(10, "PT1S", first_window="whole"), 1000, 1500) == 10


def test_slots_are_shifted_with_what_the_windows_held_before() -> None:
    config = planned(WindowPolicy(5, "PT1S"), [1, 2, 3001])
    assert config.shift(0, 3000) == 1, "the second place there"
    assert config.shift(0, 4000, 1) == 0
    assert (config.before, config.occupancy.taken(3000)) == ({3000: 1, 0: 2, 4000: 0}, 2)
    with pytest.raises(Conflict):
        config.shift(5000, 0)


def test_who_may_move_and_from_where_on() -> None:
    limits = Limits(WindowPolicy(1, "PT1S"), 5000)
    assert limits.effective(candidate(0, 9000, 7000).slot) == 7000
    assert limits.effective(candidate(0, 9000, 3000).slot) == 5000
    assert [limits.may_move(candidate(0, at, 0)) for at in (4999, 5000)] == [False, True]
    assert not limits.may_move(candidate(0, 6000, 0, may_move=False))


def test_windows_that_slots_left_by_the_plan_have_room() -> None:
    counts = Counts(planned(WindowPolicy(1, "PT1S"), [100, 1100, 2100, 4100]))
    assert counts.admitting(None, 0, 0) == 3000
    assert counts.admitting(1000, 0, 0) == 1000, "its own needs no room"
    counts.leave(2000)
    assert counts.admitting(None, 0, 0) == 2000
    counts.enter(2000)
    counts.enter(3000)
    assert counts.admitting(None, 0, 0) == 5000
    assert not counts.is_full(5000)
    counts.shift(4000, 5000)
    assert (counts.is_full(4000), counts.is_full(5000)) == (False, True)
    assert counts.admitting(None, 0, 3500) == 4000


def test_no_window_is_left_where_time_ends() -> None:
    last = LATEST_MS - LATEST_MS % SIZE
    times = range(last - 3 * SIZE, LATEST_MS, SIZE)
    assert Counts(planned(WindowPolicy(1, "PT1S"), times)).admitting(None, 0, times[0]) >= LATEST_MS


def test_the_first_instant_that_all_admit() -> None:
    def every(size: int, offset: int = 0) -> object:
        """Windows of `size`, of which every second one admits."""
        return lambda at: next(start for start in range(offset, 10**6, 2 * size) if start + size > at)

    finders = [every(10), every(15, 15)]
    assert common_windows(finders, 0, 1000) == (20, 15)  # type: ignore[arg-type]
    assert common_windows(finders, 31, 1000) == (40, 45)  # type: ignore[arg-type]
    assert common_windows(finders, 31, 45) is None  # type: ignore[arg-type]
    assert common_windows(finders, 50, 50) is None  # type: ignore[arg-type]
