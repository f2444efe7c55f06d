"""Reading and moving many slots on PostgreSQL: prepared statements over `paceline.sql.pipeline`. Converting thousands
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

from paceline.durations import format_instant, from_ms
from paceline.slots.carriers import Carriers, SlotMove
from paceline.slots.model import AssignedSlot, PolicyVersion
from paceline.slots.occupancy import FullRun, Occupancy, WindowCount
from paceline.slots.replan import Candidate, PlannedConfig
from paceline.slots.replan_parts import Reading, after
from paceline.slots.replan_places import rejoined_runs, starts_near
from paceline.slots.replanning import Span, other_names
from paceline.slots.stores.move_records import record_of
from paceline.slots.stores.other_windows import other_windows_text, parse_other_windows
from paceline.slots.stores.policies import policy_from_json
from paceline.slots.stores.postgres import PostgresWindowReader
from paceline.slots.stores.postgres_replan_sql import (
    AWAITED,
    LOCK_SLOTS,
    LOOK,
    MOVE,
    MOVE_JOINT,
    POLICIES,
    PUBLISH,
    READ,
    RUNS_BEFORE,
    SOURCES,
    TARGETS,
    WAIT_BRIEFLY,
)
from paceline.slots.stores.postgres_windows import LOCK, WRITE_WINDOWS, WindowReads, changed_windows, run_calls
from paceline.slots.stores.replanning import (
    KEY,
    TOPIC,
    WINDOWS,
    KnownPolicies,
    PlanningState,
    ReplanTransaction,
    movable,
    standings_of,
)
from paceline.slots.stores.window_rows import SqlWindowReader
from paceline.slots.windows import align
from paceline.sql.pipeline import (
    BEGIN,
    BY_KEY,
    COMMIT,
    Call,
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


@runtime_checkable
class PipelinedCarrier(Protocol):
    """A `SlotCarrier` that moves its work by statements of a shared pipeline."""

    def idle_call(self) -> Call:
        """A statement that returns whether there is no work at all that a slot may have."""
        ...

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
        self._ahead: _ReadAhead | None = None
        self._busy = carriers
        """The carriers that may have work. One that had none when slots were read is asked again before it moves."""

    def begin(self) -> None:
        """Begins the transaction with generic plans by key."""
        self._execute([(BEGIN, ()), (BY_KEY, ())])

    def candidates(self, span: Span, reading: Reading, limit: int) -> list[Candidate]:
        candidates: list[Candidate] = []
        while (missing := limit - len(candidates)) > 0:
            slots = self._read(span, reading, missing)
            busy = {owner: self._busy[owner] for owner in {slot.owner for slot in slots} & self._busy.keys()}
            if busy:
                self.collect()
            standings = standings_of(self.connection, busy, slots, lock=True)
            candidates += movable(self.carriers, slots, standings, {})
            if len(slots) < missing:
                break
            reading = after(slots[-1])
        return candidates

    def read_ahead(self, span: Span, reading: Reading, limit: int, config: PlannedConfig) -> None:
        self._ahead = _ReadAhead(reading, limit, config.occupancy)
        self._send([_read_call(span, reading, limit, config.policy.size_ms)])
        run_async(self.connection, lambda _: self._pipeline.end_section())

    def lock(
        self,
        span: Span,
        candidates: Sequence[Candidate],
        from_ms: int,
        planned: Sequence[SlotMove] = (),
        most: int = 0,
    ) -> PlanningState:
        return self._configs(LOCK, span, candidates, from_ms, planned, most)

    def look(self, span: Span, candidates: Sequence[Candidate], from_ms: int) -> PlanningState:
        return self._configs(LOOK, span, candidates, from_ms)

    def _configs(
        self,
        statement: Statement,
        span: Span,
        candidates: Sequence[Candidate],
        from_ms: int,
        planned: Sequence[SlotMove] = (),
        most: int = 0,
    ) -> PlanningState:
        names = sorted({span.name, *other_names(span.name, candidates)})
        guess = self.known.last.get(span.name)
        reads = None if guess is None else _WindowReads(guess, candidates, from_ms, most)
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
            reads = _WindowReads(active, candidates, from_ms, most)
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
        calls: list[Call] = [(WAIT_BRIEFLY, ())]
        if single:
            event_ids = _event_ids(single)
            calls.append((MOVE, (active.name, str(active.version), event_ids, *_times(single))))
            owners = {move.slot.owner for move in single}
            if len(owners) == 1:
                calls.append((PUBLISH, _publish_values(active.name, owners.pop(), single, event_ids)))
            for owner in owners:
                own = [move for move in single if move.slot.owner == owner]
                calls.append((PUBLISH, _publish_values(active.name, owner, own, _event_ids(own))))
        joint = [move for move in moves if move.windows]
        if joint:
            calls.append((MOVE_JOINT, _joint_values(joint)))
        self._send(calls)

    def collect(self) -> list[Rows]:
        """The results of the statements in flight. Then the connection is free.

        Raises:
            Conflict: a slot has changed since it was read.
        """
        self._receive_ahead()
        results: list[Rows] = run_async(self.connection, lambda _: self._pipeline.results())
        return results

    def finish(self, changed: Sequence[PlannedConfig], moves: Sequence[SlotMove], now_ms: int) -> bool:
        names = {config.active.name for config in changed}
        self._busy = self.carriers
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
        """The stored runs near the windows that a plan has changed; and which carriers have work, after the moves."""
        starts = [(config.active.name, start) for config in changed for start in starts_near(config)]
        values = texts(name for name, _ in starts), numbers(start for _, start in starts)
        self._send([*self._idle_calls(), (RUNS_BEFORE, values)])
        *results, runs = self.collect()
        self._learn_idle(results)
        return _runs(runs)

    def _idle_calls(self) -> list[Call]:
        return [carrier.idle_call() for carrier in self.carriers.values() if isinstance(carrier, PipelinedCarrier)]

    def _learn_idle(self, results: Sequence[Rows]) -> None:
        """Takes the results of `_idle_calls`, which came last."""
        owners = [owner for owner, carrier in self.carriers.items() if isinstance(carrier, PipelinedCarrier)]
        values = [rows[0][0] for rows in results[len(results) - len(owners) :]]
        idle = {owner for owner, value in zip(owners, values, strict=True) if value == b"t"}
        self._busy = {owner: carrier for owner, carrier in self.carriers.items() if owner not in idle}

    def _carry(self, moves: Sequence[SlotMove], now_ms: int) -> list[Call]:
        """Moves the work of the slots, or returns the statements for that."""
        calls: list[Call] = []
        for owner, carrier in self._busy.items():
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

    def _execute(self, calls: Calls) -> list[Rows]:
        self.collect()
        results: list[Rows] = run_async(self.connection, lambda raw: execute_pipeline(raw, calls))
        return results

    def _read(self, span: Span, reading: Reading, limit: int) -> list[AssignedSlot]:
        """The next booked slots of a config, in the order of their times. Begins the transaction, if none has begun."""
        ahead = self._ahead
        if ahead is not None and (ahead.reading, ahead.limit) == (reading, limit):
            self._receive_ahead()
            self._ahead, page = None, ahead.page
        else:
            self.collect()
            idle, call = self._idle_calls(), _read_call(span, reading, limit)

            def run(raw: Raw) -> Awaitable[list[Rows]]:
                begun = raw.pgconn.transaction_status != TransactionStatus.IDLE
                return execute_pipeline(raw, [*([] if begun else [(BEGIN, ()), (BY_KEY, ())]), *idle, call])

            *results, ((page, _),) = run_async(self.connection, run)
            self._learn_idle(results)
        return [_slot(span.name, line) for line in page.decode().split("\n")] if page else []

    def _receive_ahead(self) -> None:
        """Waits for the slots that are read ahead, and for the statements before, if they have not come yet."""
        ahead = self._ahead
        if ahead is None or ahead.is_received:
            return
        ahead.is_received = True
        *_, ((ahead.page, windows),) = run_async(self.connection, lambda _: self._pipeline.section())
        for line in windows.decode().split("\n") if windows else ():
            count = WindowCount(*map(int, line.split("\t")))
            ahead.occupancy.learn_window(count.start_ms, count)

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


@dataclass
class _ReadAhead:
    """Slots that are read while those before them are moved, and the counters of their windows."""

    reading: Reading
    limit: int
    occupancy: Occupancy
    page: bytes | None = None
    is_received: bool = False


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
    """The windows of the re-planned config that a plan will read, for these slots and, if there are to be more, so
    many."""

    def __init__(self, active: PolicyVersion, candidates: Sequence[Candidate], from_ms: int, most: int) -> None:
        size = active.policy.size_ms
        self._from_ms = align(from_ms, size)
        self._rows = min(WINDOWS, max(len(candidates), most) // active.policy.lowest_limit + 2)
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


def _read_call(span: Span, reading: Reading, limit: int, size_ms: int | None = None) -> Call:
    """The statement for the next slots; with the windows' size, also for the windows that they lie in."""
    event_id = reading.event_id.removesuffix("\x00")
    name = f"[{json.dumps(span.name, ensure_ascii=False)},"
    until, resume = min(reading.until_ms, span.to_ms), max(reading.until_ms, reading.resume_ms)
    rest = *map(str, (limit, resume, span.to_ms)), None if size_ms is None else str(size_ms)
    return READ, (span.name, str(reading.at_ms), str(until), event_id, name, *rest)


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


def _event_ids(moves: Sequence[SlotMove]) -> str:
    return texts([move.slot.event_id for move in moves])


def _times(moves: Sequence[SlotMove]) -> Sequence[str]:
    return (
        numbers(move.slot.scheduled_ms for move in moves),
        numbers(move.window_start_ms for move in moves),
        numbers(move.scheduled_ms for move in moves),
    )


def _publish_values(name: str, owner: str | None, moves: Sequence[SlotMove], event_ids: str) -> Sequence[str]:
    """The values of `PUBLISH`, in the form of `record_of`."""
    return (
        TOPIC,
        str(KEY),
        f', "configName": {json.dumps(name)}, "before": "',
        f'", "owner": {json.dumps(owner)}}}',
        event_ids,
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
        _event_ids(moves),
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
