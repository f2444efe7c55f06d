"""Booking on PostgreSQL in two flushes: one that locks and reads, one that writes and commits. A lone booking takes
one, if its expectation holds (`postgres_lone.py`).

The portable path in `sql.py` runs one statement at a time, and holds the config's lock over every round trip. Here the
statements are sent together (`paceline.sql.pipeline`). Which windows to read is guessed from the policy of the last
booking and the host's clock; a wrong guess costs another statement (`SqlWindowReader`), never a wrong booking.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from operator import is_not
from typing import NamedTuple

from sqlalchemy.engine import Connection

from paceline.slots.joint import JointPacker, JointSide
from paceline.slots.model import AssignedSlot, PolicyVersion, SlotRequest
from paceline.slots.occupancy import FullRun, Occupancy, RunChanges, WindowCount
from paceline.slots.packing import Booking, Packer, book_all, unbooked
from paceline.slots.stores import postgres_joint
from paceline.slots.stores.joint import joint_label
from paceline.slots.stores.other_windows import parse_other_windows
from paceline.slots.stores.postgres_lone import LoneBooker
from paceline.slots.stores.sql import Booker
from paceline.slots.stores.window_rows import SqlWindowReader, WindowQuery, window_queries
from paceline.sql.engine import Database
from paceline.sql.pipeline import (
    BEGIN,
    BY_KEY,
    COMMIT,
    Raw,
    Rows,
    Statement,
    copy,
    execute_pipeline,
    numbers,
    run_async,
    texts,
    whole_of,
)
from paceline.sql.schema import instant_text

COPY_FROM = 400
"""The number of slots in a transaction from which COPY, which a pipeline can't contain, is worth a round trip."""
MAX_GUESSES = 10_000
"""The number of sets of configs whose last search's end is cached."""

# Read before the lock, which is then held for less time. If another config's writer books the event in between, the
# insert violates the key, and the whole transaction is retried.
EXISTING = Statement(
    "paceline_slot_existing",
    """
    SELECT event_id, config_name, config_version, (extract(epoch FROM requested_at) * 1000)::bigint,
        (extract(epoch FROM window_start) * 1000)::bigint, (extract(epoch FROM scheduled_at) * 1000)::bigint, owner,
        other_windows
    FROM paceline_slot WHERE event_id = ANY($1::text[])
    """,
)
# The clock is read outside the locking query, thus after the lock is taken: now() is the start of the transaction,
# before it waited for the lock.
LOCK = Statement(
    "paceline_slot_lock",
    """
    SELECT version, ceil(extract(epoch FROM clock_timestamp()) * 1000)::bigint
    FROM (SELECT version FROM paceline_slot_config WHERE name = $1 FOR UPDATE) AS locked
    """,
)
# For each query: its first window; the run that starts at or before the window after that; and the counters from the
# end of that run.
WINDOWS = Statement(
    "paceline_slot_windows",
    """
    SELECT query.first, (extract(epoch FROM run.window_start) * 1000)::bigint,
        (extract(epoch FROM run.resume_at) * 1000)::bigint,
        (extract(epoch FROM counted.window_start) * 1000)::bigint, counted.taken, counted.placed
    FROM unnest($2::bigint[], $3::bigint[], $4::int[]) AS query(first, next, rows)
    LEFT JOIN LATERAL (
        SELECT window_start, resume_at FROM paceline_slot_run
        WHERE config_name = $1 AND window_start <= 'epoch'::timestamptz + query.next * interval '1 ms'
        ORDER BY window_start DESC LIMIT 1
    ) AS run ON true
    LEFT JOIN LATERAL (
        (SELECT window_start, taken, placed FROM paceline_slot_window
        WHERE config_name = $1 AND window_start = 'epoch'::timestamptz + query.first * interval '1 ms')
        UNION ALL
        (SELECT window_start, taken, placed FROM paceline_slot_window
        WHERE config_name = $1
            AND window_start >= greatest('epoch'::timestamptz + query.next * interval '1 ms', run.resume_at)
        ORDER BY window_start LIMIT query.rows)
    ) AS counted ON true
    """,
)
RUNS_BEFORE = Statement(
    "paceline_slot_runs_before",
    """
    SELECT requested.at, (extract(epoch FROM run.window_start) * 1000)::bigint,
        (extract(epoch FROM run.resume_at) * 1000)::bigint
    FROM unnest($2::bigint[]) AS requested(at)
    CROSS JOIN LATERAL (
        SELECT window_start, resume_at FROM paceline_slot_run
        WHERE config_name = $1 AND window_start <= 'epoch'::timestamptz + requested.at * interval '1 ms'
        ORDER BY window_start DESC LIMIT 1
    ) AS run
    """,
)
COPY_SLOTS = """
    COPY paceline_slot
        (event_id, config_name, config_version, requested_at, window_start, scheduled_at, created_at, owner) FROM STDIN
"""
WRITE_WINDOWS_SQL = """
    INSERT INTO paceline_slot_window (config_name, window_start, taken, placed)
    SELECT $1, 'epoch'::timestamptz + start * interval '1 ms', taken, placed
    FROM unnest($2::bigint[], $3::int[], $4::int[]) AS new(start, taken, placed)
    ON CONFLICT (config_name, window_start) DO UPDATE SET taken = EXCLUDED.taken, placed = EXCLUDED.placed
"""
WRITE_WINDOWS = Statement("paceline_slot_write_windows", WRITE_WINDOWS_SQL)
INSERT_SLOTS = Statement(
    "paceline_slot_insert",
    f"""
    WITH booked AS (
        INSERT INTO paceline_slot
            (event_id, config_name, config_version, requested_at, window_start, scheduled_at, created_at, owner)
        SELECT event_id, $1, $5::int, 'epoch'::timestamptz + requested * interval '1 ms',
            'epoch'::timestamptz + start * interval '1 ms', 'epoch'::timestamptz + scheduled * interval '1 ms',
            'epoch'::timestamptz + $6::bigint * interval '1 ms', $11::text
        FROM unnest($7::text[], $8::bigint[], $9::bigint[], $10::bigint[]) AS new(event_id, requested, start, scheduled)
    )
    {WRITE_WINDOWS_SQL}
    """,  # noqa: S608  # of our own two halves: one statement costs less than two
)
REMOVE_RUNS = Statement(
    "paceline_slot_remove_runs",
    """
    DELETE FROM paceline_slot_run USING unnest($2::bigint[]) AS old(start)
    WHERE config_name = $1 AND window_start = 'epoch'::timestamptz + old.start * interval '1 ms'
    """,
)
WRITE_RUNS = Statement(
    "paceline_slot_write_runs",
    """
    INSERT INTO paceline_slot_run (config_name, window_start, resume_at)
    SELECT $1, 'epoch'::timestamptz + start * interval '1 ms', 'epoch'::timestamptz + resume * interval '1 ms'
    FROM unnest($2::bigint[], $3::bigint[]) AS new(start, resume)
    """,
)


