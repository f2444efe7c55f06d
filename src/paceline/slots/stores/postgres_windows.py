"""Windows, runs and new slots of any number of configs on PostgreSQL, by statements that cover all of them: a further
config costs rows and no round trip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.slots.model import AssignedSlot, PolicyVersion, SlotRequest, Spread
from paceline.slots.occupancy import MAX_TIMES, FullRun, Occupancy, RunChanges, WindowCount
from paceline.slots.stores.other_windows import name_in_text, other_windows_text
from paceline.slots.stores.window_rows import WindowQuery, window_queries
from paceline.slots.windows import Spacing, align
from paceline.sql.pipeline import (
    COMMIT,
    Raw,
    Rows,
    Statement,
    copy,
    execute_pipeline,
    numbers,
    texts,
    whole_of,
)
from paceline.sql.schema import instant_text

COPY_FROM = 400
"""The number of slots in a transaction from which COPY, which a pipeline can't contain, is worth a round trip."""
MAX_TIME_QUERIES = 1000
"""The first windows of one config whose slots' times are read in advance; those of further ones, when needed."""
_NULL = "\\N"

WINDOWS = Statement(
    "paceline_slot_windows",
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
WRITE_WINDOWS = Statement("paceline_slot_write_windows", WRITE_WINDOWS_SQL)
# Many slots share their config and owner, and their windows: `head` and `others` index the arrays that have each once.
INSERT_SLOTS = Statement(
    "paceline_slot_insert",
    f"""
    WITH booked AS (
        INSERT INTO paceline_slot (event_id, config_name, config_version, requested_at, window_start, scheduled_at,
            created_at, owner, other_windows)
        SELECT event_id, ($5::text[])[head], ($6::int[])[head], 'epoch'::timestamptz + requested * interval '1 ms',
            'epoch'::timestamptz + start * interval '1 ms', 'epoch'::timestamptz + scheduled * interval '1 ms',
            'epoch'::timestamptz + $8::bigint * interval '1 ms', nullif(($7::text[])[head], ''),
            nullif(($9::text[])[others], '')
        FROM unnest($10::text[], $11::bigint[], $12::bigint[], $13::bigint[], $14::int[], $15::int[])
            AS new(event_id, requested, start, scheduled, head, others)
    )
    {WRITE_WINDOWS_SQL}
    """,  # noqa: S608  # of our own two halves: one statement costs less than two
)
# For each query: its config's slots in [since, until). The index is one of times, so other configs' slots are read too.
TIMES = Statement(
    "paceline_slot_times",
    """
    SELECT query.place, (extract(epoch FROM booked.scheduled_at) * 1000)::bigint
    FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[]) WITH ORDINALITY
        AS query(name, part, since, until, place)
    CROSS JOIN LATERAL (
        SELECT scheduled_at FROM paceline_slot
        WHERE scheduled_at >= 'epoch'::timestamptz + query.since * interval '1 ms'
            AND scheduled_at < 'epoch'::timestamptz + query.until * interval '1 ms'
            AND (config_name = query.name OR strpos(other_windows, query.part) > 0)
        ORDER BY scheduled_at LIMIT $5::int
    ) AS booked
    """,
)
COPY_SLOTS = """
    COPY paceline_slot (event_id, config_name, config_version, requested_at, window_start, scheduled_at, created_at,
        owner, other_windows) FROM STDIN
"""
REMOVE_RUNS = Statement(
    "paceline_slot_remove_runs",
    """
    DELETE FROM paceline_slot_run USING unnest($1::text[], $2::bigint[]) AS old(name, start)
    WHERE config_name = old.name AND window_start = 'epoch'::timestamptz + old.start * interval '1 ms'
    """,
)
WRITE_RUNS = Statement(
    "paceline_slot_write_runs",
    """
    INSERT INTO paceline_slot_run (config_name, window_start, resume_at)
    SELECT name, 'epoch'::timestamptz + start * interval '1 ms', 'epoch'::timestamptz + resume * interval '1 ms'
    FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS new(name, start, resume)
    """,
)


class WindowReads:
    """Reads of each config's windows, in one statement."""

    def __init__(self) -> None:
        self._queries: dict[tuple[str, int], WindowQuery] = {}
        """By config and first window."""

    def add(self, active: PolicyVersion, requests: Sequence[SlotRequest], now_ms: int) -> None:
        """Adds the first windows of a config that these requests will read."""
        for query in window_queries(active.policy, requests, now_ms):
            self._queries.setdefault((active.name, query.first_ms), query)

    def add_from(self, actives: Sequence[PolicyVersion], at_ms: int, count: int) -> None:
        """Adds the windows of each config, from a time on, that `count` requests may need."""
        slowest = max([active.policy.size_ms / active.policy.lowest_limit for active in actives]) if count > 1 else 0.0
        for active in actives:
            size = active.policy.size_ms
            first = align(at_ms, size)
            place = active.name, first
            if place not in self._queries:
                rows = min(int(count * slowest / size), count) + 2
                self._queries[place] = WindowQuery(first, active.policy.next_open(first + size), rows)

    def calls(self) -> list[tuple[Statement, Sequence[str]]]:
        """The statement, if there is anything to read."""
        if not self._queries:
            return []
        firsts, nexts, rows = zip(*self._queries.values(), strict=True)
        return [(WINDOWS, (texts(name for name, _ in self._queries), numbers(firsts), numbers(nexts), numbers(rows)))]

    def learn(self, rows: Rows, occupancies: Mapping[str, Occupancy]) -> None:
        """Adds the rows to each config's occupancy, with the end of the span that they cover."""
        runs: dict[int, FullRun] = {}
        counts: dict[int, list[WindowCount]] = {}
        for place, run_start, resume, start, taken, placed in rows:
            index = whole_of(place)
            if run_start is not None and index not in runs:
                runs[index] = FullRun(int(run_start), whole_of(resume))
            if start is not None:
                counts.setdefault(index, []).append(WindowCount(int(start), whole_of(taken), whole_of(placed)))
        for index, ((name, _), (first_ms, next_ms, limit)) in enumerate(self._queries.items(), 1):
            occupancy = occupancies.get(name)
            if occupancy is None:
                continue
            run = runs.get(index)
            resume_ms = next_ms if run is None else max(next_ms, run.resume_ms)
            counted = sorted(counts.get(index, ()))
            first = counted.pop(0) if counted and counted[0].start_ms == first_ms else None
            occupancy.learn_window(first_ms, first)
            occupancy.learn_run(next_ms, run)
            occupancy.learn_windows(resume_ms, counted, limit)


class TimeReads:
    """Reads of the times of slots in the first windows of requests, in one statement."""

    def __init__(self) -> None:
        self._queries: list[tuple[str, int, int, int]] = []

    def add(self, active: PolicyVersion, requests: Sequence[SlotRequest], now_ms: int) -> None:
        """Adds the rests of those windows whose slots a config keeps its distance from."""
        policy = active.policy
        if policy.spread is not Spread.EVEN:
            return
        size = policy.size_ms
        lows: dict[int, int] = {}
        for effective in {max(requested, now_ms) for _, requested in requests}:
            start = align(effective, size)
            if start < effective:
                lows[start] = min(effective, lows.get(start, effective))
        for start, low in sorted(lows.items())[:MAX_TIME_QUERIES]:
            since = max(start, low - Spacing.of(policy.limit_at(start), size).span_ms)
            self._queries.append((active.name, start, since, start + size))

    def calls(self) -> list[tuple[Statement, Sequence[str]]]:
        """The statement, if there is anything to read."""
        if not self._queries:
            return []
        names, _, since, until = zip(*self._queries, strict=True)
        parts = texts(map(name_in_text, names))
        return [(TIMES, (texts(names), parts, numbers(since), numbers(until), str(MAX_TIMES + 1)))]

    def learn(self, rows: Rows, occupancies: Mapping[str, Occupancy]) -> None:
        """Adds the rows to each config's occupancy."""
        times: dict[int, list[int]] = {}
        for place, at in rows:
            times.setdefault(whole_of(place) - 1, []).append(whole_of(at))
        for index, (name, start, since, _) in enumerate(self._queries):
            if name in occupancies:
                occupancies[name].learn_times(start, since, times.get(index, []))


async def write(
    raw: Raw,
    occupancies: Mapping[str, Occupancy],
    fresh: Sequence[AssignedSlot],
    runs: Mapping[str, RunChanges],
    now_ms: int,
) -> None:
    """Writes slots, counters and runs, and commits."""
    windows = changed_windows(occupancies)
    calls: list[tuple[Statement, Sequence[str | None]]] = []
    if len(fresh) >= COPY_FROM:
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


def _slot_values(fresh: Sequence[AssignedSlot], now_ms: int) -> Sequence[str]:
    event_ids, names, versions, requested, starts, scheduled, _, owners, others = zip(*fresh, strict=True)
    heads = list(zip(names, versions, owners, strict=True))
    head_places = {head: place for place, head in enumerate(dict.fromkeys(heads), 1)}
    places = {windows: place for place, windows in enumerate(dict.fromkeys(others), 1)}
    head_names, head_versions, head_owners = zip(*head_places, strict=True)
    return (
        texts(head_names),
        numbers(head_versions),
        texts(owner or "" for owner in head_owners),
        str(now_ms),
        texts(other_windows_text(windows) or "" for windows in places),
        texts(event_ids),
        numbers(requested),
        numbers(starts),
        numbers(scheduled),
        numbers(head_places[head] for head in heads),
        numbers(places[windows] for windows in others),
    )


def _copy_text(fresh: Sequence[AssignedSlot], now_ms: int) -> str:
    """Rows in COPY's text form. Ids and names are printable, so only the backslash needs escaping."""
    created = f"Z\t{instant_text(now_ms)}Z\t"
    # Many slots share their config and window, and mostly their requested time.
    before: dict[tuple[Any, ...], str] = {}
    after: dict[tuple[Any, ...], str] = {}
    rows: list[str] = []
    for event_id, name, version, requested, window, scheduled, _, owner, others in fresh:
        head, tail = (name, version, requested, window), (owner, others)
        if head not in before:
            before[head] = f"\t{_escaped(name)}\t{version}\t{instant_text(requested)}Z\t{instant_text(window)}Z\t"
        if tail not in after:
            after[tail] = f"{created}{owner or _NULL}\t{_escaped(other_windows_text(others) or '') or _NULL}\n"
        rows.append(f"{_escaped(event_id)}{before[head]}{instant_text(scheduled)}{after[tail]}")
    return "".join(rows)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\")
