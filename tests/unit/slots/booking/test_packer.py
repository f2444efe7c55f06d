"""One config or several at once: the earliest instant that all admit, against a walk over every millisecond."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.durations import LATEST_MS, from_ms
from paceline.errors import InvalidInput
from paceline.slots.booking.packer import Full, Packer, Place, Side
from paceline.slots.calendars import Calendar
from paceline.slots.model import PolicyVersion, WindowPolicy, checked_names
from paceline.slots.occupancy import FullRun, Occupancy, WindowCount, full_runs
from paceline.slots.windows import align
from tests.effort import examples
from tests.models.held_windows import held_times

NOW = 1_000_000
SPAN = 700


@dataclass
class Counted:
    """Counters and runs in memory; counts what is read."""

    policy: WindowPolicy
    counts: dict[int, int] = field(default_factory=dict)
    reads: int = 0

    def __post_init__(self) -> None:
        counted = [WindowCount(start, taken, taken) for start, taken in sorted(self.counts.items())]
        self.runs = full_runs(counted, self.policy)
        self.counted = counted

    def windows_from(self, start_ms: int, limit: int) -> list[WindowCount]:
        self.reads += 1
        first = bisect_right(self.counted, start_ms - 1, key=lambda count: count.start_ms)
        return self.counted[first : first + limit]

    def run_before(self, start_ms: int) -> FullRun | None:
        self.reads += 1
        index = bisect_right(self.runs, start_ms, key=lambda run: run.start_ms) - 1
        return self.runs[index] if index >= 0 else None

    def runs_before(self, starts_ms: Sequence[int]) -> list[FullRun | None]:
        return [self.run_before(start) for start in starts_ms]

    def recounted(self, size_ms: int, from_ms: int, until_ms: int | None = None) -> list[WindowCount]:
        raise NotImplementedError

    def missing_until(self) -> int:
        return 0

    def times(self, from_ms: int, until_ms: int, limit: int) -> list[int]:
        held = held_times(self.counts, self.policy.size_ms)
        return [at for at in held if from_ms <= at < until_ms][:limit]


def side(name: str, policy: WindowPolicy, counts: dict[int, int] | None = None) -> Side:
    return Side(PolicyVersion(name, 1, policy, from_ms(0)), Occupancy(policy, Counted(policy, counts or {})))


def milliseconds(count: int) -> timedelta:
    return timedelta(milliseconds=count)


@st.composite
def policies(draw: st.DrawFn) -> WindowPolicy:
    closed = draw(st.lists(st.tuples(st.integers(0, SPAN), st.integers(1, 120)), max_size=2))
    blackouts = tuple(sorted((NOW + start, NOW + start + length) for start, length in closed))
    delay = draw(st.sampled_from([None, None, None, 0, 35, 90, 400]))
    return WindowPolicy(
        draw(st.integers(1, 4)),
        milliseconds(draw(st.sampled_from([10, 20, 30, 40, 70, 90, 240]))),
        spread=draw(st.sampled_from(["jitter", "even"])),
        calendar=Calendar("UTC", blackouts=blackouts) if blackouts else None,
        max_delay=None if delay is None else milliseconds(delay),
    )


class Walk:
    """The same, by looking at every millisecond. Windows are closed if a blackout touches them."""

    def __init__(self, policies: Sequence[WindowPolicy], held: Sequence[list[int]]) -> None:
        self.policies = policies
        self.held = held
        """The times of each config's slots."""

    def admits(self, index: int, at: int, effective: int) -> bool:
        policy, size = self.policies[index], self.policies[index].size_ms
        start = at // size * size
        end = start + size
        closed = policy.calendar.blackouts if policy.calendar else ()
        if any(since < end and start < until for since, until in closed):
            return False
        low = max(start, effective)
        if self.count(index, start, end) >= policy.max_per_window:
            return False
        share = policy.max_per_window * (end - low) // size
        if self.count(index, low, end) >= share:
            return False
        if policy.max_delay is not None:
            last = effective + policy.max_delay // timedelta(milliseconds=1)
            if at > last:
                return False
            cut = policy.max_per_window * (min(end, last + 1) - low) // size
            if start < effective:
                return self.count(index, low, min(end, last + 1)) < max(cut, min(1, share))
            return self.count(index, start, end) < (max(cut, 1) if start == effective else cut)
        return True

    def count(self, index: int, since: int, until: int) -> int:
        return sum(since <= at < until for at in self.held[index])

    def earliest(self, effective: int) -> int | None:
        at = effective
        while at < effective + 60 * SPAN:
            if all(self.admits(index, at, effective) for index in range(len(self.policies))):
                return at
            at += 1 if at < effective + SPAN else 10  # every window begins at a multiple of ten
            at -= at % 10 if at > effective + SPAN else 0
        return None

    def book(self, at: int) -> None:
        for held in self.held:
            held.append(at)


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_the_earliest_instant_that_all_admit_is_taken(data: st.DataObject) -> None:
    chosen = data.draw(st.lists(policies(), min_size=1, max_size=4))
    held: list[Counter[int]] = []
    for policy in chosen:
        fills = data.draw(st.lists(st.integers(0, policy.max_per_window), max_size=12))
        first = align(NOW, policy.size_ms)
        held.append(Counter({first + n * policy.size_ms: taken for n, taken in enumerate(fills) if taken}))
    walk = Walk(chosen, [held_times(counts, policy.size_ms) for policy, counts in zip(chosen, held, strict=True)])
    sides = [side(f"c{n}", policy, dict(counts)) for n, (policy, counts) in enumerate(zip(chosen, held, strict=True))]
    packer = Packer(sides, NOW, random.Random(1).random)
    for requested in data.draw(st.lists(st.integers(NOW - 20, NOW + 250), min_size=1, max_size=20)):
        effective = max(requested, NOW)
        expected = walk.earliest(effective)
        place = packer.place(requested)
        if expected is None:
            assert isinstance(place, Full)
            continue
        assert isinstance(place, Place)
        starts = [place.window_start_ms, *(window.window_start_ms for window in place.other_windows)]
        assert starts == [align(expected, policy.size_ms) for policy in chosen]
        for policy, start in zip(chosen, starts, strict=True):
            assert max(start, effective) <= place.scheduled_ms < start + policy.size_ms
            if policy.max_delay_ms is not None:
                assert place.scheduled_ms <= effective + policy.max_delay_ms
        walk.book(place.scheduled_ms)


