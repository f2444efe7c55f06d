"""How full the windows are, as far as a transaction has read them.

`Occupancy` is what the packer sees of a store: counters and full runs, loaded when needed and cached, with the
transaction's own changes on top. In a *full run* (start, resume), every open window in [start, resume) is full, and
`resume` is an open window that is not; closed windows inside a run cost nothing, so a million-event burst is one run
even across nights and weekends.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, cast

from paceline.durations import LATEST_MS
from paceline.slots.model import Spread, WindowPolicy
from paceline.slots.windows import Spacing, align

MAX_TIMES = 10_000
"""The most times of slots that are read of one window. Of a window with more ahead, all its slots count as ahead."""


_EMPTY = cast(dict[int, Any], MappingProxyType({}))
_NONE = cast(set[int], frozenset())


class WindowCount(NamedTuple):
    """One window's counters. `placed` counts every slot ever put there and never falls: it numbers the slots, so a
    cancelled slot's position is not used twice while its neighbours remain."""

    start_ms: int
    taken: int
    placed: int


class FullRun(NamedTuple):
    """Every open window in [start, resume) is full; `resume` is open and is not."""

    start_ms: int
    resume_ms: int


class WindowReader(Protocol):
    """Reads one config's counters and runs from a store, under the policy's lock."""

    def windows_from(self, start_ms: int, limit: int) -> list[WindowCount]:
        """Up to `limit` counted windows that start at or after a time, in order."""
        ...

    def run_before(self, start_ms: int) -> FullRun | None:
        """The run with the greatest start at or before a time."""
        ...

    def runs_before(self, starts_ms: Sequence[int]) -> list[FullRun | None]:
        """`run_before` of each time, in one statement where the store allows it."""
        ...

    def recounted(self, size_ms: int, from_ms: int, until_ms: int | None = None) -> list[WindowCount]:
        """The slots from a time on, up to another if given, counted in windows of another size, in order."""
        ...

    def missing_until(self) -> int:
        """The time before which slots may be missing, because they were pruned; 0 if none are."""
        ...

    def times(self, from_ms: int, until_ms: int, limit: int) -> list[int]:
        """The times of up to `limit` slots in [from_ms, until_ms), in order."""
        ...


class CountReader:
    """A `WindowReader` without runs."""

    def __init__(self, reader: WindowReader) -> None:
        self._reader = reader

    def windows_from(self, start_ms: int, limit: int) -> list[WindowCount]:
        return self._reader.windows_from(start_ms, limit)

    def run_before(self, start_ms: int) -> FullRun | None:
        return None

    def runs_before(self, starts_ms: Sequence[int]) -> list[FullRun | None]:
        return [None] * len(starts_ms)

    def recounted(self, size_ms: int, from_ms: int, until_ms: int | None = None) -> list[WindowCount]:
        return self._reader.recounted(size_ms, from_ms, until_ms)

    def missing_until(self) -> int:
        return self._reader.missing_until()

    def times(self, from_ms: int, until_ms: int, limit: int) -> list[int]:
        return self._reader.times(from_ms, until_ms, limit)


class CountedWindows:
    """A `WindowReader` over windows that were read before, without runs. `reader` has read them; without it, their
    slots are not known."""

    def __init__(self, windows: Sequence[WindowCount], reader: WindowReader | None = None) -> None:
        self._windows = windows
        self._reader = reader

    def windows_from(self, start_ms: int, limit: int) -> list[WindowCount]:
        first = bisect_left(self._windows, (start_ms,))
        return list(self._windows[first : first + limit])

    def run_before(self, start_ms: int) -> FullRun | None:
        return None

    def runs_before(self, starts_ms: Sequence[int]) -> list[FullRun | None]:
        return [None] * len(starts_ms)

    def recounted(self, size_ms: int, from_ms: int, until_ms: int | None = None) -> list[WindowCount]:
        if self._reader is None:
            raise NotImplementedError("the slots are not known here")
        return self._reader.recounted(size_ms, from_ms, until_ms)

    def missing_until(self) -> int:
        return 0 if self._reader is None else self._reader.missing_until()

    def times(self, from_ms: int, until_ms: int, limit: int) -> list[int]:
        if self._reader is None:
            raise NotImplementedError("the slots are not known here")
        return self._reader.times(from_ms, until_ms, limit)


