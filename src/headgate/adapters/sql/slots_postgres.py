"""Booking on PostgreSQL in two flushes: one that locks and reads, one that writes and commits.

The generic path in `slots.py` asks one thing at a time, and the config's lock is held over every round trip. Here the
questions go out together in psycopg's pipeline mode. What to ask is guessed from the policy of the last booking and
the host's clock; a wrong guess costs another question (`SqlLedger`), never a wrong answer.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple, cast

from psycopg import AsyncConnection
from sqlalchemy.engine import Connection

from headgate.adapters.sql import slots
from headgate.adapters.sql.instants import InstantText
from headgate.adapters.sql.slots import SqlLedger, assigned
from headgate.iso8601 import from_ms, to_ms
from headgate.slots.model import AssignedSlot, PolicyVersion, SlotRequest, WindowPolicy
from headgate.slots.occupancy import FullRun, Occupancy, RunChanges, WindowCount
from headgate.slots.packing import Booking, Packer, book_all, unbooked
from headgate.slots.windows import align, next_open

Raw = AsyncConnection[tuple[Any, ...]]

COPY_FROM = 400
"""Slots in one transaction from which COPY, which pipeline mode can't carry, is worth its own round trip."""
MOST_PROBES = 64
"""First windows asked about in advance; a batch with more distinct ones asks for the rest as it comes to them."""

LOCK = "SELECT version FROM headgate_slot_config WHERE name = %s FOR UPDATE"
# Not now(), which is when the transaction began: it may have waited for the lock since.
CLOCK = "SELECT clock_timestamp()"
EXISTING = """
    SELECT event_id, config_name, config_version, requested_at, window_start, scheduled_at
    FROM headgate_slot WHERE event_id = ANY(%s)
"""
FIRST_WINDOWS = """
    SELECT window_start, taken, placed FROM headgate_slot_window
    WHERE config_name = %s AND window_start = ANY(%s)
"""
# For each probed window: the run that starts at or before it, and the counters from where that run lets go.
NEXT_WINDOWS = """
    SELECT probe.at, run.window_start, run.resume_at, counted.window_start, counted.taken, counted.placed
    FROM unnest(%(probes)s::timestamptz[], %(limits)s::int[]) AS probe(at, rows)
    LEFT JOIN LATERAL (
        SELECT window_start, resume_at FROM headgate_slot_run
        WHERE config_name = %(name)s AND window_start <= probe.at
        ORDER BY window_start DESC LIMIT 1
    ) AS run ON true
    LEFT JOIN LATERAL (
        SELECT window_start, taken, placed FROM headgate_slot_window
        WHERE config_name = %(name)s AND window_start >= greatest(probe.at, run.resume_at)
        ORDER BY window_start LIMIT probe.rows
    ) AS counted ON true
    ORDER BY probe.at, counted.window_start
"""
INSERT_SLOTS = """
    INSERT INTO headgate_slot
        (event_id, config_name, config_version, requested_at, window_start, scheduled_at, created_at)
    SELECT event_id, %(name)s, %(version)s, 'epoch'::timestamptz + requested * interval '1 ms',
        'epoch'::timestamptz + start * interval '1 ms', 'epoch'::timestamptz + scheduled * interval '1 ms', %(now)s
    FROM unnest(%(ids)s::text[], %(requested)s::bigint[], %(starts)s::bigint[], %(scheduled)s::bigint[])
        AS new(event_id, requested, start, scheduled)
"""
COPY_SLOTS = """
    COPY headgate_slot
        (event_id, config_name, config_version, requested_at, window_start, scheduled_at, created_at) FROM STDIN
"""
WRITE_WINDOWS = """
    INSERT INTO headgate_slot_window (config_name, window_start, taken, placed)
    SELECT %(name)s, start, taken, placed
    FROM unnest(%(starts)s::timestamptz[], %(taken)s::int[], %(placed)s::int[]) AS new(start, taken, placed)
    ON CONFLICT (config_name, window_start) DO UPDATE SET taken = EXCLUDED.taken, placed = EXCLUDED.placed
"""
REMOVE_RUNS = "DELETE FROM headgate_slot_run WHERE config_name = %s AND window_start = ANY(%s)"
WRITE_RUNS = """
    INSERT INTO headgate_slot_run (config_name, window_start, resume_at)
    SELECT %(name)s, start, resume
    FROM unnest(%(starts)s::timestamptz[], %(resumes)s::timestamptz[]) AS new(start, resume)
"""


