"""Window counters and full runs in a database, which `Occupancy` reads and writes back under a config's lock."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from paceline.durations import EPOCH, from_ms, to_ms
from paceline.durations import from_ms as instant_of
from paceline.slots.model import MOST_PER_WINDOW, SlotRequest, WindowPolicy
from paceline.slots.occupancy import FullRun, Occupancy, RunChanges, WindowCount, full_runs
from paceline.slots.stores import forgotten
from paceline.slots.stores.other_windows import charged_to
from paceline.slots.stores.tables import slot, slot_run, slot_window
from paceline.slots.windows import align
from paceline.sql.in_lists import MAX_IN_LIST
from paceline.sql.schema import insert_rows, instant_form, instant_ms, instant_text

MAX_WINDOW_QUERIES = 10_000
"""The maximum of first windows read in advance; a batch with more distinct ones reads the rest when it needs them."""
FEW_WINDOWS = 8
"""Up to this number of distinct times, SQLite reads windows when it needs them: that takes fewer statements."""
FEW_RUNS = 4
"""Up to this number of times, SQLite reads the run before each by its own statement."""
# One statement for PostgreSQL: row by row, a hundred thousand of them would hold the config's lock for half a minute.
_INSERT_RUNS = sa.text(
    """
    INSERT INTO paceline_slot_run (config_name, window_start, resume_at)
    SELECT CAST(:name AS text), 'epoch'::timestamptz + start * interval '1 ms',
        'epoch'::timestamptz + resume * interval '1 ms'
    FROM unnest(CAST(:starts AS bigint[]), CAST(:resumes AS bigint[])) AS new(start, resume)
    """
)

_UPSERT_WINDOWS = sa.text(
    """
    INSERT INTO paceline_slot_window (config_name, window_start, taken, placed)
    SELECT CAST(:name AS text), 'epoch'::timestamptz + start * interval '1 ms', taken, placed
    FROM unnest(CAST(:starts AS bigint[]), CAST(:taken AS int[]), CAST(:placed AS int[])) AS new(start, taken, placed)
    ON CONFLICT (config_name, window_start) DO UPDATE SET taken = EXCLUDED.taken, placed = EXCLUDED.placed
    """
)

_WINDOWS = sa.select(slot_window.c.window_start, slot_window.c.taken, slot_window.c.placed)
_WINDOWS_FROM = (
    _WINDOWS.where(
        slot_window.c.config_name == sa.bindparam("b_name"), slot_window.c.window_start >= sa.bindparam("b_start")
    )
    .order_by(slot_window.c.window_start)
    .limit(sa.bindparam("b_limit"))
)
_RUN_BEFORE = (
    sa.select(slot_run.c.window_start, slot_run.c.resume_at)
    .where(slot_run.c.config_name == sa.bindparam("b_name"), slot_run.c.window_start <= sa.bindparam("b_start"))
    .order_by(slot_run.c.window_start.desc())
    .limit(1)
)
_REMOVE_RUN = slot_run.delete().where(
    slot_run.c.config_name == sa.bindparam("b_name"), slot_run.c.window_start == sa.bindparam("b_start")
)


def _runs_before() -> sa.Select[Any]:
    """For SQLite: the run before each of many times, given as a JSON list."""
    requested = sa.func.json_each(sa.bindparam("b_starts")).table_valued("key", "value", name="requested")
    before = slot_run.alias("before")
    nearest = (
        sa.select(before.c.window_start)
        .where(before.c.config_name == sa.bindparam("b_name"), before.c.window_start <= requested.c.value)
        .order_by(before.c.window_start.desc())
        .limit(1)
        .scalar_subquery()
    )
    # An outer join, because SQLite never reorders it: an inner one would try every stored run for each time.
    return sa.select(requested.c.key, slot_run.c.window_start, slot_run.c.resume_at).join_from(
        requested,
        slot_run,
        (slot_run.c.config_name == sa.bindparam("b_name")) & (slot_run.c.window_start == nearest),
        isouter=True,
    )


_RUNS_BEFORE = _runs_before()
_WINDOW_COLUMNS = ("config_name", "window_start", "taken", "placed")
_UPDATE_WINDOW = (
    slot_window.update()
    .where(slot_window.c.config_name == sa.bindparam("b_name"), slot_window.c.window_start == sa.bindparam("b_start"))
    .values(taken=sa.bindparam("b_taken"), placed=sa.bindparam("b_placed"))
)


@dataclass(slots=True)
class SqlWindowReader:
    """One config's counters and runs, read through a connection."""

    connection: Connection
    name: str

    def windows_from(self, start_ms: int, limit: int) -> list[WindowCount]:
        rows = self.connection.execute(
            _WINDOWS_FROM, {"b_name": self.name, "b_start": from_ms(start_ms), "b_limit": limit}
        )
        return [WindowCount(to_ms(start), taken, placed) for start, taken, placed in rows]

    def run_before(self, start_ms: int) -> FullRun | None:
        row = self.connection.execute(_RUN_BEFORE, {"b_name": self.name, "b_start": from_ms(start_ms)}).first()
        return None if row is None else FullRun(to_ms(row.window_start), to_ms(row.resume_at))

    def runs_before(self, starts_ms: Sequence[int]) -> list[FullRun | None]:
        if self.connection.dialect.name != "sqlite" or len(starts_ms) <= FEW_RUNS:
            return [self.run_before(start) for start in starts_ms]
        texts = json.dumps([instant_text(start) for start in starts_ms])
        rows = self.connection.execute(_RUNS_BEFORE, {"b_name": self.name, "b_starts": texts})
        runs = {index: FullRun(to_ms(start), to_ms(resume)) for index, start, resume in rows if start is not None}
        return [runs.get(index) for index in range(len(starts_ms))]

    def recounted(self, size_ms: int, from_ms: int, until_ms: int | None = None) -> list[WindowCount]:
        connection = self.connection
        ahead = charged_to(connection, self.name) & (slot.c.scheduled_at >= instant_of(from_ms))
        if until_ms is not None:
            ahead &= slot.c.scheduled_at < instant_of(until_ms)
        if connection.dialect.name == "postgresql":
            size = timedelta(milliseconds=size_ms)
            window = sa.func.date_bin(size, slot.c.scheduled_at, EPOCH, type_=slot.c.scheduled_at.type)
            rows = connection.execute(sa.select(window, sa.func.count()).where(ahead).group_by(window).order_by(window))
            return [WindowCount(to_ms(at), taken, taken) for at, taken in rows]
        times = connection.execute(sa.select(stored_time(connection, slot.c.scheduled_at)).where(ahead)).scalars()
        counts = Counter(align(ms, size_ms) for ms in map(stored_ms(connection), times.all()))
        return [WindowCount(at, taken, taken) for at, taken in sorted(counts.items())]

    def missing_until(self) -> int:
        return forgotten.load(self.connection, self.name).slots_ms

    def times(self, from_ms: int, until_ms: int, limit: int) -> list[int]:
        ahead = (slot.c.scheduled_at >= instant_of(from_ms)) & (slot.c.scheduled_at < instant_of(until_ms))
        stored = stored_time(self.connection, slot.c.scheduled_at)
        query = sa.select(stored).where(ahead, charged_to(self.connection, self.name))
        times = self.connection.execute(query.order_by(slot.c.scheduled_at).limit(limit)).scalars()
        return list(map(stored_ms(self.connection), times))

    def windows_at(self, starts_ms: Sequence[int]) -> dict[int, WindowCount]:
        """The counted windows among these, by start."""
        counts: dict[int, WindowCount] = {}
        for first in range(0, len(starts_ms), MAX_IN_LIST):
            rows = self.connection.execute(
                _WINDOWS.where(
                    slot_window.c.config_name == self.name,
                    slot_window.c.window_start.in_(map(from_ms, starts_ms[first : first + MAX_IN_LIST])),
                )
            )
            counts.update((to_ms(start), WindowCount(to_ms(start), taken, placed)) for start, taken, placed in rows)
        return counts


