"""A lone booking on PostgreSQL in one flush, under one config or several: lock, compare, insert, commit.

Optimistic: a process that books alone knows the windows after its last booking. It packs against this expected state,
and sends the result with the expectation. The server compares that with the tables under the configs' locks, and writes
only if they are equal: a wrong expectation costs a flush, never a wrong booking.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

from paceline.slots.joint import JointPacker, JointSide
from paceline.slots.model import AssignedSlot, PolicyVersion, SlotRequest
from paceline.slots.occupancy import FullRun, Occupancy, RunChanges, WindowCount
from paceline.slots.packing import Full, Packer
from paceline.slots.stores.other_windows import other_windows_text
from paceline.slots.windows import align
from paceline.sql.engine import Database
from paceline.sql.pipeline import PLAN_BY_KEY, Calls, Statement

MAX_EXPECTED = 4000
"""The number of configs whose state after their last booking is cached; a config counts in each of its sets."""

# A separate statement, once per config in the order of the names: the next one's snapshot is newer than the locks.
LOCK_ONLY = Statement(
    "paceline_slot_lock_by_key",
    f"SELECT {PLAN_BY_KEY} FROM paceline_slot_config WHERE name = $1 FOR UPDATE",  # noqa: S608
)


@cache
def book_expected(configs: int) -> Statement:
    """The statement that books under `configs` configs, if the tables are as expected. Its parameters are $1 to $6, and
    for each config those of `ExpectedConfig.parameters`."""
    windows = _windows_sent(configs)
    rows: list[str] = []
    counts: list[str] = []
    written: list[str] = []
    for first in range(7, 7 + configs * (4 + 3 * windows), 4 + 3 * windows):
        name = f"${first}"
        rows.append(f"({name}, ${first + 1}::int, ${first + 2}::bigint, ${first + 3}::bigint)")
        for start in range(first + 4, first + 4 + 3 * windows, 3):
            counts.append(f"({name}, ${start}::bigint, ${start + 1}::int, ${start + 2}::int)")
        written.append(counts[-1])
    # OFFSET 0 and LIMIT force a look-up by key: the planner might read the whole of a small table for a join, and keep
    # that plan when it is large.
    return Statement(
        f"paceline_slot_book_expected_{configs}",
        f"""
        WITH expected AS MATERIALIZED (
            SELECT now
            FROM (
                SELECT coalesce($6::bigint, ceil(extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now
            ) AS clock
            WHERE now <= $2::bigint
                AND NOT EXISTS (SELECT FROM paceline_slot WHERE event_id = $1)
                AND NOT EXISTS (
                    SELECT FROM (VALUES {", ".join(rows)}) AS given(name, version, next, resume)
                    LEFT JOIN LATERAL (
                        SELECT version FROM paceline_slot_config WHERE name = given.name OFFSET 0
                    ) AS config ON true
                    LEFT JOIN LATERAL (
                        SELECT resume_at FROM paceline_slot_run
                        WHERE config_name = given.name
                            AND window_start <= 'epoch'::timestamptz + given.next * interval '1 ms'
                        ORDER BY window_start DESC LIMIT 1
                    ) AS run ON true
                    WHERE config.version IS DISTINCT FROM given.version
                        OR run.resume_at IS DISTINCT FROM 'epoch'::timestamptz + given.resume * interval '1 ms'
                )
                AND NOT EXISTS (
                    SELECT FROM (VALUES {", ".join(counts)}) AS given(name, start, taken, placed)
                    LEFT JOIN LATERAL (
                        SELECT taken, placed FROM paceline_slot_window
                        WHERE config_name = given.name
                            AND window_start = 'epoch'::timestamptz + given.start * interval '1 ms'
                        OFFSET 0
                    ) AS counted ON true
                    WHERE coalesce(counted.taken, 0) <> given.taken OR coalesce(counted.placed, 0) <> given.placed
                )
        ), counted AS (
            INSERT INTO paceline_slot_window (config_name, window_start, taken, placed)
            SELECT name, 'epoch'::timestamptz + start * interval '1 ms', taken + 1, placed + 1
            FROM expected, (VALUES {", ".join(written)}) AS given(name, start, taken, placed)
            ON CONFLICT (config_name, window_start) DO UPDATE SET taken = EXCLUDED.taken, placed = EXCLUDED.placed
        )
        INSERT INTO paceline_slot (event_id, config_name, config_version, requested_at, window_start, scheduled_at,
            created_at, owner, other_windows)
        SELECT $1, $7, $8::int, 'epoch'::timestamptz + $2::bigint * interval '1 ms',
            'epoch'::timestamptz + ${8 + 3 * windows}::bigint * interval '1 ms',
            'epoch'::timestamptz + $3::bigint * interval '1 ms', 'epoch'::timestamptz + now * interval '1 ms', $4, $5
        FROM expected
        RETURNING 1
        """,  # noqa: S608  # numbers of parameters
    )


def _windows_sent(configs: int) -> int:
    """How many windows of each config are compared. The last one gets the slot. Under several configs, the first window
    with room in one of them may precede the first with room in all."""
    return 2 if configs == 1 else 3


class _NotExpected(Exception):
    """The packer needs windows outside the expectation."""


class _NoReader:
    """A `WindowReader` that reads nothing: all windows are known."""

    def times(self, from_ms: int, until_ms: int, limit: int) -> list[int]:
        raise _NotExpected

    def windows_from(self, start_ms: int, limit: int) -> list[WindowCount]:
        raise _NotExpected

    def run_before(self, start_ms: int) -> FullRun | None:
        raise _NotExpected

    def runs_before(self, starts_ms: Sequence[int]) -> list[FullRun | None]:
        raise _NotExpected

    def recounted(self, size_ms: int, from_ms: int, until_ms: int | None = None) -> list[WindowCount]:
        raise _NotExpected

    def missing_until(self) -> int:
        raise _NotExpected


class BookedSide(NamedTuple):
    """A config whose windows a booking has read, with its changes."""

    side: JointSide
    runs: RunChanges
    booked_ms: int
    """The window with the new slot."""


class ExpectedConfig(JointSide):
    """The expected state of one config, if no other process writes. Its occupancy holds only this: windows that are not
    compared must not be used."""

    def __init__(
        self, active: PolicyVersion, first_ms: int, next_ms: int, run: FullRun | None, windows: Sequence[WindowCount]
    ) -> None:
        super().__init__(active, Occupancy(active.policy, _NoReader()))
        self.first_ms = first_ms
        self._next_ms, self._run = next_ms, run
        self._windows = {window.start_ms: tuple(map(str, window)) for window in windows}
        """By start, as parameters."""
        self._free_ms = windows[1].start_ms
        resume = None if run is None else str(run.resume_ms)
        self._config = (active.name, str(active.version), str(next_ms), resume)
        self.occupancy.learn_run(next_ms, run)
        for window in windows:
            self.occupancy.learn_window(window.start_ms, window)

    @classmethod
    def after(cls, booked: BookedSide, requested_ms: int) -> ExpectedConfig | None:
        """The state after a booking, as far as the next one for the same time needs it; None if that is not known."""
        side, runs, booked_ms = booked
        policy, occupancy = side.active.policy, side.occupancy
        first_ms = align(requested_ms, side.size_ms)
        next_ms = policy.next_open(first_ms + side.size_ms)
        starts = (first_ms, occupancy.first_known_free(next_ms), booked_ms)
        windows = [count for count in map(occupancy.known_count, starts) if count is not None]
        if next_ms not in occupancy.runs_read or len(windows) < len(starts):
            return None
        run = occupancy.runs_read[next_ms]
        before = [] if run is None or run.start_ms in runs.removed else [run]
        before += [written for written in runs.written if written.start_ms <= next_ms]
        return cls(side.active, first_ms, next_ms, max(before, default=None), windows)

    def parameters(self, booked_ms: int, windows: int) -> list[str | None]:
        """The config's name and version, the window after its first, the end of the run before that; the start and the
        counters of `windows` windows."""
        texts = self._windows
        between = texts[self._free_ms] if windows == 3 else ()
        return [*self._config, *texts[self.first_ms], *between, *texts[booked_ms]]

    def book(self, booked_ms: int) -> None:
        """Counts a slot that is stored in this window."""
        self._windows[booked_ms] = tuple(map(str, self.occupancy.count(booked_ms)))

    def was_right(self, booked: BookedSide) -> bool:
        """Whether a booking has read the same, as far as it read."""
        side, _, booked_ms = booked
        if side.active.version != self.active.version:
            return False
        if side.occupancy.runs_read.get(self._next_ms, self._run) != self._run:
            return False
        for start_ms, texts in self._windows.items():
            count, own = side.occupancy.known_count(start_ms), start_ms == booked_ms
            if count is not None and texts != (str(start_ms), str(count.taken - own), str(count.placed - own)):
                return False
        return True


class Expectation:
    """The expected state of a booking's configs, if no other process writes."""

    __slots__ = ("configs", "packer")

    def __init__(self, configs: Sequence[ExpectedConfig], uniform: Callable[[], float]) -> None:
        self.configs = configs
        self.packer: Packer | JointPacker | None
        """Packs into these configs' windows. None until a booking that it has placed is known to be stored."""
        if len(configs) == 1:
            self.packer = Packer(configs[0].active.policy, configs[0].occupancy, 0, uniform)
        else:
            self.packer = JointPacker(configs, 0, uniform)


class _Memory:
    """The state of one config, or of one set of configs."""

    __slots__ = ("expectation", "is_trusted", "locks")

    def __init__(self, names: Sequence[str]) -> None:
        self.locks: Calls = [(LOCK_ONLY, (name,)) for name in sorted(names)]
        self.expectation: Expectation | None = None
        self.is_trusted = True
        """The last expectation was right. While other processes book too, reading first is quicker."""


class LoneBooker:
    """Books one event at a time, if the last booking of its configs gives an expectation."""

    def __init__(self, database: Database, uniform: Callable[[], float]) -> None:
        self._database = database
        self._uniform = uniform
        self._memories: dict[tuple[str, ...], _Memory] = {}
        self._expected = 0
        """The number of configs in these."""

    async def book(
        self, names: tuple[str, ...], request: SlotRequest, now_ms: int | None, owner: str | None
    ) -> AssignedSlot | None:
        """The event's new slot; None if nothing was booked, and the windows must be read first."""
        memory = self._memories.get(names)
        if memory is None or memory.expectation is None or not memory.is_trusted:
            return None
        expectation = memory.expectation
        configs, packer = expectation.configs, expectation.packer
        event_id, requested_ms = request
        guessed_now = int(time.time() * 1000) if now_ms is None else now_ms
        # An event for now is not packed before the server's clock is read.
        if packer is None or requested_ms <= guessed_now:
            return None
        for config in configs:
            if requested_ms != config.first_ms:  # in the rest of a window, the times of its slots count
                return None
        expectation.packer = None
        packer.now_ms = guessed_now
        try:
            place = packer.place(requested_ms)
        except _NotExpected:
            return None
        if isinstance(place, Full):
            return None
        start_ms, scheduled_ms, others = place
        parameters = [
            event_id,
            str(requested_ms),
            str(scheduled_ms),
            owner,
            other_windows_text(others),
            None if now_ms is None else str(now_ms),
        ]
        windows = _windows_sent(len(configs))
        starts = [start_ms, *(other.window_start_ms for other in others)] if others else [start_ms]
        for config, start in zip(configs, starts, strict=True):
            if config.occupancy.changes_runs:
                return None
            parameters += config.parameters(start, windows)
        calls = [*memory.locks, (book_expected(len(configs)), parameters)]
        *_, booked = await self._database.pipeline(calls)
        if not booked:
            memory.is_trusted = False
            return None
        for config, start in zip(configs, starts, strict=True):
            config.book(start)
        expectation.packer = packer
        active = configs[0].active
        return AssignedSlot(
            event_id, active.name, active.version, requested_ms, start_ms, scheduled_ms, False, owner, others
        )

    def remember(self, slot: AssignedSlot, sides: Sequence[JointSide], runs: Sequence[RunChanges]) -> None:
        """Caches the state after a booking that read its configs' windows, stored this slot and changed these runs."""
        memory = self._memory(slot.config_names)
        starts = [window.window_start_ms for window in slot.windows]
        booked = list(map(BookedSide, sides, runs, starts))
        expected = () if memory.expectation is None else memory.expectation.configs
        if expected and all(align(slot.requested_ms, config.size_ms) == config.first_ms for config in expected):
            memory.is_trusted = all(map(ExpectedConfig.was_right, expected, booked))
        after = [ExpectedConfig.after(side, slot.requested_ms) for side in booked]
        configs = [config for config in after if config is not None]
        memory.expectation = Expectation(configs, self._uniform) if len(configs) == len(after) else None

    def _memory(self, names: tuple[str, ...]) -> _Memory:
        if names not in self._memories:
            if self._expected + len(names) > MAX_EXPECTED:
                self._memories, self._expected = {}, 0
            self._memories[names] = _Memory(names)
            self._expected += len(names)
        return self._memories[names]