def test_a_refusal_says_when_all_would_have_had_room() -> None:
    short = side("short", WindowPolicy(1, milliseconds(10), max_delay=milliseconds(35)))
    full = side("full", WindowPolicy(1, milliseconds(20)), {NOW + n * 20: 1 for n in range(5)})
    packer = Packer([short, full], NOW, random.Random(1).random)
    assert packer.place(NOW) == Full(NOW + 100)
    assert not list(short.occupancy.changed_windows()), "all or none"


def test_calendars_that_never_meet_find_nothing_and_say_so() -> None:
    day = {"zone": "UTC", "open": [{"from": "08:00", "to": "18:00"}]}
    night = {"zone": "UTC", "open": [{"from": "20:00", "to": "06:00"}]}
    sides = [side("day", WindowPolicy(1, "PT1H", calendar=day)), side("night", WindowPolicy(1, "PT1H", calendar=night))]
    packer = Packer(sides, NOW, random.Random(1).random)
    assert packer.place(NOW) == Full(None)
    assert packer.place(NOW + 1) == Full(None)


def test_the_even_spread_is_that_of_the_narrowest() -> None:
    wide = side("wide", WindowPolicy(1000, "PT1M"))
    narrow = side("narrow", WindowPolicy(10, "PT4S", spread="even"))
    packer = Packer([wide, narrow], 0, random.Random(1).random)
    alone = Packer([side("alone", narrow.active.policy)], 0, lambda: 0.0)
    for _ in range(35):
        joint, single = packer.place(0), alone.place(0)
        assert isinstance(joint, Place)
        assert isinstance(single, Place)
        assert joint.scheduled_ms == single.scheduled_ms