class RunChanges(NamedTuple):
    """A transaction's changes of the table of runs: remove by start, then write."""

    removed: list[int]
    written: list[FullRun]


class Occupancy:
    """A view of one config's windows with what was read and what was changed."""

    # A transaction has hundreds of them.
    __slots__ = (
        "_before",
        "_changed",
        "_chunk",
        "_counts",
        "_filled",
        "_jumps",
        "_known",
        "_limit_at",
        "_next_chunk",
        "_opened",
        "_ordered",
        "_placed",
        "_policy",
        "_runs",
        "_times",
        "reader",
        "stored",
    )

    def __init__(
        self, policy: WindowPolicy, reader: WindowReader, *, chunk: int = 64, first_chunk: int | None = None
    ) -> None:
        """Reads up to `chunk` windows at once; of those, `first_chunk` at first, then twice as many each time."""
        self._policy = policy
        self._limit_at = policy.limit_at
        self.reader = reader
        self._chunk = chunk
        self._next_chunk = chunk if first_chunk is None else first_chunk
        self._counts: dict[int, list[int]] = {}
        self._ordered: Sequence[int] = ()  # their starts, as of the last time they were sorted
        self._known: list[tuple[int, int]] = []  # disjoint, ordered stretches whose counters have been read
        # Made when they are needed: Python's garbage collection costs as much as all that a transaction allocates.
        self._jumps: dict[int, int] = _EMPTY
        self._runs: dict[int, FullRun] = _EMPTY
        self._before: dict[int, FullRun | None] = _EMPTY
        self.stored: set[int] = _NONE
        """The windows for which the store has a row, as far as they have been read."""
        self._changed: set[int] = _NONE
        self._filled: set[int] = _NONE
        self._opened: set[int] = _NONE
        self._placed: dict[int, list[int]] = _EMPTY
        """By window: the times of the slots that this transaction put there."""
        self._times: dict[int, tuple[int, list[int] | None]] = _EMPTY
        """By window: the time from which its slots are known, and their times in order; None if they are too many."""

    def under(self, policy: WindowPolicy, now_ms: int) -> Occupancy:
        """The same slots as another policy would see them from now on. Full runs apply to the active limit only, so
        this view counts window by window."""
        if policy.size_ms != self._policy.size_ms or self.reader.missing_until() > align(now_ms, policy.size_ms):
            return self.recounted(policy, now_ms)
        return Occupancy(policy, CountReader(self.reader), chunk=self._chunk)

    def recounted(self, policy: WindowPolicy, now_ms: int) -> Occupancy:
        """The slots from the present window on, counted one by one. If some of that window were pruned, it is full, as
        a booking would find it."""
        start = align(now_ms, policy.size_ms)
        counts = self.reader.recounted(policy.size_ms, start)
        if self.reader.missing_until() > start:
            known = counts.pop(0) if counts and counts[0].start_ms == start else WindowCount(start, 0, 0)
            counts.insert(0, known._replace(taken=known.taken + policy.limit_at(start)))
        return Occupancy(policy, CountedWindows(counts, self.reader), chunk=self._chunk)

    def taken(self, start_ms: int) -> int:
        """The number of slots in the window."""
        counts = self._counts.get(start_ms)
        if counts is None and not self.knows(start_ms):
            limit = self._next_chunk
            self._next_chunk = min(2 * limit, self._chunk)
            self.learn_windows(start_ms, self.reader.windows_from(start_ms, limit), limit)
            counts = self._counts.get(start_ms)
        return 0 if counts is None else counts[0]

    def empty_until(self, start_ms: int) -> int:
        """The end of the known span from `start_ms` on in which no window has counters: at most `LATEST_MS`."""
        self.taken(start_ms)
        known = bisect_right(self._known, (start_ms, LATEST_MS)) - 1
        if len(self._ordered) != len(self._counts):
            self._ordered = sorted(self._counts)
        following = bisect_left(self._ordered, start_ms)
        counted = self._ordered[following] if following < len(self._ordered) else LATEST_MS
        return min(counted, self._known[known][1])

    def first_free(self, start_ms: int) -> int:
        """The first open window at or after `start_ms` (itself open) that is not full; `LATEST_MS` if none."""
        jumps = self._jumps
        path: list[int] = []
        at = start_ms
        while at < LATEST_MS:
            onward = jumps.get(at)
            if onward is None:
                onward = self._beyond(at)
                if onward is None:
                    break
            path.append(at)
            at = onward
        if path:
            self._jumps = jumps = self._jumps or {}
            for passed in path:
                jumps[passed] = at
        return at

    def knows(self, start_ms: int) -> bool:
        """Whether the window has been read; it may have no counters."""
        index = bisect_right(self._known, (start_ms, LATEST_MS)) - 1
        return index >= 0 and start_ms < self._known[index][1]

    def first_known_free(self, start_ms: int) -> int:
        """As `first_free`, without reading: the first window that is not known to be full."""
        at = start_ms
        while (onward := self._jumps.get(at)) is not None or (self.knows(at) and self.taken(at) >= self._limit_at(at)):
            at = self._policy.next_open(at + self._policy.size_ms) if onward is None else onward
        return at

    def take(self, start_ms: int, places: int = 1) -> int:
        """Takes places in the window and returns the first one's ordinal there."""
        counts = self._counts.get(start_ms)
        if counts is None:
            counts = self._counts[start_ms] = [0, 0]
        counts[0] += places
        counts[1] += places
        self._changed = self._changed or set()
        self._changed.add(start_ms)
        if counts[0] - places < self._limit_at(start_ms) <= counts[0]:
            self._filled = self._filled or set()
            self._filled.add(start_ms)
            self._jumps = self._jumps or {}
            self._jumps[start_ms] = self._policy.next_open(start_ms + self._policy.size_ms)
        return counts[1] - places

    def put(self, start_ms: int, times: Sequence[int]) -> None:
        """Notes the times of slots for which places were taken in the window."""
        if start_ms in self._placed:
            self._placed[start_ms] += times
        else:
            self._placed = self._placed or {}
            self._placed[start_ms] = [*times]
        if start_ms not in self._times:
            return
        from_ms, known = self._times[start_ms]
        if known is not None:
            for at in times:
                insort(known, at)
            if len(known) > MAX_TIMES:
                self._times[start_ms] = from_ms, None

    def put_ahead(self, start_ms: int, at_ms: int, places: int) -> None:
        """Notes that the slots of so many places lie somewhere behind a time, for a forecast."""
        self.put(start_ms, [at_ms] * min(places, MAX_TIMES + 1))

    def times_from(self, start_ms: int, from_ms: int) -> list[int] | None:
        """The times, in order, of the window's slots that lie after a time or no further than their distance before
        it; None if they are more than `MAX_TIMES`. May have earlier ones, too."""
        from_ms = self.first_time(start_ms, from_ms)
        if start_ms not in self._times or from_ms < self._times[start_ms][0]:
            times: Sequence[int] = ()
            if self.taken(start_ms) > len(self._placed.get(start_ms, ())):
                times = self.reader.times(from_ms, start_ms + self._policy.size_ms, MAX_TIMES + 1)
            self.learn_times(start_ms, from_ms, times)
        return self._times[start_ms][1]

    def first_time(self, start_ms: int, at_ms: int) -> int:
        """The time in a window from which a search for a place at `at_ms` must know its slots."""
        if self._policy.spread is not Spread.EVEN:
            return at_ms
        return max(start_ms, at_ms - Spacing.of(self._limit_at(start_ms), self._policy.size_ms).span_ms)

    def learn_times(self, start_ms: int, from_ms: int, times: Sequence[int]) -> None:
        """Caches the result of `times` of the reader, of one window from a time on."""
        known = sorted([*times, *self._placed.get(start_ms, ())])
        self._times = self._times or {}
        self._times[start_ms] = from_ms, None if len(known) > MAX_TIMES else known

    def held(self, start_ms: int, from_ms: int, until_ms: int) -> int:
        """The number of the window's slots in [from_ms, until_ms); if they are too many to read, all of the window."""
        times = self.times_from(start_ms, from_ms)
        if times is None:
            return self.taken(start_ms)
        return bisect_left(times, until_ms) - bisect_left(times, from_ms)

    def release(self, start_ms: int, places: int = 1) -> None:
        """Frees places in the window."""
        limit = self._limit_at(start_ms)
        was_full = self.taken(start_ms) >= limit
        counts = self._counts[start_ms]
        counts[0] -= places
        self._changed = self._changed or set()
        self._changed.add(start_ms)
        # A closed window inside a run offers no room: the run must not be split there.
        if was_full and counts[0] < limit and self._policy.next_open(start_ms) == start_ms:
            self._opened = self._opened or set()
            self._opened.add(start_ms)
            self._jumps = _EMPTY

    def learn_windows(self, from_ms: int, counts: Sequence[WindowCount], limit: int) -> None:
        """Caches the result of `windows_from(from_ms, limit)`; a short one means that nothing follows."""
        self._learn(counts, from_ms, counts[-1].start_ms + 1 if len(counts) >= limit else LATEST_MS)

    def learn_window(self, start_ms: int, count: WindowCount | None) -> None:
        """Caches one window of the store: its counters, or that it has none."""
        self._learn([] if count is None else [count], start_ms, start_ms + 1)

    def learn_run(self, at_ms: int, run: FullRun | None) -> None:
        """Caches the result of `run_before(at_ms)`."""
        if run is not None:
            self._runs = self._runs or {}
            self._runs[run.resume_ms] = run
            if run.start_ms <= at_ms < run.resume_ms:
                self._jumps = self._jumps or {}
                self._jumps[at_ms] = run.resume_ms

    def count(self, start_ms: int) -> WindowCount:
        """The counters of a window in which a place was taken."""
        return WindowCount(start_ms, *self._counts[start_ms])

    @property
    def is_changed(self) -> bool:
        """Whether places were taken or freed."""
        return bool(self._changed)

    @property
    def changes_runs(self) -> bool:
        """Whether a window was filled, or a full one has room again."""
        return bool(self._filled or self._opened)

    def changed_windows(self) -> Iterator[WindowCount]:
        """The counters to write back, in order."""
        for start in sorted(self._changed):
            yield WindowCount(start, *self._counts[start])

    def changed_runs(self) -> RunChanges:
        """The runs to remove and write, so that the table again holds exactly the maximal full runs."""
        if not self.changes_runs:
            return RunChanges([], [])
        fresh = self._fresh_runs()
        self._load_neighbours(fresh)
        joined = joined_runs(fresh, ending_at=self._run_ending_at, starting_at=self._run_starting_at)
        for start in self._opened:
            run = self.reader.run_before(start)
            if run is not None and start < run.resume_ms:
                joined.removed.append(run.start_ms)
                joined.written.extend(split_run(run, start, self._policy.next_open(start + self._policy.size_ms)))
        return joined

    def _beyond(self, at: int) -> int | None:
        """Where to continue after a full window; None if the window has room."""
        counts = self._counts.get(at)
        if counts is None:
            if self.knows(at):
                return None  # without counters, it is empty
            self.learn_run(at, self.reader.run_before(at))
            onward = self._jumps.get(at)
            if onward is not None:
                return onward
        if (self.taken(at) if counts is None else counts[0]) < self._limit_at(at):
            return None
        return self._policy.next_open(at + self._policy.size_ms)

    def _learn(self, counts: Iterable[WindowCount], low: int, high: int) -> None:
        """Caches the counted windows of [low, high); the others in it have no counters."""
        for start_ms, taken, placed in counts:
            self.stored = self.stored or set()
            self.stored.add(start_ms)
            if start_ms not in self._changed:
                self._counts[start_ms] = [taken, placed]
        known = self._known
        if not known or known[-1][1] < low:
            known.append((low, high))
            return
        first = bisect_left(known, (low, 0))
        if first and known[first - 1][1] >= low:
            first -= 1
            low = known[first][0]
        last = bisect_right(known, (high, LATEST_MS))
        if last > first:
            high = max(high, known[last - 1][1])
        known[first:last] = [(low, high)]

    def _fresh_runs(self) -> list[FullRun]:
        """The windows this transaction filled, as maximal runs among themselves."""
        fresh: list[FullRun] = []
        for start in sorted(self._filled):
            resume = self._policy.next_open(start + self._policy.size_ms)
            if fresh and fresh[-1].resume_ms == start:
                fresh[-1] = FullRun(fresh[-1].start_ms, resume)
            else:
                fresh.append(FullRun(start, resume))
        return fresh

    def _load_neighbours(self, fresh: Iterable[FullRun]) -> None:
        """Loads the stored runs that fresh ones may join, all at once."""
        starts = [run.start_ms - 1 for run in fresh if run.start_ms not in self._runs]
        starts += [run.resume_ms for run in fresh if self._may_start_run(run.resume_ms)]
        if starts:
            self._before = dict(zip(starts, self.reader.runs_before(starts), strict=True))

    def _run_ending_at(self, start_ms: int) -> FullRun | None:
        run = self._runs.get(start_ms) or self._before[start_ms - 1]
        return run if run is not None and run.resume_ms == start_ms else None

    def _run_starting_at(self, start_ms: int) -> FullRun | None:
        run = self._before[start_ms] if self._may_start_run(start_ms) else None
        return run if run is not None and run.start_ms == start_ms else None

    def _may_start_run(self, start_ms: int) -> bool:
        """Whether a run may start at a window: it is full, or has not been read."""
        if start_ms >= LATEST_MS:
            return False
        counts = self._counts.get(start_ms)
        return not self.knows(start_ms) if counts is None else counts[0] >= self._limit_at(start_ms)