class Probe(NamedTuple):
    """A window to ask about in advance, and how many windows from there on."""

    first_ms: int
    next_ms: int
    rows: int


class Reading(NamedTuple):
    """What the first flush brought."""

    version: int | None
    now_ms: int
    existing: dict[str, AssignedSlot]
    firsts: list[WindowCount]
    following: list[tuple[int, FullRun | None, list[WindowCount]]]


class Booker:
    """Books in two flushes; remembers each config's last policy, as the guess for the next booking."""

    def __init__(self) -> None:
        self._policies: dict[str, PolicyVersion] = {}

    def book(
        self,
        connection: Connection,
        name: str,
        requests: Sequence[SlotRequest],
        now_ms: int | None,
        uniform: Callable[[], float],
    ) -> list[Booking]:
        """Books every request in this transaction and commits it."""
        guess = self._policies.get(name)
        guessed_now = int(time.time() * 1000) if now_ms is None else now_ms
        probes = _probes(guess.policy, requests, guessed_now) if guess else []
        reading: Reading = _awaited(connection, lambda raw: _read(raw, name, requests, probes))
        if reading.version is None:
            return unbooked(name, requests, reading.existing)
        active = guess
        if active is None or active.version != reading.version:
            active = slots.lock_active(connection, name)
            assert active is not None, "the config's row is locked, so it is there"
            self._policies[name] = active
        policy = active.policy
        occupancy = Occupancy(policy, SqlLedger(connection, name))
        if guess is active:
            _learn(occupancy, probes, reading)
        at_ms = reading.now_ms if now_ms is None else now_ms
        bookings, fresh = book_all(active, Packer(policy, occupancy, at_ms, uniform), requests, reading.existing)
        if fresh:
            # Before the pipeline opens: joining runs may have to ask the database.
            counts, runs = occupancy.changed_windows(), occupancy.changed_runs()
            _awaited(connection, lambda raw: _write(raw, active, fresh, counts, runs, from_ms(at_ms)))
        return bookings


def _awaited(connection: Connection, work: Callable[[Raw], Awaitable[Any]]) -> Any:
    """Awaits psycopg work on the connection's own driver connection, inside the transaction it stands in."""
    adapted = connection.connection.dbapi_connection
    assert adapted is not None
    return cast(Any, adapted).run_async(work)


