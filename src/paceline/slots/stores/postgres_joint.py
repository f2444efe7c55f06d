"""Booking under several configs on PostgreSQL in two flushes, as in `postgres.py` under one.

Each statement covers all configs, so a further config costs rows and no round trip. Where the search will end is
guessed from the last booking of the same configs; a wrong guess costs another flush, never a wrong booking.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy.engine import Connection

from paceline.slots.joint import JointSide
from paceline.slots.model import AssignedSlot, PolicyVersion, SlotRequest
from paceline.slots.occupancy import FullRun, Occupancy, RunChanges, WindowCount
from paceline.slots.stores.other_windows import other_windows_text
from paceline.slots.stores.window_rows import WindowQuery, window_queries
from paceline.slots.windows import align
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
    text_of,
    texts,
    whole_of,
)
from paceline.sql.schema import instant_text

# In the order of the given names, which are sorted: rows are locked in this order. The last row's clock is read when
# all are locked.
LOCK = Statement(
    "paceline_slot_lock_joint",
    """
    SELECT name, version, ceil(extract(epoch FROM clock_timestamp()) * 1000)::bigint
    FROM (
        SELECT config.name, config.version
        FROM unnest($1::text[]) WITH ORDINALITY AS requested(name, place)
        JOIN paceline_slot_config AS config ON config.name = requested.name
        ORDER BY requested.place FOR UPDATE OF config
    ) AS locked
    """,
)
WINDOWS = Statement(
    "paceline_slot_windows_joint",
    """
    SELECT query.place, (extract(epoch FROM run.window_start) * 1000)::bigint,
        (extract(epoch FROM run.resume_at) * 1000)::bigint,
        (extract(epoch FROM counted.window_start) * 1000)::bigint, counted.taken, counted.placed
    FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::int[]) WITH ORDINALITY
        AS query(name, first, next, rows, place)
    LEFT JOIN LATERAL (
        SELECT window_start, resume_at FROM paceline_slot_run
        WHERE config_name = query.name AND window_start <= 'epoch'::timestamptz + query.next * interval '1 ms'
        ORDER BY window_start DESC LIMIT 1
    ) AS run ON true
    LEFT JOIN LATERAL (
        (SELECT window_start, taken, placed FROM paceline_slot_window
        WHERE config_name = query.name AND window_start = 'epoch'::timestamptz + query.first * interval '1 ms')
        UNION ALL
        (SELECT window_start, taken, placed FROM paceline_slot_window
        WHERE config_name = query.name
            AND window_start >= greatest('epoch'::timestamptz + query.next * interval '1 ms', run.resume_at)
        ORDER BY window_start LIMIT query.rows)
    ) AS counted ON true
    """,
)
WRITE_WINDOWS_SQL = """
    INSERT INTO paceline_slot_window (config_name, window_start, taken, placed)
    SELECT name, 'epoch'::timestamptz + start * interval '1 ms', taken, placed
    FROM unnest($1::text[], $2::bigint[], $3::int[], $4::int[]) AS new(name, start, taken, placed)
    ON CONFLICT (config_name, window_start) DO UPDATE SET taken = EXCLUDED.taken, placed = EXCLUDED.placed
"""
WRITE_WINDOWS = Statement("paceline_slot_write_windows_joint", WRITE_WINDOWS_SQL)
# Many slots share their windows: $13 has each text of other windows once, and `others` indexes it.
INSERT_SLOTS = Statement(
    "paceline_slot_insert_joint",
    f"""
    WITH booked AS (
        INSERT INTO paceline_slot (event_id, config_name, config_version, requested_at, window_start, scheduled_at,
            created_at, owner, other_windows)
        SELECT event_id, $5, $6::int, 'epoch'::timestamptz + requested * interval '1 ms',
            'epoch'::timestamptz + start * interval '1 ms', 'epoch'::timestamptz + scheduled * interval '1 ms',
            'epoch'::timestamptz + $7::bigint * interval '1 ms', $8::text, ($13::text[])[others]
        FROM unnest($9::text[], $10::bigint[], $11::bigint[], $12::bigint[], $14::int[])
            AS new(event_id, requested, start, scheduled, others)
    )
    {WRITE_WINDOWS_SQL}
    """,  # noqa: S608  # of our own two halves: one statement costs less than two
)
COPY_SLOTS = """
    COPY paceline_slot (event_id, config_name, config_version, requested_at, window_start, scheduled_at, created_at,
        owner, other_windows) FROM STDIN