class PostgresWindowReader(SqlWindowReader):
    """A `SqlWindowReader` that reads many windows at once."""

    def runs_before(self, starts_ms: Sequence[int]) -> list[FullRun | None]:
        call = (RUNS_BEFORE, (self.name, numbers(starts_ms)))
        (rows,) = run_async(self.connection, lambda raw: execute_pipeline(raw, [call]))
        runs = {whole_of(at): FullRun(whole_of(start), whole_of(resume)) for at, start, resume in rows}
        return [runs.get(start) for start in starts_ms]


class WindowRows(NamedTuple):
    """The rows of one `WindowQuery`: the run at or before its next window, and counted windows in order."""

    run: FullRun | None
    counts: list[WindowCount]


class BookingSnapshot(NamedTuple):
    """The results of the first flush; `version` is None if there is no such config."""

    version: int | None
    now_ms: int
    existing: dict[str, AssignedSlot]
    rows_by_window: dict[int, WindowRows]
    """By the query's first window."""


class PostgresBooker(Booker):
    """Books in two flushes. A config's last policy is the guess for its next booking."""

    def __init__(self, database: Database, uniform: Callable[[], float]) -> None:
        super().__init__(uniform)
        self.lone = LoneBooker(database, uniform)
        self._reached: dict[Sequence[str], int] = {}
        """By the names of several configs: the instant at which the last search under them ended."""

    def book(
        self, connection: Connection, name: str, requests: Sequence[SlotRequest], now_ms: int | None, owner: str | None
    ) -> list[Booking]:
        guess = self._policies.get(name)
        guessed_now = int(time.time() * 1000) if now_ms is None else now_ms
        queries = window_queries(guess.policy, requests, guessed_now) if guess else []
        snapshot: BookingSnapshot = run_async(connection, lambda raw: _read(raw, name, requests, queries))
        if snapshot.version is None:
            return unbooked(name, requests, snapshot.existing)
        active = self.policy(connection, name, snapshot.version)
        policy = active.policy
        occupancy = Occupancy(policy, PostgresWindowReader(connection, name))
        rows_by_window = snapshot.rows_by_window
        if guess is not active:
            queries = window_queries(policy, requests, snapshot.now_ms if now_ms is None else now_ms)
            rows_by_window = run_async(connection, lambda raw: _read_windows(raw, name, queries)) if queries else {}
        _learn(occupancy, queries, rows_by_window)
        at_ms = snapshot.now_ms if now_ms is None else now_ms
        packer = Packer(policy, occupancy, at_ms, self._uniform)
        bookings, fresh = book_all(active, packer, requests, snapshot.existing, owner)
        if fresh:
            # Before the pipeline opens: joining runs may read from the database.
            counts, runs = occupancy.changed_windows(), occupancy.changed_runs()
            run_async(connection, lambda raw: _write(raw, active, fresh, counts, runs, at_ms))
            if len(requests) == 1:
                self.lone.remember(fresh[0], [JointSide(active, occupancy)], [runs])
        return bookings

    def book_joint(
        self,
        connection: Connection,
        names: Sequence[str],
        requests: Sequence[SlotRequest],
        now_ms: int | None,
        owner: str | None,
    ) -> list[Booking]:
        guesses = [self._policies[name] for name in names if name in self._policies]
        reads = postgres_joint.WindowReads()
        if len(guesses) == len(names):
            guessed_now = int(time.time() * 1000) if now_ms is None else now_ms
            reads.add(guesses, requests, guessed_now)
            if self._reached.get(names, -1) > max(requests[0].requested_ms, guessed_now):
                reads.add_from(guesses, self._reached[names], len(requests))
        ids = texts(event_id for event_id, _ in requests)
        snapshot: postgres_joint.JointSnapshot = run_async(
            connection, lambda raw: postgres_joint.read(raw, EXISTING, names, ids, reads)
        )
        existing = {slot.event_id: slot for slot in map(_assigned, snapshot.existing)}
        missing = next((name for name in names if name not in snapshot.versions), None)
        if missing is not None:
            return unbooked(missing, requests, existing)
        actives = [self.policy(connection, name, snapshot.versions[name]) for name in names]
        at_ms = snapshot.now_ms if now_ms is None else now_ms
        sides = [
            JointSide(active, Occupancy(active.policy, PostgresWindowReader(connection, active.name)))
            for active in actives
        ]
        windows = snapshot.windows
        if len(guesses) != len(names) or any(map(is_not, guesses, actives)):
            reads = postgres_joint.WindowReads()
            reads.add(actives, requests, at_ms)
            (windows,) = run_async(connection, lambda raw: execute_pipeline(raw, reads.calls()))
        reads.learn(windows, postgres_joint.occupancies_of(sides))
        postgres_joint.read_on(connection, sides, requests, at_ms)
        packer = JointPacker(sides, at_ms, self._uniform)
        bookings, fresh = book_all(actives[0], packer, requests, existing, owner, joint_label(actives))
        if fresh:
            self._remember(names, packer.reached_ms)
            # Before the pipeline opens: joining runs may read from the database.
            runs = {side.active.name: side.occupancy.changed_runs() for side in sides}
            run_async(connection, lambda raw: postgres_joint.write(raw, sides, fresh, runs, at_ms, COPY_FROM))
            if len(requests) == 1:
                self.lone.remember(fresh[0], sides, list(runs.values()))
        return bookings

    def _remember(self, names: Sequence[str], reached_ms: int) -> None:
        if len(self._reached) >= MAX_GUESSES:
            self._reached.clear()
        self._reached[names] = reached_ms