@pytest.mark.parametrize("windows", [10, 100_000])
def test_full_windows_are_jumped_not_walked(windows: int) -> None:
    """The number of reads does not depend on the backlog, nor on which of the configs has it."""
    size = 4000
    behind = side("behind", WindowPolicy(5, "PT4S"), {n * size: 5 for n in range(windows)})
    longer = side("longer", WindowPolicy(5, "PT8S"), {n * 2 * size: 5 for n in range(windows)})
    free = side("free", WindowPolicy(5, "PT1S"))
    packer = Packer([free, behind, longer], 0, random.Random(1).random)
    place = packer.place(0)
    assert isinstance(place, Place)
    assert place.other_windows[1].window_start_ms == windows * 2 * size
    for one in (behind, longer, free):
        assert isinstance(one.occupancy.reader, Counted)
        assert one.occupancy.reader.reads <= 6


def test_far_ahead_windows_end_with_the_time_that_is_taken() -> None:
    sides = [side("a", WindowPolicy(1, "P366D")), side("b", WindowPolicy(5, "PT1H"))]
    packer = Packer(sides, 0, random.Random(1).random)
    assert packer.place(LATEST_MS) == Full(None)
    place = packer.place(LATEST_MS - 86_400_000 * 370)
    assert not isinstance(place, Place) or place.scheduled_ms < LATEST_MS


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ([], "has 0 names"),
        ([f"c{n}" for n in range(9)], "has 9 names"),
        (["a", "b", "a"], "config_names[2]: 'a' is named twice"),
        (["a", ""], "config_names[1]"),
        (["a", 5], "config_names[1]"),
        ("a", "must be a list"),
    ],
)
def test_names_that_are_wrong_are_refused_by_place(names: object, problem: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        checked_names(names)
    assert problem in f"{refused.value.field}: {refused.value.problem}"


@pytest.mark.parametrize("order", [1, -1])
def test_the_first_free_time_does_not_depend_on_the_order_of_the_configs(order: int) -> None:
    sides = [
        side("late", WindowPolicy(1, "PT0.1S", max_delay="PT0.05S"), {NOW: 1}),  # free at NOW + 100
        side("cut", WindowPolicy(2, "PT1S", max_delay="PT0.6S"), {NOW: 1}),  # free behind its horizon
    ]
    assert Packer(sides[::order], NOW, random.random).place(NOW) == Full(NOW + 601)


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_a_refusal_names_the_earliest_time(data: st.DataObject) -> None:
    """The first instant that all admit but for their horizons, and at which none has used up what its horizon left."""
    chosen = data.draw(st.lists(policies(), min_size=2, max_size=4))
    chosen = [WindowPolicy(one.max_per_window, one.window, max_delay=one.max_delay) for one in chosen]
    times = []
    for policy in chosen:
        fills = data.draw(st.lists(st.integers(0, policy.max_per_window), max_size=12))
        first = align(NOW, policy.size_ms)
        times.append({first + n * policy.size_ms: taken for n, taken in enumerate(fills) if taken})
    walk = Walk(chosen, [held_times(counts, policy.size_ms) for policy, counts in zip(chosen, times, strict=True)])
    endless = Walk([WindowPolicy(one.max_per_window, one.window) for one in chosen], walk.held)
    sides = [side(f"c{n}", *pair) for n, pair in enumerate(zip(chosen, times, strict=True))]
    packer = Packer(sides, NOW, random.Random(1).random)

    def is_free(at: int, effective: int) -> bool:
        return all(
            endless.admits(index, at, effective)
            and (
                policy.max_delay_ms is None or at > effective + policy.max_delay_ms or walk.admits(index, at, effective)
            )
            for index, policy in enumerate(chosen)
        )

    for effective in data.draw(st.lists(st.integers(NOW, NOW + 250), min_size=1, max_size=12)):
        place = packer.place(effective)
        if isinstance(place, Place):
            walk.book(place.scheduled_ms)
        elif place.earliest_ms is not None:
            assert place.earliest_ms == next(
                at for at in range(effective, effective + 20 * SPAN) if is_free(at, effective)
            )


def test_a_refusal_looks_past_a_second_horizon() -> None:
    first = side("first", WindowPolicy(4, "PT0.2S", max_delay="PT0.049S"), {NOW: 1})  # used up to NOW + 50
    second = side("second", WindowPolicy(2, "PT0.05S", max_delay="PT0.074S"), {NOW + 50: 1})  # then up to NOW + 75
    assert Packer([first, second], NOW, random.random).place(NOW) == Full(NOW + 75)