class WindowQuery(NamedTuple):
    """A first window to read in advance, the open window after it, and how many windows to read from there on."""

    first_ms: int
    next_ms: int
    rows: int


def window_queries(policy: WindowPolicy, requests: Sequence[SlotRequest], now_ms: int) -> list[WindowQuery]:
    """The first windows that these requests will read, and the number of windows each may need."""
    size = policy.size_ms
    firsts = Counter(align(max(requested, now_ms), size) for _, requested in requests)
    return [
        WindowQuery(first, policy.next_open(first + size), count // policy.lowest_limit + 2)
        for first, count in sorted(firsts.items())[:MAX_WINDOW_QUERIES]
    ]


def read_ahead(reader: SqlWindowReader, occupancy: Occupancy, queries: Sequence[WindowQuery]) -> None:
    """Reads the windows of sparse requests in advance, in a few statements instead of a few per window."""
    counts = reader.windows_at([query.first_ms for query in queries])
    runs = reader.runs_before([query.next_ms for query in queries])
    resumes = [
        query.next_ms if run is None else max(query.next_ms, run.resume_ms)
        for query, run in zip(queries, runs, strict=True)
    ]
    counts.update(reader.windows_at(resumes))
    for query, run, resume_ms in zip(queries, runs, resumes, strict=True):
        occupancy.learn_window(query.first_ms, counts.get(query.first_ms))
        occupancy.learn_run(query.next_ms, run)
        occupancy.learn_window(resume_ms, counts.get(resume_ms))


def write_occupancy(connection: Connection, name: str, occupancy: Occupancy) -> None:
    """Writes counters and runs back."""
    write_counts(connection, name, occupancy)
    write_runs(connection, name, occupancy.changed_runs())


def write_counts(connection: Connection, name: str, occupancy: Occupancy) -> None:
    """Writes counters back. Under the lock, the existing rows are known, so no upsert is needed."""
    if connection.dialect.name == "postgresql":
        columns = zip(*occupancy.changed_windows(), strict=True)
        rows = dict(zip(("starts", "taken", "placed"), map(list, columns), strict=True))
        connection.execute(_UPSERT_WINDOWS, {"name": name, **rows})
        return
    instant = instant_form(connection)
    new: list[tuple[Any, ...]] = []
    old: list[dict[str, Any]] = []
    for start, taken, placed in occupancy.changed_windows():
        if start in occupancy.stored:
            old.append({"b_name": name, "b_start": from_ms(start), "b_taken": taken, "b_placed": placed})
        else:
            new.append((name, instant(start), taken, placed))
    insert_rows(connection, slot_window, _WINDOW_COLUMNS, new)
    if old:
        connection.execute(_UPDATE_WINDOW, old)


def release_windows(connection: Connection, name: str, counts: Mapping[int, int]) -> None:
    """Frees the given number of places in each of these windows."""
    if counts:
        connection.execute(
            slot_window.update()
            .where(
                slot_window.c.config_name == name,
                slot_window.c.window_start == sa.bindparam("at"),
                slot_window.c.taken >= sa.bindparam("free"),
            )
            .values(taken=slot_window.c.taken - sa.bindparam("free")),
            [{"at": from_ms(start), "free": count} for start, count in sorted(counts.items())],
        )


def recount(connection: Connection, name: str, policy: WindowPolicy, now_ms: int) -> None:
    """Counts the booked slots again, in windows of the new size. If slots of the window of now were pruned, it counts
    as full."""
    start_ms = align(now_ms, policy.size_ms)
    connection.execute(slot_window.delete().where(slot_window.c.config_name == name))
    _recount_from(connection, name, policy, start_ms)
    # Read after the slots: a prune that deleted some of those has then written this, too.
    if forgotten.load(connection, name).slots_ms > start_ms:
        _fill(connection, name, start_ms, policy.limit_at(start_ms))


def _fill(connection: Connection, name: str, start_ms: int, limit: int) -> None:
    """Adds the limit to a window's counter: it stays full if the slots that are known are cancelled."""
    count = SqlWindowReader(connection, name).windows_at([start_ms]).get(start_ms, WindowCount(start_ms, 0, 0))
    window = (slot_window.c.config_name == name) & (slot_window.c.window_start == from_ms(start_ms))
    connection.execute(slot_window.delete().where(window))
    taken = min(count.taken + limit, MOST_PER_WINDOW)
    row = (name, instant_form(connection)(start_ms), taken, count.placed)
    insert_rows(connection, slot_window, _WINDOW_COLUMNS, [row])


def _recount_from(connection: Connection, name: str, policy: WindowPolicy, start_ms: int) -> None:
    size = policy.size_ms
    ahead = charged_to(connection, name) & (slot.c.scheduled_at >= from_ms(start_ms))
    if connection.dialect.name == "postgresql":
        # Counted in the database: sending a hundred thousand windows back would take half a minute.
        start = sa.func.date_bin(policy.window, slot.c.scheduled_at, EPOCH, type_=slot.c.scheduled_at.type)
        counted = sa.select(sa.literal(name), start, sa.func.count(), sa.func.count()).where(ahead).group_by(start)
        connection.execute(slot_window.insert().from_select(list(slot_window.c.keys()), counted))
        return
    times = connection.execute(
        sa.select(stored_time(connection, slot.c.scheduled_at)).where(ahead).order_by(slot.c.scheduled_at)
    ).scalars()
    counts = Counter(align(ms, size) for ms in map(stored_ms(connection), times.all()))
    instant = instant_form(connection)
    rows = [(name, instant(start), taken, taken) for start, taken in counts.items()]
    insert_rows(connection, slot_window, _WINDOW_COLUMNS, rows)


def rebuild_runs(connection: Connection, name: str, policy: WindowPolicy, now_ms: int) -> None:
    """Writes the full runs again, from the counters."""
    connection.execute(slot_run.delete().where(slot_run.c.config_name == name))
    full = connection.execute(
        sa.select(stored_time(connection, slot_window.c.window_start), slot_window.c.taken, slot_window.c.placed)
        .where(
            slot_window.c.config_name == name,
            slot_window.c.window_start >= from_ms(align(now_ms, policy.size_ms)),
            slot_window.c.taken >= policy.lowest_limit,
        )
        .order_by(slot_window.c.window_start)
    )
    ms = stored_ms(connection)
    counts = (WindowCount(ms(start), taken, placed) for start, taken, placed in full.all())
    write_runs(connection, name, RunChanges([], full_runs(counts, policy)))


def write_runs(connection: Connection, name: str, changes: RunChanges) -> None:
    """Removes and writes runs."""
    if changes.removed:
        removed = [{"b_name": name, "b_start": from_ms(start)} for start in changes.removed]
        connection.execute(_REMOVE_RUN, removed)
    if changes.written and connection.dialect.name == "postgresql":
        starts, resumes = zip(*changes.written, strict=True)
        connection.execute(_INSERT_RUNS, {"name": name, "starts": list(starts), "resumes": list(resumes)})
    else:
        instant = instant_form(connection)
        rows = [(name, instant(start), instant(resume)) for start, resume in changes.written]
        insert_rows(connection, slot_run, ("config_name", "window_start", "resume_at"), rows)


def stored_time(connection: Connection, column: sa.Column[datetime]) -> sa.ColumnElement[Any]:
    """A column of times as stored: on SQLite the text, which `stored_ms` reads."""
    return sa.type_coerce(column, sa.String()) if connection.dialect.name == "sqlite" else column


def stored_ms(connection: Connection) -> Callable[[Any], int]:
    """Converts a value of `stored_time` to epoch milliseconds. A resize reads every slot: SQLAlchemy's own conversion
    would cost more than all the rest."""
    return instant_ms if connection.dialect.name == "sqlite" else to_ms