"""
REMOVE_RUNS = Statement(
    "paceline_slot_remove_runs_joint",
    """
    DELETE FROM paceline_slot_run USING unnest($1::text[], $2::bigint[]) AS old(name, start)
    WHERE config_name = old.name AND window_start = 'epoch'::timestamptz + old.start * interval '1 ms'
    """,
)
WRITE_RUNS = Statement(
    "paceline_slot_write_runs_joint",
    """
    INSERT INTO paceline_slot_run (config_name, window_start, resume_at)
    SELECT name, 'epoch'::timestamptz + start * interval '1 ms', 'epoch'::timestamptz + resume * interval '1 ms'
    FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS new(name, start, resume)
    """,
)


class JointSnapshot(NamedTuple):
    """The results of the first flush."""

    versions: dict[str, int]
    now_ms: int
    existing: Rows
    windows: Rows


class WindowReads:
    """Reads of each config's windows, in one statement."""

    def __init__(self) -> None:
        self._queries: list[tuple[str, WindowQuery]] = []

    def add(self, actives: Sequence[PolicyVersion], requests: Sequence[SlotRequest], now_ms: int) -> None:
        """Adds the first windows of each config that these requests will read."""
        for active in actives:
            self._queries += [(active.name, query) for query in window_queries(active.policy, requests, now_ms)]

    def add_from(self, actives: Sequence[PolicyVersion], at_ms: int, count: int) -> None:
        """Adds the windows of each config, from a time on, that `count` requests may need."""
        slowest = max(active.policy.size_ms / active.policy.lowest_limit for active in actives)
        for active in actives:
            size = active.policy.size_ms
            first = align(at_ms, size)
            if any(name == active.name and query.first_ms == first for name, query in self._queries):
                continue
            rows = min(int(count * slowest / size), count) + 2
            self._queries.append((active.name, WindowQuery(first, active.policy.next_open(first + size), rows)))

    def calls(self) -> list[tuple[Statement, Sequence[str]]]:
        """The statement, if there is anything to read."""
        if not self._queries:
            return []
        names, queries = zip(*self._queries, strict=True)
        firsts, nexts, rows = zip(*queries, strict=True)
        return [(WINDOWS, (texts(names), numbers(firsts), numbers(nexts), numbers(rows)))]

    def add_windows(self, active: PolicyVersion, at_ms: int, rows: int) -> None:
        """Adds `rows` windows of a config, from a time on."""
        size = active.policy.size_ms
        first = align(at_ms, size)
        self._queries.append((active.name, WindowQuery(first, active.policy.next_open(first + size), rows)))

    def learn(self, rows: Rows, occupancies: Mapping[str, Occupancy]) -> None:
        """Adds the rows to each config's occupancy, with the end of the span that they cover."""
        runs: dict[int, FullRun | None] = {}
        counts: dict[int, list[WindowCount]] = {}
        for place, run_start, resume, *count in rows:
            index = whole_of(place) - 1
            runs[index] = None if run_start is None else FullRun(whole_of(run_start), whole_of(resume))
            if count[0] is not None:
                counts.setdefault(index, []).append(WindowCount(*map(whole_of, count)))
        for index, (name, (first_ms, next_ms, limit)) in enumerate(self._queries):
            occupancy, run, counted = occupancies[name], runs[index], counts.get(index, [])
            resume_ms = next_ms if run is None else max(next_ms, run.resume_ms)
            occupancy.learn_window(first_ms, next((count for count in counted if count.start_ms == first_ms), None))
            occupancy.learn_run(next_ms, run)
            occupancy.learn_windows(resume_ms, sorted(count for count in counted if count.start_ms >= resume_ms), limit)


async def read(raw: Raw, existing: Statement, names: Sequence[str], ids: str, reads: WindowReads) -> JointSnapshot:
    """The first flush: begins, reads the events' existing slots, locks the configs, reads windows."""
    calls: list[tuple[Statement, Sequence[str]]] = [
        (BEGIN, ()),
        (BY_KEY, ()),
        (existing, (ids,)),
        (LOCK, (texts(sorted(names)),)),
        *reads.calls(),
    ]
    _, _, rows, locked, *windows = await execute_pipeline(raw, calls)
    versions = {text_of(name): whole_of(version) for name, version, _ in locked}
    now_ms = whole_of(locked[-1][2]) if locked else 0
    return JointSnapshot(versions, now_ms, rows, windows[0] if windows else [])