def _probes(policy: WindowPolicy, requests: Sequence[SlotRequest], now_ms: int) -> list[Probe]:
    """The first windows these requests will look at, and how many windows each may go through."""
    size, calendar = policy.size_ms, policy.calendar
    wanted = Counter(align(max(requested, now_ms), size) for _, requested in requests)
    return [
        Probe(first, next_open(calendar, size, first + size), count // policy.max_per_window + 2)
        for first, count in sorted(wanted.items())[:MOST_PROBES]
    ]


async def _read(raw: Raw, name: str, requests: Sequence[SlotRequest], probes: list[Probe]) -> Reading:
    async with raw.pipeline():
        locked = await raw.execute(LOCK, (name,))
        clock = await raw.execute(CLOCK)
        existing = await raw.execute(EXISTING, ([event_id for event_id, _ in requests],))
        first = following = None
        if probes:
            first = await raw.execute(FIRST_WINDOWS, (name, [from_ms(probe.first_ms) for probe in probes]))
            following = await raw.execute(
                NEXT_WINDOWS,
                {
                    "name": name,
                    "probes": [from_ms(probe.next_ms) for probe in probes],
                    "limits": [probe.rows for probe in probes],
                },
            )
        version = await locked.fetchone()
        now = await clock.fetchone()
        assert now is not None
        return Reading(
            None if version is None else version[0],
            to_ms(now[0]),
            {row[0]: assigned(*row) for row in await existing.fetchall()},
            [WindowCount(to_ms(at), taken, placed) for at, taken, placed in await first.fetchall()] if first else [],
            _grouped(await following.fetchall()) if following else [],
        )


def _grouped(rows: Iterable[tuple[Any, ...]]) -> list[tuple[int, FullRun | None, list[WindowCount]]]:
    """Rows of `NEXT_WINDOWS`, by probed window."""
    found: dict[int, tuple[int, FullRun | None, list[WindowCount]]] = {}
    for at, run_start, resume, start, taken, placed in rows:
        at_ms = to_ms(at)
        if at_ms not in found:
            run = None if run_start is None else FullRun(to_ms(run_start), to_ms(resume))
            found[at_ms] = at_ms, run, []
        if start is not None:
            found[at_ms][2].append(WindowCount(to_ms(start), taken, placed))
    return list(found.values())


def _learn(occupancy: Occupancy, probes: list[Probe], reading: Reading) -> None:
    firsts = {count.start_ms: count for count in reading.firsts}
    rows = {probe.next_ms: probe.rows for probe in probes}
    for probe in probes:
        occupancy.learn_window(probe.first_ms, firsts.get(probe.first_ms))
    for at_ms, run, counts in reading.following:
        occupancy.learn_run(at_ms, run)
        from_there = max(at_ms, run.resume_ms) if run is not None else at_ms
        occupancy.learn_windows(from_there, counts, rows[at_ms])


async def _write(
    raw: Raw,
    active: PolicyVersion,
    fresh: Sequence[AssignedSlot],
    counts: Sequence[WindowCount],
    runs: RunChanges,
    now: datetime,
) -> None:
    name = active.name
    if len(fresh) >= COPY_FROM:
        async with raw.cursor().copy(COPY_SLOTS) as copy:
            await copy.write(_copy_text(fresh, now))
    async with raw.pipeline():
        if len(fresh) < COPY_FROM:
            await raw.execute(
                INSERT_SLOTS,
                {
                    "name": name,
                    "version": active.version,
                    "ids": [slot.event_id for slot in fresh],
                    "requested": [slot.requested_ms for slot in fresh],
                    "starts": [slot.window_start_ms for slot in fresh],
                    "scheduled": [slot.scheduled_ms for slot in fresh],
                    "now": now,
                },
            )
        await raw.execute(
            WRITE_WINDOWS,
            {
                "name": name,
                "starts": [from_ms(count.start_ms) for count in counts],
                "taken": [count.taken for count in counts],
                "placed": [count.placed for count in counts],
            },
        )
        if runs.removed:
            await raw.execute(REMOVE_RUNS, (name, [from_ms(start) for start in runs.removed]))
        if runs.written:
            await raw.execute(
                WRITE_RUNS,
                {
                    "name": name,
                    "starts": [from_ms(run.start_ms) for run in runs.written],
                    "resumes": [from_ms(run.resume_ms) for run in runs.written],
                },
            )
        await raw.commit()


def _copy_text(fresh: Sequence[AssignedSlot], now: datetime) -> str:
    """Rows in COPY's text form. Event ids are printable, so only the backslash needs escaping; so does the name."""
    text = InstantText()
    name = fresh[0].config_name.replace("\\", "\\\\")
    version, created = fresh[0].config_version, now.isoformat()
    return "".join(
        f"{event_id.replace(chr(92), chr(92) * 2)}\t{name}\t{version}\t{text(requested)}Z\t{text(window)}Z"
        f"\t{text(scheduled)}Z\t{created}\n"
        for event_id, _, _, requested, window, scheduled, _ in fresh
    )
