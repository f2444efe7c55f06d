"""A lone booking on PostgreSQL in one flush: lock, compare, insert, commit.

A process that books alone knows what its last booking left behind. So it packs first, against what it expects to find,
and sends the result along with the expectation. The server compares the two under the config's lock and writes only if
they are the same: a wrong expectation costs a flush, never a wrong booking.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headgate.slots.model import AssignedSlot, PolicyVersion, SlotRequest
from headgate.slots.occupancy import FullRun, Occupancy, WindowCount
from headgate.slots.packing import Full, Packer
from headgate.slots.stores.window_rows import WindowQuery
from headgate.sql.engine import Database
from headgate.sql.pipeline import PLAN_BY_KEY, Statement

MAX_EXPECTATIONS = 4000
"""Configs of which it is remembered what their last booking left behind."""

# A statement of its own: what the next one reads is newer than the lock.
LOCK_ONLY = Statement(
    "headgate_slot_lock_by_key",
    f"SELECT {PLAN_BY_KEY} FROM headgate_slot_config WHERE name = $1 FOR UPDATE",  # noqa: S608
)
# Reads what `WINDOWS` reads for one query, as one text.
BOOK_EXPECTED = Statement(
    "headgate_slot_book_expected",
    """
    WITH expected AS MATERIALIZED (
        SELECT now
        FROM (SELECT coalesce($14::bigint, ceil(extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now) AS clock
        WHERE now <= $8::bigint
            AND $6::int = (SELECT version FROM headgate_slot_config WHERE name = $1)
            AND NOT EXISTS (SELECT FROM headgate_slot WHERE event_id = $7)
            AND $5 = (
                SELECT string_agg(concat_ws(' ',
                    coalesce((extract(epoch FROM run.window_start) * 1000)::bigint::text, '-'),
                    coalesce((extract(epoch FROM run.resume_at) * 1000)::bigint::text, '-'),
                    coalesce((extract(epoch FROM counted.window_start) * 1000)::bigint::text, '-'),
                    coalesce(counted.taken::text, '-'), coalesce(counted.placed::text, '-')
                ), ';' ORDER BY counted.window_start)
                FROM (SELECT 'epoch'::timestamptz + $2::bigint * interval '1 ms' AS first,
                    'epoch'::timestamptz + $3::bigint * interval '1 ms' AS next) AS query
                LEFT JOIN LATERAL (
                    SELECT window_start, resume_at FROM headgate_slot_run
                    WHERE config_name = $1 AND window_start <= query.next
                    ORDER BY window_start DESC LIMIT 1
                ) AS run ON true
                LEFT JOIN LATERAL (
                    (SELECT window_start, taken, placed FROM headgate_slot_window
                    WHERE config_name = $1 AND window_start = query.first)
                    UNION ALL
                    (SELECT window_start, taken, placed FROM headgate_slot_window
                    WHERE config_name = $1 AND window_start >= greatest(query.next, run.resume_at)
                    ORDER BY window_start LIMIT $4::int)
                ) AS counted ON true
            )
    ), booked AS (
        INSERT INTO headgate_slot
            (event_id, config_name, config_version, requested_at, window_start, scheduled_at, created_at, owner)
        SELECT $7, $1, $6::int, 'epoch'::timestamptz + $8::bigint * interval '1 ms',
            'epoch'::timestamptz + $9::bigint * interval '1 ms', 'epoch'::timestamptz + $12::bigint * interval '1 ms',
            'epoch'::timestamptz + now * interval '1 ms', $13
        FROM expected
        RETURNING 1
    ), counted AS (
        INSERT INTO headgate_slot_window (config_name, window_start, taken, placed)
        SELECT $1, 'epoch'::timestamptz + $9::bigint * interval '1 ms', $10::int, $11::int FROM expected
        ON CONFLICT (config_name, window_start) DO UPDATE SET taken = EXCLUDED.taken, placed = EXCLUDED.placed
    )
    SELECT 1 FROM booked
    """,
)


class WindowRows(NamedTuple):
    """The rows of one `WindowQuery`: the run at or before its next window, and counted windows in order."""

    run: FullRun | None
    counts: list[WindowCount]


class _NotExpected(Exception):
    """The packer has to read more than is expected."""


class _NoReader:
    """A `WindowReader` for what is known already."""

    def windows_from(self, start_ms: int, limit: int) -> list[WindowCount]:
        raise _NotExpected

    def run_before(self, start_ms: int) -> FullRun | None:
        raise _NotExpected

    def runs_before(self, starts_ms: Sequence[int]) -> list[FullRun | None]:
        raise _NotExpected

    def recounted(self, size_ms: int, from_ms: int) -> list[WindowCount]:
        raise _NotExpected


@dataclass(slots=True)
class Expectation:
    """What a query will read, if nobody else writes."""

    active: PolicyVersion
    query: WindowQuery
    rows: WindowRows
    packer: Packer | None
    """Sees these rows and nothing else. None while a booking that it has placed is not known to be stored."""


@dataclass(slots=True)
class _Memory:
    """Of one config."""

    expectation: Expectation | None = None
    is_trusted: bool = True
    """The last expectation was right. While others book too, asking first is quicker than guessing."""


class LoneBooker:
    """Books one event at a time, where the last booking of its config leads one to expect what it will find."""

    def __init__(self, database: Database, uniform: Callable[[], float]) -> None:
        self._database = database
        self._uniform = uniform
        self._memories: dict[str, _Memory] = {}

    async def book(self, name: str, request: SlotRequest, now_ms: int | None, owner: str | None) -> AssignedSlot | None:
        """The event's new slot; None if nothing was booked, and the windows have to be read first."""
        memory = self._memories.get(name)
        if memory is None or memory.expectation is None or not memory.is_trusted:
            return None
        expectation = memory.expectation
        active, query, packer = expectation.active, expectation.query, expectation.packer
        event_id, requested_ms = request
        guessed_now = int(time.time() * 1000) if now_ms is None else now_ms
        # An event for now is not packed before the server has told the time.
        if (
            packer is None
            or requested_ms <= guessed_now
            or requested_ms - requested_ms % active.policy.size_ms != query.first_ms
        ):
            return None
        expectation.packer = None
        packer.now_ms = guessed_now
        try:
            place = packer.place(requested_ms)
            if isinstance(place, Full) or any(packer.occupancy.changed_runs()):
                return None
        except _NotExpected:
            return None
        count = packer.occupancy.count(place.window_start_ms)
        slot = AssignedSlot(event_id, name, active.version, requested_ms, *place[:2], False, owner)
        parameters = [
            name,
            *map(str, query),
            _as_text(expectation.rows),
            str(active.version),
            event_id,
            *map(str, (requested_ms, *count, slot.scheduled_ms)),
            owner,
            None if now_ms is None else str(now_ms),
        ]
        _, booked = await self._database.pipeline([(LOCK_ONLY, (name,)), (BOOK_EXPECTED, parameters)])
        if not booked:
            memory.is_trusted = False
            return None
        expectation.rows, expectation.packer = _after(expectation.rows, query, [count]), packer
        return slot

    def remember(
        self, active: PolicyVersion, query: WindowQuery, rows: WindowRows, occupancy: Occupancy, *, runs_change: bool
    ) -> None:
        """Learns from a booking that has read `rows`, and has changed the windows of `occupancy` since."""
        if len(self._memories) >= MAX_EXPECTATIONS:
            self._memories.clear()
        memory = self._memories.setdefault(active.name, _Memory())
        if memory.expectation is not None and memory.expectation.query == query:
            memory.is_trusted = memory.expectation.rows == rows
        memory.expectation = None
        if not runs_change:
            rows = _after(rows, query, occupancy.changed_windows())
            # Not that occupancy itself, which may know more: what is not compared must not be relied on.
            expected = Occupancy(active.policy, _NoReader())
            learn(expected, [query], {query.first_ms: rows})
            packer = Packer(active.policy, expected, 0, self._uniform)
            memory.expectation = Expectation(active, query, rows, packer)


def learn(occupancy: Occupancy, queries: Sequence[WindowQuery], rows_by_window: dict[int, WindowRows]) -> None:
    """Hands the occupancy what each query read, and how far that reaches."""
    for first_ms, next_ms, rows in queries:
        run, counts = rows_by_window[first_ms]
        resume_ms = next_ms if run is None else max(next_ms, run.resume_ms)
        first = next((count for count in counts if count.start_ms == first_ms), None)
        occupancy.learn_window(first_ms, first)
        occupancy.learn_run(next_ms, run)
        occupancy.learn_windows(resume_ms, sorted(count for count in counts if count.start_ms >= resume_ms), rows)


def _after(rows: WindowRows, query: WindowQuery, changed: Iterable[WindowCount]) -> WindowRows:
    """What the query reads when these windows are written, and runs stay as they are."""
    counts = {count.start_ms: count for count in (*rows.counts, *changed)}
    first = [counts.pop(query.first_ms)] if query.first_ms in counts else []
    return WindowRows(rows.run, [*first, *sorted(counts.values())[: query.rows]])


def _as_text(rows: WindowRows) -> str:
    """As the server writes it."""
    run = "- -" if rows.run is None else "{} {}".format(*rows.run)
    return ";".join("{} {} {} {}".format(run, *count) for count in rows.counts) or f"{run} - - -"