def read_on(connection: Connection, sides: Sequence[JointSide], requests: Sequence[SlotRequest], now_ms: int) -> None:
    """Reads the windows where the search for the first request continues, if one config's full run ends after the
    windows of the others that were read."""
    effective = max(requests[0].requested_ms, now_ms)
    at = max(
        side.occupancy.first_known_free(side.active.policy.next_open(align(effective, side.size_ms) + side.size_ms))
        for side in sides
    )
    if all(side.occupancy.knows(align(at, side.size_ms)) for side in sides):
        return
    reads = WindowReads()
    reads.add_from([side.active for side in sides], at, len(requests))
    calls = reads.calls()
    (rows,) = run_async(connection, lambda raw: execute_pipeline(raw, calls))
    reads.learn(rows, occupancies_of(sides))


def occupancies_of(sides: Iterable[JointSide]) -> dict[str, Occupancy]:
    """By name of the config."""
    return {side.active.name: side.occupancy for side in sides}


async def write(
    raw: Raw,
    sides: Sequence[JointSide],
    fresh: Sequence[AssignedSlot],
    runs: Mapping[str, RunChanges],
    now_ms: int,
    copy_from: int,
) -> None:
    """The second flush: writes slots, counters and runs, and commits."""
    windows = changed_windows(occupancies_of(sides))
    calls: list[tuple[Statement, Sequence[str | None]]] = []
    if len(fresh) >= copy_from:
        await copy(raw, COPY_SLOTS, _copy_text(fresh, now_ms))
        calls.append((WRITE_WINDOWS, windows))
    else:
        calls.append((INSERT_SLOTS, (*windows, *_slot_values(fresh, now_ms))))
    await execute_pipeline(raw, [*calls, *run_calls(runs), (COMMIT, ())])


def changed_windows(occupancies: Mapping[str, Occupancy]) -> Sequence[str]:
    """The parameters of `WRITE_WINDOWS`."""
    names: list[str] = []
    counts: list[WindowCount] = []
    for name, occupancy in occupancies.items():
        changed = list(occupancy.changed_windows())
        names += [name] * len(changed)
        counts += changed
    starts, taken, placed = zip(*counts, strict=True)
    return texts(names), numbers(starts), numbers(taken), numbers(placed)


def run_calls(runs: Mapping[str, RunChanges]) -> list[tuple[Statement, Sequence[str]]]:
    """The statements that remove and write runs."""
    calls: list[tuple[Statement, Sequence[str]]] = []
    removed = [(name, start) for name, change in runs.items() for start in change.removed]
    if removed:
        calls.append((REMOVE_RUNS, (texts(name for name, _ in removed), numbers(start for _, start in removed))))
    written = [(name, *run) for name, change in runs.items() for run in change.written]
    if written:
        names, starts, resumes = zip(*written, strict=True)
        calls.append((WRITE_RUNS, (texts(names), numbers(starts), numbers(resumes))))
    return calls


def _slot_values(fresh: Sequence[AssignedSlot], now_ms: int) -> Sequence[str | None]:
    first = fresh[0]
    event_ids, _, _, requested, starts, scheduled, _, _, others = zip(*fresh, strict=True)
    places = {windows: place for place, windows in enumerate(dict.fromkeys(others), 1)}
    return (
        first.config_name,
        str(first.config_version),
        str(now_ms),
        first.owner,
        texts(event_ids),
        numbers(requested),
        numbers(starts),
        numbers(scheduled),
        texts(other_windows_text(windows) or "" for windows in places),
        numbers(places[windows] for windows in others),
    )


def _copy_text(fresh: Sequence[AssignedSlot], now_ms: int) -> str:
    """Rows in COPY's text form; only the backslash needs escaping, as in `postgres.py`."""
    text: Callable[[int], str] = instant_text
    name = _escaped(fresh[0].config_name)
    version, created, owner = fresh[0].config_version, text(now_ms), fresh[0].owner or "\\N"
    windows = {others: _escaped(other_windows_text(others) or "") for others in {slot.other_windows for slot in fresh}}
    return "".join(
        f"{_escaped(event_id)}\t{name}\t{version}\t{text(requested)}Z\t{text(window)}Z"
        f"\t{text(scheduled)}Z\t{created}Z\t{owner}\t{windows[others]}\n"
        for event_id, _, _, requested, window, scheduled, _, _, others in fresh
    )


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\")
