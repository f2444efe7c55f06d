"""What the window of an event's own time offers, and where in it the event goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.slots import WindowPolicy
from paceline.slots.booking.first_window import Offer, SpacedWindow, offer, spaced_time
from paceline.slots.forecast.forecast import peak
from paceline.slots.model import AssignedSlot, SlotRequest
from paceline.slots.occupancy import MAX_TIMES, CountedWindows, FullRun, Occupancy, WindowCount
from paceline.slots.windows import Spacing, align
from tests.effort import examples
from tests.models.slot_store import MemorySlotStore

START = 1_800_000_001_300


async def near_now(policy: WindowPolicy, load: float, seconds: int, seed: int | None = None) -> list[AssignedSlot]:
    """The slots of a stream of events that each want to run at once; evenly spaced, or at random times of a seed."""
    store, random = MemorySlotStore(seed=1), Random(seed)
    await store.configure("bank", policy, now_ms=START)
    apart = policy.size_ms / policy.max_per_window / load
    slots: list[AssignedSlot] = []
    at = float(START)
    for serial in range(int(seconds * 1000 / apart)):
        at += apart if seed is None else random.expovariate(1 / apart)
        now_ms = int(at)
        (slot,) = await store.book("bank", [SlotRequest(f"e{serial}", now_ms)], now_ms=now_ms)
        assert isinstance(slot, AssignedSlot)
        slots.append(slot)
    return slots


def pushed_on(slots: Sequence[AssignedSlot], size_ms: int) -> float:
    """The share of events that did not get the window of their own time."""
    return sum(slot.window_start_ms != align(slot.requested_ms, size_ms) for slot in slots) / len(slots)


@pytest.mark.parametrize(
    ("limit", "window", "seed"), [(100, "PT4S", None), (25, "PT1S", None), (1500, "PT4S", None), (100, "PT4S", 5)]
)
async def test_a_steady_stream_below_the_limit_is_served_at_once_and_evenly(
    limit: int, window: str, seed: int | None
) -> None:
    policy = WindowPolicy(limit, window, spread="even")
    slots = await near_now(policy, 0.8, 12 if limit > 100 else 40, seed)
    assert pushed_on(slots, policy.size_ms) <= (0.001 if seed is None else 0.05)
    per_second = limit * 1000 / policy.size_ms
    assert peak(sorted(slot.scheduled_ms for slot in slots), 1000) <= 1.3 * per_second
    if seed is None:
        assert max(slot.scheduled_ms - slot.requested_ms for slot in slots) <= 21


async def test_under_overload_every_window_is_full_and_none_exceeds_its_limit() -> None:
    policy = WindowPolicy(20, "PT1S", spread="even")
    slots = await near_now(policy, 1.5, 20)
    counts = Counter(slot.window_start_ms for slot in slots)
    assert max(counts.values()) == 20
    assert list(counts.values()).count(20) >= len(counts) - 2, "all but the first and the last"


class Times:
    """A reader of one window's slots that counts its reads."""

    def __init__(self, times: Sequence[int]) -> None:
        self.all = sorted(times)
        self.reads: list[tuple[int, int]] = []

    def windows_from(self, start_ms: int, limit: int) -> list[WindowCount]:
        return [WindowCount(0, len(self.all), len(self.all))] if self.all and start_ms <= 0 else []

    def run_before(self, start_ms: int) -> None:
        return None

    def runs_before(self, starts_ms: Sequence[int]) -> list[FullRun | None]:
        return [None] * len(starts_ms)

    def recounted(self, size_ms: int, from_ms: int, until_ms: int | None = None) -> list[WindowCount]:
        raise NotImplementedError

    def missing_until(self) -> int:
        return 0

    def times(self, from_ms: int, until_ms: int, limit: int) -> list[int]:
        self.reads.append((from_ms, until_ms))
        return [at for at in self.all if from_ms <= at < until_ms][:limit]


def offered(policy: WindowPolicy, times: Sequence[int], effective: int, horizon: int = 10**9) -> tuple[Offer, Times]:
    reader = Times(times)
    return offer(policy, Occupancy(policy, reader), 0, effective, horizon), reader


JITTER = WindowPolicy(10, "PT1S")


def test_slots_that_have_passed_do_not_count_against_the_rest() -> None:
    part, reader = offered(JITTER, [10, 20, 30, 40, 50, 60], 500)
    assert part == Offer(4, 500, 1000, 5), "the rest may have five, the window four more"
    assert reader.reads == [(500, 1000)]
    part, _ = offered(JITTER, [10, 20, 600, 700, 800, 900, 950], 500)
    assert part.places == 0, "the rest has its five"
    part, _ = offered(JITTER, [10, 20, 30, 600, 700, 800, 900], 500)
    assert part.places == 1


def test_times_are_read_only_if_they_decide() -> None:
    for times, effective in (([10, 600], 500), ([600] * 10, 500), ([], 999), ([10, 600], 0)):
        _, reader = offered(JITTER, times, effective)
        assert reader.reads == [], (times, effective)


def test_a_horizon_in_the_first_window_counts_what_lies_before_it() -> None:
    assert offered(JITTER, [10, 20, 30, 900, 950], 500, 699)[0] == Offer(2, 500, 700, 2)
    assert offered(JITTER, [10, 20, 30, 600, 950], 500, 699)[0].places == 1
    assert offered(JITTER, [10, 20, 30, 900, 950, 960, 970, 980], 500, 699)[0].places == 0, "the whole rest is used"


def test_a_window_with_too_many_slots_to_look_at_counts_all_of_them() -> None:
    many = WindowPolicy(MAX_TIMES * 4, "PT1S", spread="even")
    times = [at % 1000 for at in range(MAX_TIMES * 3)]
    part, reader = offered(many, times, 300)
    assert part.places == MAX_TIMES * 4 * 700 // 1000 - MAX_TIMES * 3
    assert len(reader.reads) == 1
    window = SpacedWindow.of(many, Occupancy(many, reader), 0)
    assert spaced_time([window], 100, 1000) is None


def test_without_known_slots_there_are_no_times() -> None:
    with pytest.raises(NotImplementedError):
        CountedWindows([]).times(0, 1000, 1)


@given(
    st.integers(1, 60),
    st.lists(st.integers(0, 999), max_size=30),
    st.integers(0, 999),
)
@settings(max_examples=examples(500))
def test_the_earliest_instant_that_keeps_the_distance(limit: int, times: list[int], at: int) -> None:
    slots, span = Spacing.of(limit, 1000)
    assert slots * 1000 / limit <= span < slots * 1000 / limit + 1
    ordered = sorted(times)

    def keeps(instant: int) -> bool:
        before = [time for time in ordered if time <= instant][-slots:]
        after = [time for time in ordered if time > instant][:slots]
        return (len(before) < slots or instant - before[0] >= span) and (
            len(after) < slots or after[-1] - instant >= span
        )

    expected = next(instant for instant in range(at, 100_000) if keeps(instant))
    assert Spacing(slots, span).next_free(ordered, at) == expected


def test_a_time_keeps_the_distance_in_each_config() -> None:
    wide, narrow = WindowPolicy(10, "PT1S", spread="even"), WindowPolicy(5, "PT1S", spread="even")
    windows = [
        SpacedWindow.of(policy, Occupancy(policy, Times(times)), 0)
        for policy, times in ((wide, [100, 350]), (narrow, [120]))
    ]
    assert spaced_time(windows, 50, 1000) == 450, "200 after 120 is too near to 350"
    assert spaced_time(windows, 50, 450) is None
