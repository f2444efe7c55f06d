"""Reading and moving many slots on PostgreSQL: prepared statements over `headgate.sql.pipeline`. Converting thousands
of times and ids by SQLAlchemy's types would take longer than moving the slots does."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, cast, runtime_checkable

from psycopg.pq import TransactionStatus
from sqlalchemy.engine import Connection

from headgate.durations import format_instant, from_ms
from headgate.slots.carriers import Carriers, SlotMove
from headgate.slots.model import AssignedSlot, PolicyVersion
from headgate.slots.occupancy import FullRun, Occupancy, WindowCount
from headgate.slots.replan import Candidate, PlannedConfig
from headgate.slots.replan_parts import Reading, after
from headgate.slots.replan_places import rejoined_runs, starts_near
from headgate.slots.replanning import Span, other_names
from headgate.slots.stores.other_windows import other_windows_text, parse_other_windows
from headgate.slots.stores.policies import policy_from_json
from headgate.slots.stores.postgres import PostgresWindowReader
from headgate.slots.stores.postgres_joint import LOCK, WRITE_WINDOWS, WindowReads, changed_windows, run_calls
from headgate.slots.stores.replanning import (
    KEY,
    TOPIC,
    WINDOWS,
    KnownPolicies,
    PlanningState,
    ReplanTransaction,
    movable,
    record_of,
)
from headgate.slots.stores.window_rows import SqlWindowReader
from headgate.slots.windows import align
from headgate.sql.pipeline import (
    BEGIN,
    BY_KEY,
    COMMIT,
    Calls,
    Pipeline,
    Raw,
    Rows,
    Statement,
    execute_pipeline,
    numbers,
    run_async,
    text_of,
    texts,
    whole_of,
)

MOST_KNOWN = 10_000
MILLISECONDS = [f".{ms:03d}Z" for ms in range(1000)]
OTHER_WINDOWS = 64
"""The number of windows that are read per further config, in one statement for all."""

# All rows in one text: fetching one value per column and row would take longer than reading them. No id, name or JSON
# text holds a tab or a line's end. Two scans, because the index still has dead entries of moved slots in between:
# scanning them again and again would take longer than all the rest. `date_part` counts in floating point, which is
# exact to the millisecond and quicker.
READ = Statement(
    "headgate_slot_replan_read",
    """
    SELECT string_agg(concat(event_id, E'\\t', (date_part('epoch', requested_at) * 1000)::bigint, E'\\t',
        (date_part('epoch', scheduled_at) * 1000)::bigint, E'\\t', owner,
        CASE WHEN other_windows IS NOT NULL THEN concat(E'\\t', config_name, E'\\t', config_version, E'\\t',
            (date_part('epoch', window_start) * 1000)::bigint, E'\\t', other_windows) END), E'\\n')
    FROM (
        SELECT * FROM (
            (SELECT * FROM headgate_slot
            WHERE scheduled_at >= 'epoch'::timestamptz + $2::bigint * interval '1 ms'
                AND scheduled_at < 'epoch'::timestamptz + $3::bigint * interval '1 ms'
                AND (scheduled_at > 'epoch'::timestamptz + $2::bigint * interval '1 ms' OR event_id COLLATE "C" > $4)
                AND (config_name = $1 OR strpos(other_windows, $5) > 0)
            ORDER BY scheduled_at, event_id COLLATE "C" LIMIT $6::int)
            UNION ALL
            (SELECT * FROM headgate_slot
            WHERE scheduled_at >= 'epoch'::timestamptz + $7::bigint * interval '1 ms'
                AND scheduled_at < 'epoch'::timestamptz + $8::bigint * interval '1 ms'
                AND (scheduled_at > 'epoch'::timestamptz + $2::bigint * interval '1 ms' OR event_id COLLATE "C" > $4)
                AND (config_name = $1 OR strpos(other_windows, $5) > 0)
            ORDER BY scheduled_at, event_id COLLATE "C" LIMIT $6::int)
        ) AS parts
        ORDER BY scheduled_at, event_id COLLATE "C" LIMIT $6::int
    ) AS page
    """,
)
# Plain statements over the parameters: a CTE's rows would be written twice. If a slot has changed since it was read, it
# divides by zero, which is a `Conflict`: the commit need not wait for the count.
MOVE = Statement(
    "headgate_slot_replan_move",
    """
    WITH moved AS (
        UPDATE headgate_slot AS slot
        SET window_start = 'epoch'::timestamptz + new.start * interval '1 ms',
            scheduled_at = 'epoch'::timestamptz + new.at * interval '1 ms', moved_at = clock_timestamp(),
            config_version = CASE WHEN slot.window_start = 'epoch'::timestamptz + new.start * interval '1 ms'
                THEN slot.config_version ELSE $2::int END
        FROM unnest($3::text[], $4::bigint[], $5::bigint[], $6::bigint[]) AS new(event_id, old, start, at)
        WHERE slot.event_id = new.event_id
            AND slot.scheduled_at = 'epoch'::timestamptz + new.old * interval '1 ms'
            AND slot.config_name = $1 AND slot.other_windows IS NULL
        RETURNING 1
    )
    SELECT 1 / (count(*) = cardinality($3::text[]))::int FROM moved
    """,
)
# JSON is built here from the parts that differ per slot: whole texts would take longer to make and to send. Times are
# given as texts: `to_char` takes longer than inserting the row.
PUBLISH = Statement(
    "headgate_slot_replan_publish",
    """
    INSERT INTO headgate_outbox (topic, message_key, message_value, created_at)
    SELECT $1, left(event_id, $2::int), concat('{"eventId": ', to_json(event_id), $3::text, before,
        '", "scheduledTime": "', at, '", "windowStart": "', start, $4::text), clock_timestamp()
    FROM unnest($5::text[], $6::text[], $7::text[], $8::text[]) AS new(event_id, before, start, at)
    """,
)
POLICIES = Statement(
    "headgate_slot_replan_policies",
    """
    SELECT policy.name, policy.version, policy.policy, ceil(extract(epoch FROM policy.created_at) * 1000)::bigint
    FROM unnest($1::text[], $2::int[]) AS active(name, version)
    JOIN headgate_slot_policy AS policy ON policy.name = active.name AND policy.version = active.version
    """,
)
RUNS_BEFORE = Statement(
    "headgate_slot_replan_runs_before",
    """
    SELECT requested.name, requested.at, (extract(epoch FROM run.window_start) * 1000)::bigint,
        (extract(epoch FROM run.resume_at) * 1000)::bigint
    FROM unnest($1::text[], $2::bigint[]) AS requested(name, at)
    CROSS JOIN LATERAL (
        SELECT window_start, resume_at FROM headgate_slot_run
        WHERE config_name = requested.name AND window_start <= 'epoch'::timestamptz + requested.at * interval '1 ms'
        ORDER BY window_start DESC LIMIT 1
    ) AS run
    """,
)
# The windows that slots may move to, from the first one on; …
TARGETS = Statement(
    "headgate_slot_replan_targets",
    """
    SELECT (extract(epoch FROM window_start) * 1000)::bigint, taken, placed FROM headgate_slot_window
    WHERE config_name = $1 AND window_start >= 'epoch'::timestamptz + $2::bigint * interval '1 ms'
    ORDER BY window_start LIMIT $3::int
    """,
)
# … and those that they leave. There may be many windows in between, which other slots have left.
SOURCES = Statement(
    "headgate_slot_replan_sources",
    """
    SELECT source.start, counted.taken, counted.placed
    FROM unnest($2::bigint[]) AS source(start)
    JOIN headgate_slot_window AS counted ON counted.config_name = $1
        AND counted.window_start = 'epoch'::timestamptz + source.start * interval '1 ms'
    """,
)
MOVE_JOINT = Statement(
    "headgate_slot_replan_move_joint",
    """
    WITH new AS MATERIALIZED (
        SELECT event_id, name, version, 'epoch'::timestamptz + old * interval '1 ms' AS old,
            'epoch'::timestamptz + start * interval '1 ms' AS start, 'epoch'::timestamptz + at * interval '1 ms' AS at,
            old_others, new_others, message
        FROM unnest($1::text[], $2::text[], $3::int[], $4::bigint[], $5::bigint[], $6::bigint[], $7::text[], $8::text[],
            $9::text[]) AS given(event_id, name, version, old, start, at, old_others, new_others, message)
    ), moved AS (
        UPDATE headgate_slot AS slot
        SET window_start = new.start, scheduled_at = new.at, config_version = new.version,
            other_windows = new.new_others, moved_at = clock_timestamp()
        FROM new WHERE slot.event_id = new.event_id AND slot.scheduled_at = new.old AND slot.config_name = new.name
            AND slot.other_windows = new.old_others
        RETURNING slot.event_id, new.message
    ), published AS (
        INSERT INTO headgate_outbox (topic, message_key, message_value, created_at)
        SELECT $10, left(event_id, $11::int), message, clock_timestamp() FROM moved
    )
    SELECT 1 / (count(*) = cardinality($1::text[]))::int FROM moved
    """,
)
LOOK = Statement("headgate_slot_replan_look", LOCK.sql.replace("FOR UPDATE OF config", ""))
LOCK_SLOTS = Statement(
    "headgate_slot_replan_lock_slots",
    "SELECT event_id FROM headgate_slot WHERE event_id = ANY($1::text[]) FOR NO KEY UPDATE SKIP LOCKED",
)
# An enqueue in a long transaction may have locked the slot of its item. Bookings must not wait for that too.
WAIT_BRIEFLY = Statement("headgate_slot_replan_wait_briefly", "SELECT set_config('lock_timeout', '20ms', true)")
# A session that waits for a locked row waits for the id of the transaction that has it.
AWAITED = Statement(
    "headgate_slot_replan_awaited",
    """
    SELECT count(*) FROM pg_locks
    WHERE locktype = 'transactionid' AND transactionid = pg_current_xact_id_if_assigned()::xid AND NOT granted
    """,
)


@runtime_checkable
class PipelinedCarrier(Protocol):
    """A `SlotCarrier` that moves its work by statements of a shared pipeline."""

    def move_calls(self, moves: Sequence[SlotMove]) -> Calls:
        """The statements for `move`."""
        ...


class PostgresReplanTransaction(ReplanTransaction):
    """A `ReplanTransaction` that sends slots to the server while it plans the next ones. It holds the locks for three
    round trips including the commit; for two, if the moves are planned already."""

    def __init__(self, connection: Connection, carriers: Carriers, known: KnownPolicies) -> None:
        super().__init__(connection, carriers, known)
        self._pipeline = Pipeline(cast(Raw, connection.connection.driver_connection))
        self._near: set[FullRun] | None = None
        """The runs near the windows of planned moves, if they were read with the lock."""

    def begin(self) -> None:
        """Begins the transaction with generic plans by key."""
        self._execute([(BEGIN, ()), (BY_KEY, ())])

    def candidates(self, span: Span, reading: Reading, limit: int) -> list[Candidate]:
        candidates: list[Candidate] = []
        while (missing := limit - len(candidates)) > 0:
            slots = self._read(span, reading, missing)
            candidates += movable(self.connection, self.carriers, slots, {}, lock=True)
            if len(slots) < missing:
                break
            reading = after(slots[-1])
        return candidates

    def lock(
        self, span: Span, candidates: Sequence[Candidate], from_ms: int, planned: Sequence[SlotMove] = ()
    ) -> PlanningState:
        return self._configs(LOCK, span, candidates, from_ms, planned)

    def look(self, span: Span, candidates: Sequence[Candidate], from_ms: int) -> PlanningState:
        return self._configs(LOOK, span, candidates, from_ms)

    def _configs(
        self,
        statement: Statement,
        span: Span,
        candidates: Sequence[Candidate],
        from_ms: int,
        planned: Sequence[SlotMove] = (),
    ) -> PlanningState:
        names = sorted({span.name, *other_names(span.name, candidates)})
        guess = self.known.last.get(span.name)
        reads = None if guess is None else _WindowReads(guess, candidates, from_ms)
        starts = _starts_near(guess, planned) if guess is not None and len(names) == 1 else []
        runs = [(RUNS_BEFORE, (texts([span.name] * len(starts)), numbers(starts)))] if starts else []
        rows, *windows = self._execute([(statement, (texts(names),)), *runs, *(reads.calls if reads else ())])
        near = _runs(windows.pop(0))[span.name] if runs else None
        versions = [(text_of(name), whole_of(version)) for name, version, _ in rows]
        now_ms = whole_of(rows[-1][2]) if rows else 0
        locked = self.locked(span, self._policies(versions), now_ms)
        active = self.known.last[span.name] = locked.config.active
        self._near = near if guess is active else None
        if reads is None or guess is not active:
            reads = _WindowReads(active, candidates, from_ms)
            windows = self._execute(reads.calls)
        reads.learn(windows, locked.config.occupancy)
        if locked.others:
            self._read_others(locked, max(from_ms, locked.limits.earliest_ms))
        return locked

    def lock_slots(self, event_ids: Sequence[str]) -> set[str]:
        (rows,) = self._execute([(LOCK_SLOTS, (texts(event_ids),))])
        return {text_of(event_id) for (event_id,) in rows}

    def reader(self, name: str) -> SqlWindowReader:
        return _WindowReader(self.connection, name, self)

    def move(self, active: PolicyVersion, moves: Sequence[SlotMove], now_ms: int) -> None:
        single = [move for move in moves if not move.windows]
        calls: list[tuple[Statement, Sequence[str | None]]] = [(WAIT_BRIEFLY, ())]
        if single:
            calls.append((MOVE, (active.name, str(active.version), *_times(single))))
        owners = {move.slot.owner for move in single}
        for owner in owners:
            own = single if len(owners) == 1 else [move for move in single if move.slot.owner == owner]
            calls.append((PUBLISH, _publish_values(active.name, owner, own)))
        joint = [move for move in moves if move.windows]
        if joint:
            calls.append((MOVE_JOINT, _joint_values(joint)))
        self._send(calls)

    def collect(self) -> list[Rows]:
        """The results of the statements in flight. Then the connection is free.

        Raises:
            Conflict: a slot has changed since it was read.
        """
        results: list[Rows] = run_async(self.connection, lambda _: self._pipeline.results())
        return results

    def finish(self, changed: Sequence[PlannedConfig], moves: Sequence[SlotMove], now_ms: int) -> bool:
        names = {config.active.name for config in changed}
        near = self._read_runs(changed) if self._near is None else dict.fromkeys(names, self._near)
        calls = self._carry(moves, now_ms)
        if changed:
            windows = changed_windows({config.active.name: config.occupancy for config in changed})
            runs = {config.active.name: rejoined_runs(config, near[config.active.name]) for config in changed}
            calls += [(WRITE_WINDOWS, windows), *run_calls(runs)]
        self._send([*calls, (AWAITED, ()), (COMMIT, ())])
        *_, ((count,),), _ = self.collect()
        return whole_of(count) > 0

    def _read_runs(self, changed: Sequence[PlannedConfig]) -> dict[str, set[FullRun]]:
        """The stored runs near the windows that a plan has changed."""
        starts = [(config.active.name, start) for config in changed for start in starts_near(config)]
        if starts:
            self._send([(RUNS_BEFORE, (texts(name for name, _ in starts), numbers(start for _, start in starts)))])
        results = self.collect()
        return _runs(results[-1] if starts else [])

    def _carry(self, moves: Sequence[SlotMove], now_ms: int) -> list[tuple[Statement, Sequence[str | None]]]:
        """Moves the work of the slots, or returns the statements for that."""
        calls: list[tuple[Statement, Sequence[str | None]]] = []
        for owner, carrier in self.carriers.items():
            own = [move for move in moves if move.slot.owner == owner]
            if own and isinstance(carrier, PipelinedCarrier):
                calls += carrier.move_calls(own)
            elif own:
                self.collect()
                carrier.move(self.connection, own, from_ms(now_ms))
        return calls

    def _send(self, calls: Calls) -> None:
        run_async(self.connection, lambda _: self._pipeline.send(calls))

    def close(self) -> None:
        if self._pipeline.is_open:
            run_async(self.connection, lambda _: self._pipeline.close())
            self.connection.invalidate()

    def _execute(self, calls: Sequence[tuple[Statement, Sequence[str | None]]]) -> list[Rows]:
        results: list[Rows] = run_async(self.connection, lambda raw: execute_pipeline(raw, calls))
        return results

    def _read(self, span: Span, reading: Reading, limit: int) -> list[AssignedSlot]:
        """The next booked slots of a config, in the order of their times. Begins the transaction, if none has begun."""
        event_id = reading.event_id.removesuffix("\x00")
        name = f"[{json.dumps(span.name, ensure_ascii=False)},"
        until, resume = min(reading.until_ms, span.to_ms), max(reading.until_ms, reading.resume_ms)
        rest = map(str, (limit, resume, span.to_ms))
        call = (READ, (span.name, str(reading.at_ms), str(until), event_id, name, *rest))

        def run(raw: Raw) -> Awaitable[list[Rows]]:
            begun = raw.pgconn.transaction_status != TransactionStatus.IDLE
            return execute_pipeline(raw, [call] if begun else [(BEGIN, ()), (BY_KEY, ()), call])

        *_, ((page,),) = run_async(self.connection, run)
        return [] if page is None else [_slot(span.name, line) for line in page.decode().split("\n")]

    def _policies(self, versions: Sequence[tuple[str, int]]) -> dict[str, PolicyVersion]:
        known = self.known.by_version
        if len(known) > MOST_KNOWN:
            known.clear()
        unknown = [version for version in versions if version not in known]
        if unknown:
            values = texts(name for name, _ in unknown), numbers(version for _, version in unknown)
            (rows,) = self._execute([(POLICIES, values)])
            for name, version, policy, created in rows:
                active = PolicyVersion(
                    text_of(name), whole_of(version), policy_from_json(text_of(policy)), from_ms(whole_of(created))
                )
                known[active.name, active.version] = active
        return {name: known[name, version] for name, version in versions}

    def _read_others(self, locked: PlanningState, at_ms: int) -> None:
        """Reads the first windows of the further configs at once, from a time on."""
        reads = WindowReads()
        for config in locked.others.values():
            reads.add_windows(config.active, at_ms, OTHER_WINDOWS)
        (windows,) = self._execute(reads.calls())
        reads.learn(windows, {name: config.occupancy for name, config in locked.others.items()})


@dataclass(frozen=True)
class _WindowReader(PostgresWindowReader):
    """A reader that first waits for the statements in flight."""

    transaction: PostgresReplanTransaction

    def windows_from(self, start_ms: int, limit: int) -> list[WindowCount]:
        self.transaction.collect()
        return super().windows_from(start_ms, limit)

    def run_before(self, start_ms: int) -> FullRun | None:
        self.transaction.collect()
        return super().run_before(start_ms)


class _WindowReads:
    """The windows of the re-planned config that a plan will read."""

    def __init__(self, active: PolicyVersion, candidates: Sequence[Candidate], from_ms: int) -> None:
        size = active.policy.size_ms
        self._from_ms = align(from_ms, size)
        self._rows = min(WINDOWS, len(candidates) // active.policy.lowest_limit + 2)
        self._sources = sorted({align(candidate.slot.scheduled_ms, size) for candidate in candidates})
        self.calls = [
            (TARGETS, (active.name, str(self._from_ms), str(self._rows))),
            (SOURCES, (active.name, numbers(self._sources))),
        ]

    def learn(self, results: Sequence[Rows], occupancy: Occupancy) -> None:
        targets, sources = ([WindowCount(*map(whole_of, row)) for row in rows] for rows in results)
        occupancy.learn_windows(self._from_ms, targets, self._rows)
        counts = {count.start_ms: count for count in sources}
        for start in self._sources:
            occupancy.learn_window(start, counts.get(start))


def _starts_near(active: PolicyVersion, planned: Sequence[SlotMove]) -> list[int]:
    """As `starts_near`, of every window that these moves may change."""
    policy = active.policy
    left = (align(move.slot.scheduled_ms, policy.size_ms) for move in planned)
    starts = {*left, *(move.window_start_ms for move in planned)}
    behind = (policy.next_open(start + policy.size_ms) for start in starts)
    return sorted({*starts, *behind, *(start - 1 for start in starts)})


def _runs(rows: Rows) -> dict[str, set[FullRun]]:
    """Rows of `RUNS_BEFORE`: by config, those that reach the requested time."""
    near: dict[str, set[FullRun]] = defaultdict(set)
    for name, *times in rows:
        start, run_start, resume = map(whole_of, times)
        if resume >= start:
            near[text_of(name)].add(FullRun(run_start, resume))
    return near


def _times(moves: Sequence[SlotMove]) -> Sequence[str]:
    return (
        texts(move.slot.event_id for move in moves),
        numbers(move.slot.scheduled_ms for move in moves),
        numbers(move.window_start_ms for move in moves),
        numbers(move.scheduled_ms for move in moves),
    )


def _publish_values(name: str, owner: str | None, moves: Sequence[SlotMove]) -> Sequence[str]:
    """The values of `PUBLISH`, in the form of `record_of`."""
    return (
        TOPIC,
        str(KEY),
        f', "configName": {json.dumps(name)}, "before": "',
        f'", "owner": {json.dumps(owner)}}}',
        texts(move.slot.event_id for move in moves),
        _instants(move.slot.scheduled_ms for move in moves),
        _instants(move.window_start_ms for move in moves),
        _instants(move.scheduled_ms for move in moves),
    )


def _instants(values: Iterable[int]) -> str:
    """A PostgreSQL array of instants in the wire format. Most are in the same seconds."""
    return "{" + ",".join([_second(ms // 1000) + MILLISECONDS[ms % 1000] for ms in values]) + "}"


@lru_cache(maxsize=10_000)
def _second(second: int) -> str:
    return format_instant(from_ms(second * 1000)).partition(".")[0]


def _joint_values(moves: Sequence[SlotMove]) -> Sequence[str]:
    return (
        texts(move.slot.event_id for move in moves),
        texts(move.slot.config_name for move in moves),
        numbers(move.windows[0].config_version for move in moves),
        numbers(move.slot.scheduled_ms for move in moves),
        numbers(move.window_start_ms for move in moves),
        numbers(move.scheduled_ms for move in moves),
        texts(other_windows_text(move.slot.other_windows) or "" for move in moves),
        texts(other_windows_text(move.windows[1:]) or "" for move in moves),
        texts(map(record_of, moves)),
        TOPIC,
        str(KEY),
    )


def _slot(name: str, line: str) -> AssignedSlot:
    """A line of `READ`. Of a slot of one config, the version and the window are not read: nothing needs them."""
    event_id, requested, scheduled, owner, *rest = line.split("\t")
    if not rest:
        return AssignedSlot(event_id, name, 0, int(requested), 0, int(scheduled), True, owner or None)
    first, version, window, others = rest
    times = int(requested), int(window), int(scheduled)
    return AssignedSlot(event_id, first, int(version), *times, True, owner or None, parse_other_windows(others))