async def _read(
    raw: Raw, name: str, requests: Sequence[SlotRequest], queries: Sequence[WindowQuery]
) -> BookingSnapshot:
    calls: list[tuple[Statement, Sequence[str]]] = [
        (BEGIN, ()),
        (BY_KEY, ()),
        (EXISTING, (texts(event_id for event_id, _ in requests),)),
        (LOCK, (name,)),
    ]
    if queries:
        calls.append(_windows_call(name, queries))
    _, _, existing, locked, *windows = await execute_pipeline(raw, calls)
    version, now_ms = map(whole_of, locked[0]) if locked else (None, 0)
    slots_by_event = {slot.event_id: slot for slot in map(_assigned, existing)}
    return BookingSnapshot(version, now_ms, slots_by_event, _rows_by_window(windows[0]) if windows else {})


async def _read_windows(raw: Raw, name: str, queries: Sequence[WindowQuery]) -> dict[int, WindowRows]:
    (rows,) = await execute_pipeline(raw, [_windows_call(name, queries)])
    return _rows_by_window(rows)


def _learn(occupancy: Occupancy, queries: Sequence[WindowQuery], rows_by_window: dict[int, WindowRows]) -> None:
    """Adds each query's rows to the occupancy, with the end of the span that they cover."""
    for first_ms, next_ms, rows in queries:
        run, counts = rows_by_window[first_ms]
        resume_ms = next_ms if run is None else max(next_ms, run.resume_ms)
        first = next((count for count in counts if count.start_ms == first_ms), None)
        occupancy.learn_window(first_ms, first)
        occupancy.learn_run(next_ms, run)
        occupancy.learn_windows(resume_ms, sorted(count for count in counts if count.start_ms >= resume_ms), rows)