def joined_runs(
    fresh: Iterable[FullRun],
    *,
    ending_at: Callable[[int], FullRun | None],
    starting_at: Callable[[int], FullRun | None],
) -> RunChanges:
    """Joins fresh runs with the stored ones they touch on either side."""
    removed: list[int] = []
    written: list[FullRun] = []
    for run in fresh:
        start, resume = run
        before = ending_at(start)
        if written and written[-1].resume_ms == start:
            # The stored run between two fresh ones was already joined with the first.
            before = written.pop()
        elif before is not None:
            removed.append(before.start_ms)
        if before is not None:
            start = before.start_ms
        after = starting_at(resume)
        if after is not None:
            removed.append(after.start_ms)
            resume = after.resume_ms
        written.append(FullRun(start, resume))
    return RunChanges(removed, written)


def split_run(run: FullRun, start_ms: int, following_ms: int) -> list[FullRun]:
    """The rest of a run when one of its windows has room again; `following_ms` is the next open window."""
    parts = [FullRun(run.start_ms, start_ms), FullRun(following_ms, run.resume_ms)]
    return [part for part in parts if part.start_ms < part.resume_ms]


def full_runs(counts: Iterable[WindowCount], policy: WindowPolicy) -> list[FullRun]:
    """The maximal full runs among counted windows, given in order: the correct content of the table of runs."""
    runs: list[FullRun] = []
    for start, taken, _ in counts:
        if taken < policy.limit_at(start) or policy.next_open(start) != start:
            continue
        resume = policy.next_open(start + policy.size_ms)
        if runs and runs[-1].resume_ms == start:
            runs[-1] = FullRun(runs[-1].start_ms, resume)
        else:
            runs.append(FullRun(start, resume))
    return runs
