"""How full the windows are: what was read, what was changed, and runs of full windows, against a plain table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.durations import LATEST_MS
from paceline.slots.calendars import DAYS
from paceline.slots.model import WindowPolicy
from paceline.slots.occupancy import (
    CountedWindows,
    CountReader,
    FullRun,
    Occupancy,
    RunChanges,
    WindowCount,
    full_runs,
    joined_runs,
    split_run,
)
from tests.effort import examples
from tests.models.held_windows import held_times

MINUTE = 60_000
LAST = 12
"""The windows that the tests use, by number."""
OPEN = WindowPolicy(2, "PT1M")
HOURS = WindowPolicy(
    2,
    "PT1M",
    calendar={"zone": "UTC", "open": [{"from": "00:00", "to": "00:03"}, {"from": "00:05", "to": "00:13"}]},
)
CURVED = WindowPolicy(2, "PT1M", curve=[{"days": list(DAYS), "from": "00:04", "to": "00:07", "max": 1}])
policies = st.sampled_from([OPEN, HOURS, CURVED])
tables = st.lists(st.integers(0, 3), min_size=LAST, max_size=LAST)
numbers = st.integers(0, LAST - 1)


class Stored:
    """The counters and the full runs of a store. It notes how it is read."""

    def __init__(self, policy: WindowPolicy, taken: Sequence[int], missing_ms: int = 0) -> None:
        self.counts = [WindowCount(MINUTE * n, count, count + n % 2) for n, count in enumerate(taken) if count]
        self.runs = full_runs(self.counts, policy)
        self.missing_ms = missing_ms
        self.reads: list[tuple[int, int]] = []
        self.recounts: list[tuple[int, int, int | None]] = []
        self.asked: list[int] = []
        """Of which times the run before was asked for, in one go."""
        self.asked_times: list[tuple[int, int, int]] = []
        self.singly: list[int] = []
        """And alone."""

    def windows_from(self, start_ms: int, limit: int) -> list[WindowCount]:
        self.reads.append((start_ms, limit))
        return [count for count in self.counts if count.start_ms >= start_ms][:limit]

    def run_before(self, start_ms: int) -> FullRun | None:
        self.singly.append(start_ms)
        return self._run_before(start_ms)

    def _run_before(self, start_ms: int) -> FullRun | None:
        return max((run for run in self.runs if run.start_ms <= start_ms), default=None)

    def runs_before(self, starts_ms: Sequence[int]) -> list[FullRun | None]:
        self.asked += starts_ms
        return [self._run_before(start) for start in starts_ms]

    def recounted(self, size_ms: int, from_ms: int, until_ms: int | None = None) -> list[WindowCount]:
        self.recounts.append((size_ms, from_ms, until_ms))
        return [count for count in self.counts if count.start_ms >= from_ms]

    def missing_until(self) -> int:
        return self.missing_ms

    def times(self, from_ms: int, until_ms: int, limit: int) -> list[int]:
        self.asked_times.append((from_ms, until_ms, limit))
        held = held_times({count.start_ms: count.taken for count in self.counts}, MINUTE)
        return [at for at in held if from_ms <= at < until_ms][:limit]


class Plain:
    """The same windows as a table that is always whole."""

    def __init__(self, policy: WindowPolicy, stored: Stored) -> None:
        self.policy = policy
        self.counts = {start: [taken, placed] for start, taken, placed in stored.counts}
        self.changed: set[int] = set()

    def taken(self, start: int) -> int:
        return self.counts.get(start, [0])[0]

    def is_full(self, start: int) -> bool:
        return self.taken(start) >= self.policy.limit_at(start)

    def first_free(self, start: int) -> int:
        while self.is_full(start):
            start = self.policy.next_open(start + MINUTE)
        return start

    def take(self, start: int, places: int) -> int:
        counts = self.counts.setdefault(start, [0, 0])
        counts[0] += places
        counts[1] += places
        self.changed.add(start)
        return counts[1] - places

    def release(self, start: int, places: int) -> None:
        self.counts[start][0] -= places
        self.changed.add(start)

    def windows(self) -> list[WindowCount]:
        return [WindowCount(start, *counts) for start, counts in sorted(self.counts.items())]


steps = st.lists(
    st.tuples(st.sampled_from(["taken", "take", "release", "free", "known", "empty"]), numbers, st.integers(1, 3)),
    max_size=30,
)


@given(policies, tables, steps, st.integers(1, 5), st.none() | st.integers(1, 3), st.sampled_from(["free", "release"]))
@settings(max_examples=examples(1000))
def test_a_view_shows_what_a_whole_table_would(
    policy: WindowPolicy,
    taken: list[int],
    walk: list[tuple[str, int, int]],
    chunk: int,
    first_chunk: int | None,
    without: str,
) -> None:
    """Either searches or releases: a search may use a stored run, which does not know what was released since."""
    stored = Stored(policy, taken)
    view, plain = Occupancy(policy, stored, chunk=chunk, first_chunk=first_chunk), Plain(policy, stored)
    for step, number, places in walk:
        if step == without:
            continue
        start = MINUTE * number
        opening = policy.next_open(start)
        if step == "taken":
            assert view.taken(start) == plain.taken(start)
            assert view.knows(start)
        elif step == "take":
            view.taken(start)
            assert view.take(start, places) == plain.take(start, places)
            assert view.count(start) == WindowCount(start, *plain.counts[start])
        elif step == "release" and plain.taken(start) >= places:
            view.release(start, places)
            plain.release(start, places)
        elif step == "free":
            assert view.first_free(opening) == plain.first_free(opening)
        elif step == "known":
            found = view.first_known_free(opening)
            assert opening <= found <= plain.first_free(opening)
            assert not view.knows(found) or not plain.is_full(found)
        elif step == "empty":
            end = view.empty_until(start)
            assert start <= end <= LATEST_MS
            assert not [at for at in plain.counts if start <= at < end]
            assert end > start or start in plain.counts
    assert list(view.changed_windows()) == [window for window in plain.windows() if window.start_ms in plain.changed]


@given(policies, tables, st.lists(st.tuples(numbers, st.integers(1, 3)), max_size=8), st.integers(1, 5), st.booleans())
@settings(max_examples=examples(1000))
def test_filled_windows_join_the_stored_runs(
    policy: WindowPolicy, taken: list[int], takes: list[tuple[int, int]], chunk: int, searches: bool
) -> None:
    stored = Stored(policy, taken)
    view, plain = Occupancy(policy, stored, chunk=chunk), Plain(policy, stored)
    for number, places in takes:
        start = policy.next_open(MINUTE * number)
        if searches:
            start = view.first_free(start)
        view.taken(start)
        view.take(start, places)
        plain.take(start, places)
    check_runs(view, plain, stored)


@given(policies, tables, st.lists(numbers, max_size=8), st.integers(1, 5))
@settings(max_examples=examples(500))
def test_a_window_that_has_room_again_splits_its_run(
    policy: WindowPolicy, taken: list[int], releases: list[int], chunk: int
) -> None:
    """One of them per transaction, as a cancelled slot has it."""
    stored = Stored(policy, taken)
    for number in releases:
        start = MINUTE * number
        view, plain = Occupancy(policy, stored, chunk=chunk), Plain(policy, stored)
        if plain.taken(start):
            view.release(start)
            plain.release(start, 1)
            check_runs(view, plain, stored)
            stored.counts = [window for window in plain.windows() if window.taken]
            stored.runs = full_runs(stored.counts, policy)


def check_runs(view: Occupancy, plain: Plain, stored: Stored) -> None:
    expected = full_runs(plain.windows(), plain.policy)
    changes = view.changed_runs()
    kept = [run for run in stored.runs if run.start_ms not in changes.removed]
    assert sorted(kept + changes.written) == expected
    assert len(changes.removed) == len(set(changes.removed))
    if not view.changes_runs:
        assert changes == RunChanges([], [])


def test_windows_are_read_in_growing_chunks_and_once() -> None:
    stored = Stored(OPEN, [1] * LAST)
    view = Occupancy(OPEN, stored, chunk=5, first_chunk=1)
    for number in range(LAST):
        view.taken(MINUTE * number)
        view.taken(MINUTE * number)
    assert stored.reads == [(0, 1), (MINUTE, 2), (3 * MINUTE, 4), (7 * MINUTE, 5)]
    assert view.taken(MINUTE * 500) == 0
    assert stored.reads[4:] == [(MINUTE * LAST, 5)] or stored.reads[4:] == [(MINUTE * 500, 5)]
    assert view.stored == {MINUTE * number for number in range(LAST)}


def test_a_short_answer_means_that_nothing_follows() -> None:
    stored = Stored(OPEN, [1, 1])
    view = Occupancy(OPEN, stored, chunk=3)
    assert view.empty_until(2 * MINUTE) == LATEST_MS
    assert view.knows(LATEST_MS - 1)
    assert view.taken(5 * MINUTE) == 0
    assert len(stored.reads) == 1


def test_a_long_run_is_passed_without_reading_its_windows() -> None:
    stored = Stored(OPEN, [2] * LAST)
    view = Occupancy(OPEN, stored)
    assert view.first_free(0) == MINUTE * LAST
    assert [start for start, _ in stored.reads] == [MINUTE * LAST]
    assert view.first_known_free(0) == MINUTE * LAST, "what was found is remembered"


def test_what_was_learned_is_not_read_again() -> None:
    stored = Stored(OPEN, [])
    view = Occupancy(OPEN, stored)
    view.learn_window(0, WindowCount(0, 2, 3))
    view.learn_window(MINUTE, None)
    assert (view.taken(0), view.taken(MINUTE)) == (2, 0)
    assert (view.knows(1), view.knows(2 * MINUTE), view.stored) == (False, False, {0})
    view.learn_run(3 * MINUTE, FullRun(2 * MINUTE, 5 * MINUTE))
    view.learn_run(6 * MINUTE, FullRun(2 * MINUTE, 5 * MINUTE))
    view.learn_run(8 * MINUTE, None)
    assert view.first_known_free(3 * MINUTE) == 5 * MINUTE
    assert view.first_known_free(6 * MINUTE) == 6 * MINUTE
    assert stored.reads == []


def test_what_was_taken_is_not_overwritten_by_what_is_read() -> None:
    view = Occupancy(OPEN, Stored(OPEN, []))
    view.taken(0)
    view.take(0, 2)
    view.learn_window(0, WindowCount(0, 1, 1))
    assert view.taken(0) == 2


def test_one_place_is_taken_and_given_back_unless_more_are_named() -> None:
    view = Occupancy(OPEN, Stored(OPEN, []))
    assert [view.take(0), view.take(0)] == [0, 1]
    assert view.first_known_free(0) == MINUTE, "it is full, though it was never read"
    view.release(0)
    assert view.count(0) == WindowCount(0, 1, 2)


def test_a_window_is_full_by_its_slots_and_not_by_the_places_ever_given() -> None:
    view = Occupancy(OPEN, Stored(OPEN, []))
    view.learn_window(0, WindowCount(0, 0, 5))
    view.take(0)
    assert not view.changes_runs
    view.take(0)
    assert view.changes_runs


def test_windows_that_are_known_are_searched_without_the_stores_runs() -> None:
    stored = Stored(OPEN, [2, 1])
    view = Occupancy(OPEN, stored)
    view.taken(0)
    assert view.first_free(0) == MINUTE
    assert view.first_free(2 * MINUTE) == 2 * MINUTE
    assert stored.singly == []


def test_a_full_window_of_no_stored_run_splits_none() -> None:
    """As after a change of the limit, before the runs are written anew."""
    lone = Occupancy(OPEN, CountedWindows([WindowCount(0, 2, 2)]))
    lone.release(0)
    assert lone.changed_runs() == RunChanges([], [])
    stored = Stored(OPEN, [2, 2])
    stored.runs = [FullRun(0, MINUTE)]
    view = Occupancy(OPEN, stored)
    view.release(MINUTE)
    assert view.changed_runs() == RunChanges([], [])


def test_stretches_that_were_read_are_joined() -> None:
    """Whatever the order: [2, 3), [0, 1), [1, 2), and one across all."""
    view = Occupancy(OPEN, Stored(OPEN, []))
    for low, high in ((20, 30), (0, 10), (10, 20), (40, 50)):
        view._learn([], low, high)
    assert view._known == [(0, 30), (40, 50)]
    view._learn([], 25, 40)
    assert view._known == [(0, 50)]
    view._learn([], 10, 20)
    assert view._known == [(0, 50)]
    view._learn([], 60, 70)
    view._learn([], 55, 80)
    assert view._known == [(0, 50), (55, 80)]


def test_a_closed_window_is_part_of_no_run() -> None:
    """The minutes 3 and 4 are closed; what lies there from before the calendar neither joins nor splits."""
    full = Stored(HOURS, [2, 2, 2, 2, 2, 2])
    assert full.runs == [FullRun(0, 6 * MINUTE)]
    view = Occupancy(HOURS, full)
    view.release(3 * MINUTE)
    assert not view.changes_runs
    assert view.changed_runs() == RunChanges([], [])


def test_another_limit_sees_the_same_slots_without_runs() -> None:
    stored = Stored(OPEN, [2, 2, 1])
    view = Occupancy(OPEN, stored, chunk=7).under(WindowPolicy(5, "PT1M"), 0)
    assert isinstance(view.reader, CountReader)
    assert view.first_free(0) == 0
    assert (view.taken(MINUTE), stored.reads, stored.recounts) == (2, [(0, 7)], [])
    assert (view.reader.run_before(0), view.reader.runs_before([0, MINUTE])) == (None, [None, None])
    assert view.reader.recounted(5, 3 * MINUTE, 7) == []
    assert stored.recounts == [(5, 3 * MINUTE, 7)]


def test_windows_of_another_size_are_counted_slot_by_slot_from_the_present_one_on() -> None:
    stored = Stored(OPEN, [2, 2, 1], missing_ms=7)
    other = WindowPolicy(5, "PT2M")
    now = 3 * MINUTE
    view = Occupancy(OPEN, stored, chunk=7).under(other, now)
    assert stored.recounts == [(2 * MINUTE, 2 * MINUTE, None)]
    assert view.taken(2 * MINUTE) == 1
    assert view.reader.missing_until() == 7
    assert view._chunk == 7


@pytest.mark.parametrize(("taken", "expected"), [([1], (3, 1)), ([], (2, 0)), ([0, 1], (2, 0))])
def test_a_present_window_of_which_slots_were_pruned_is_full(taken: list[int], expected: tuple[int, int]) -> None:
    stored = Stored(OPEN, taken, missing_ms=1)
    view = Occupancy(OPEN, stored, chunk=1).under(OPEN, 5)
    assert view.taken(0) == expected[0]
    assert view.taken(MINUTE) == sum(taken[1:])
    assert view.first_free(0) == MINUTE
    whole = Occupancy(OPEN, Stored(OPEN, taken, missing_ms=0)).under(OPEN, 5)
    assert whole.taken(0) == sum(taken[:1])


def test_slots_pruned_up_to_the_present_window_are_not_missing_in_it() -> None:
    now = 2 * MINUTE + 5
    for missing, taken in ((2 * MINUTE, 0), (2 * MINUTE + 1, 2)):
        view = Occupancy(CURVED, Stored(CURVED, [], missing_ms=missing)).recounted(CURVED, now)
        assert view.taken(2 * MINUTE) == taken
    late = Occupancy(CURVED, Stored(CURVED, [], missing_ms=LATEST_MS)).under(CURVED, 5 * MINUTE)
    assert late.taken(5 * MINUTE) == 1, "by the limit of that time"


def test_only_runs_that_may_be_there_are_asked_for() -> None:
    """None starts at a window that has room, nor where time ends."""
    stored = Stored(OPEN, [])
    stored.counts = [WindowCount(MINUTE, 1, 5)]
    view = Occupancy(OPEN, stored)
    view.taken(0)
    view.take(0, 2)
    assert view.changed_runs() == RunChanges([], [FullRun(0, MINUTE)])
    assert stored.asked == [-1]
    last = OPEN.next_open(LATEST_MS - MINUTE)
    ending = Occupancy(OPEN, end := Stored(OPEN, []))
    ending.take(last, 2)
    ending.changed_runs()
    assert end.asked == [last - 1]


def test_windows_that_were_read_before_are_read_from_there() -> None:
    counts = [WindowCount(MINUTE * number, 1, 1) for number in range(5)]
    reader = CountedWindows(counts)
    assert reader.windows_from(MINUTE, 2) == counts[1:3]
    assert reader.windows_from(MINUTE + 1, 9) == counts[2:]
    assert (reader.run_before(0), reader.runs_before([0, 1]), reader.missing_until()) == (None, [None, None], 0)
    with pytest.raises(NotImplementedError, match=r"^the slots are not known here$"):
        reader.recounted(1, 0)
    stored: Any = Stored(OPEN, [1], missing_ms=9)
    behind = CountedWindows(counts, stored)
    assert (behind.recounted(1, 0, 5), behind.missing_until()) == (stored.counts, 9)
    assert stored.recounts == [(1, 0, 5)]


def test_runs_join_on_both_sides() -> None:
    stored = [FullRun(0, 10), FullRun(20, 30), FullRun(40, 50)]
    changes = joined_runs(
        [FullRun(10, 20), FullRun(30, 40)],
        ending_at=lambda at: next((run for run in stored if run.resume_ms == at), None),
        starting_at=lambda at: next((run for run in stored if run.start_ms == at), None),
    )
    assert changes == RunChanges([0, 20, 40], [FullRun(0, 50)])


def test_a_run_splits_where_room_appears() -> None:
    assert split_run(FullRun(0, 30), 10, 20) == [FullRun(0, 10), FullRun(20, 30)]
    assert split_run(FullRun(0, 30), 0, 10) == [FullRun(10, 30)]
    assert split_run(FullRun(0, 30), 20, 30) == [FullRun(0, 20)]
    assert split_run(FullRun(0, 10), 0, 10) == []