def _windows_call(name: str, queries: Sequence[WindowQuery]) -> tuple[Statement, Sequence[str]]:
    firsts, nexts, rows = zip(*queries, strict=True)
    return WINDOWS, (name, numbers(firsts), numbers(nexts), numbers(rows))


def _assigned(row: tuple[bytes | None, ...]) -> AssignedSlot:
    event_id, name, *rest, owner, other_windows = row
    assert event_id is not None
    assert name is not None
    version, requested, window, scheduled = map(whole_of, rest)
    owner_name = None if owner is None else owner.decode()
    others = parse_other_windows(None if other_windows is None else other_windows.decode())
    return AssignedSlot(
        event_id.decode(), name.decode(), version, requested, window, scheduled, True, owner_name, others
    )


def _rows_by_window(rows: Rows) -> dict[int, WindowRows]:
    """Rows of `WINDOWS`, by query."""
    rows_by_window: dict[int, WindowRows] = {}
    for at, run_start, resume, *count in rows:
        first_ms = whole_of(at)
        if first_ms not in rows_by_window:
            rows_by_window[first_ms] = WindowRows(
                None if run_start is None else FullRun(whole_of(run_start), whole_of(resume)), []
            )
        if count[0] is not None:
            rows_by_window[first_ms].counts.append(WindowCount(*map(whole_of, count)))
    return rows_by_window


async def _write(
    raw: Raw,
    active: PolicyVersion,
    fresh: Sequence[AssignedSlot],
    counts: Iterable[WindowCount],
    runs: RunChanges,
    now_ms: int,
) -> None:
    name = active.name
    starts, taken, placed = zip(*counts, strict=True)
    windows = (name, numbers(starts), numbers(taken), numbers(placed))
    calls: list[tuple[Statement, Sequence[str | None]]] = []
    if len(fresh) >= COPY_FROM:
        await copy(raw, COPY_SLOTS, _copy_text(fresh, now_ms))
        calls.append((WRITE_WINDOWS, windows))
    else:
        _, _, _, requested, window_starts, scheduled, _, _, _ = zip(*fresh, strict=True)
        booked = (
            texts(slot.event_id for slot in fresh),
            numbers(requested),
            numbers(window_starts),
            numbers(scheduled),
        )
        calls.append((INSERT_SLOTS, (*windows, str(active.version), str(now_ms), *booked, fresh[0].owner)))
    if runs.removed:
        calls.append((REMOVE_RUNS, (name, numbers(runs.removed))))
    if runs.written:
        starts, resumes = zip(*runs.written, strict=True)
        calls.append((WRITE_RUNS, (name, numbers(starts), numbers(resumes))))
    await execute_pipeline(raw, [*calls, (COMMIT, ())])


def _copy_text(fresh: Sequence[AssignedSlot], now_ms: int) -> str:
    """Rows in COPY's text form. Event ids are printable, so only the backslash needs escaping; so does the name. All
    rows have one owner."""
    name = fresh[0].config_name.replace("\\", "\\\\")
    version, owner = fresh[0].config_version, fresh[0].owner or "\\N"
    after = f"Z\t{instant_text(now_ms)}Z\t{owner}\n"
    # Many slots share their window, and mostly their requested time.
    between = {
        (requested, window): f"\t{name}\t{version}\t{instant_text(requested)}Z\t{instant_text(window)}Z\t"
        for _, _, _, requested, window, _, _, _, _ in fresh
    }
    return "".join(
        [
            f"{event_id.replace(chr(92), chr(92) * 2)}{between[requested, window]}{instant_text(scheduled)}{after}"
            for event_id, _, _, requested, window, scheduled, _, _, _ in fresh
        ]
    )
