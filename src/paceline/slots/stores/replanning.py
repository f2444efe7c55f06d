"""Moving slots in a database: each chunk is one transaction that moves slots, counters, runs and the slots' work.

Locks are taken in one order, as everywhere: the slots' work, then the rows of the config and of the slots' further
configs, by name. A carrier never waits for its locks. Slots are read before the configs are locked, and each is moved
only if it has not changed since. `ReplanTransaction` has the portable statements, `postgres_replan.py` the two for
PostgreSQL that read and move many slots at once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Concatenate, NamedTuple, ParamSpec

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from paceline.durations import format_instant, from_ms, to_ms
from paceline.errors import Conflict, NotFound
from paceline.messaging import Record
from paceline.slots.carriers import Carriers, SlotMove, Standing
from paceline.slots.listing import Cursor, SlotFilter, SlotStatus
from paceline.slots.model import AssignedSlot, PolicyVersion, SlotWindow
from paceline.slots.occupancy import CountedWindows, FullRun, Occupancy, WindowCount
from paceline.slots.replan.assignment import Candidate, Limits, PlannedConfig
from paceline.slots.replan.parts import Puller, Reading, after
from paceline.slots.replan.places import admitted, rejoined_runs, starts_near
from paceline.slots.replan.run import (
    Chunk,
    Sizes,
    Span,
    few_others,
    other_names,
    until_stranger,
    without_strangers,
)
from paceline.slots.stores import policies, slot_records, templates
from paceline.slots.stores.lock_waits import locking
from paceline.slots.stores.other_windows import other_windows_text
from paceline.slots.stores.tables import slot
from paceline.slots.stores.window_rows import SqlWindowReader, write_counts, write_runs
from paceline.slots.windows import align
from paceline.sql.engine import Database
from paceline.sql.in_lists import MAX_IN_LIST
from paceline.sql.outbox import append
from paceline.sql.schema import now

P = ParamSpec("P")

TOPIC = "slot-moved"
KEY = 128
WINDOWS = 256
"""The number of windows per read."""
_MOVE = (
    slot.update()
    .where(
        slot.c.event_id == sa.bindparam("b_event"),
        slot.c.scheduled_at == sa.bindparam("b_old"),
        slot.c.config_name == sa.bindparam("b_name"),
    )
    .values(
        window_start=sa.bindparam("b_window"),
        scheduled_at=sa.bindparam("b_at"),
        config_version=sa.bindparam("b_version"),
        moved_at=sa.bindparam("b_now"),
    )
)
# A slot that keeps its window keeps the version that admitted it.
_VERSION = sa.case(
    (slot.c.window_start == sa.bindparam("b_window"), slot.c.config_version), else_=sa.bindparam("b_version")
)
_MOVE_SINGLE = _MOVE.where(slot.c.other_windows.is_(None)).values(config_version=_VERSION)
_MOVE_JOINT = _MOVE.values(other_windows=sa.bindparam("b_others"))


class PlanningState(NamedTuple):
    """The configs whose rows are locked, and the time. A further one that does not exist is left out."""

    config: PlannedConfig
    others: dict[str, PlannedConfig]
    limits: Limits
    now_ms: int


class ReplanTransaction:
    """The reads and writes of a re-plan in one transaction, by portable statements."""

    def __init__(self, connection: Connection, carriers: Carriers) -> None:
        self.connection = connection
        self.carriers = carriers

    def begin(self) -> None:
        """Begins the transaction, unless the database has."""

    def candidates(self, span: Span, reading: Reading, limit: int, *, lock: bool) -> list[Candidate]:
        """The next slots in order, and whether each may move; with `lock`, waiting work is locked. A page may be
        shorter than `limit` only at the end."""
        candidates: list[Candidate] = []
        while (missing := limit - len(candidates)) > 0:
            records = self.read(span, reading, missing)
            slots = [assigned for assigned, _ in records]
            standings = standings_of(self.connection, self.carriers, slots, lock)
            candidates += [
                Candidate(assigned, _may_move(assigned, self.carriers, standings), created_ms)
                for assigned, created_ms in records
                if standings.get(assigned.event_id) is not Standing.ENDED
            ]
            if len(records) < missing:
                break
            reading = after(slots[-1])
        return candidates

    def read(self, span: Span, reading: Reading, limit: int) -> list[tuple[AssignedSlot, int]]:
        """The next booked slots of a config, in the order of their times, and when they were booked."""
        # After an event: its id with a NUL, which no database stores.
        event_id = reading.event_id.removesuffix("\x00")
        behind = Cursor(reading.at_ms, event_id, 0) if reading.event_id else None
        selection = SlotFilter(span.name, reading.at_ms, span.to_ms, SlotStatus.BOOKED)
        records = slot_records.page(self.connection, selection, behind, limit)
        return [(record.slot, record.created_ms) for record in records]

    def lock(self, span: Span, candidates: Sequence[Candidate]) -> PlanningState:
        """Locks the config and the slots' further ones, in the order of their names.

        Raises:
            NotFound: the config does not exist.
        """
        return self._state(span, policies.lock_all(self.connection, _all_names(span, candidates)))

    def look(self, span: Span, candidates: Sequence[Candidate]) -> PlanningState:
        """As `lock`, without locks: for a plan that is checked when it is carried out."""
        found = (policies.find_active(self.connection, name) for name in _all_names(span, candidates))
        return self._state(span, {active.name: active for active in found if active is not None})

    def lock_slots(self, event_ids: Sequence[str]) -> set[str]:
        """Locks those of these slots that no other transaction has locked, after the configs. An enqueue locks the slot
        of its item. SQLite has one writer."""
        if self.connection.dialect.name == "sqlite":
            return set(event_ids)
        free: set[str] = set()
        for first in range(0, len(event_ids), MAX_IN_LIST):
            some = slot.c.event_id.in_(event_ids[first : first + MAX_IN_LIST])
            statement = sa.select(slot.c.event_id).where(some).with_for_update(skip_locked=True)
            free.update(self.connection.execute(statement).scalars())
        return free

    def _state(self, span: Span, actives: Mapping[str, PolicyVersion]) -> PlanningState:
        now_ms = to_ms(now(self.connection))
        configs = {
            name: PlannedConfig(active, Occupancy(active.policy, self.reader(name), chunk=WINDOWS))
            for name, active in actives.items()
        }
        config = configs.pop(span.name, None)
        if config is None:
            raise NotFound("config", span.name)
        return PlanningState(config, configs, Limits(config.policy, span.earliest(now_ms)), now_ms)

    def reader(self, name: str) -> SqlWindowReader:
        return SqlWindowReader(self.connection, name)

    def move(self, active: PolicyVersion, moves: Sequence[SlotMove], now_ms: int) -> None:
        """Moves slots and publishes the moves.

        Raises:
            Conflict: a slot has changed since it was read; PostgreSQL may raise it later.
        """
        # An enqueue in a long transaction may have locked the slot of its item: bookings must not wait for that too.
        event_ids = [move.slot.event_id for move in moves]
        if len(self.lock_slots(event_ids)) < len(event_ids):
            raise Conflict
        moment = from_ms(now_ms)
        single = [_row(move, active.version, moment) for move in moves if not move.windows]
        joint = [move for move in moves if move.windows]
        # Oracle can't compare CLOBs, so they are read again; the configs are locked.
        current = slot_records.find_all(self.connection, [move.slot.event_id for move in joint]) if joint else {}
        if any(current.get(move.slot.event_id) != move.slot._replace(existing=True) for move in joint):
            raise Conflict
        rows = [
            _row(move, move.windows[0].config_version, moment) | {"b_others": other_windows_text(move.windows[1:])}
            for move in joint
        ]
        for statement, some in ((_MOVE_SINGLE, single), (_MOVE_JOINT, rows)):
            if some and self.connection.execute(statement, some).rowcount != len(some):
                raise Conflict
        append(self.connection, [Record(TOPIC, move.slot.event_id[:KEY], record_of(move)) for move in moves])

    def finish(self, changed: Sequence[PlannedConfig], moves: Sequence[SlotMove], now_ms: int) -> bool:
        """Moves the work of the slots, and writes the counters and runs of configs. Returns whether another session
        waits for this transaction's locks; always False on SQLite and Oracle."""
        for owner, carrier in self.carriers.items():
            own = [move for move in moves if move.slot.owner == owner]
            if own:
                carrier.move(self.connection, own, from_ms(now_ms))
        for planned in changed:
            write_counts(self.connection, planned.active.name, planned.occupancy)
            write_runs(self.connection, planned.active.name, rejoined_runs(planned, runs_near(planned)))
        return False


class SqlReplanStore:
    """The `ReplanStore` port over a `Database`."""

    def __init__(self, database: Database, carriers: Carriers | None = None) -> None:
        self._database = database
        self._carriers: Carriers = carriers or {}
        self.sizes = Sizes()
        self._transaction = ReplanTransaction
        if database.dialect == "postgresql":
            # Imported here: the driver is an extra that SQLite's users do not have.
            from paceline.slots.stores.postgres_replan import PostgresReplanTransaction

            self._transaction = PostgresReplanTransaction

    async def survey(self, span: Span) -> tuple[PolicyVersion, int]:
        return await self._database.read(_survey, span.name)

    async def followers(self, template: str) -> list[str]:
        return await self._database.read(templates.followers, template)

    async def pull_forward(self, span: Span, reading: Reading, limit: int, *, reads_again: bool = False) -> Chunk:
        return await self._write(_pull_forward, span, reading, limit, self.sizes.max_others, reads_again)

    async def candidates(self, span: Span, reading: Reading, limit: int) -> list[Candidate]:
        def read(connection: Connection) -> list[Candidate]:
            return ReplanTransaction(connection, self._carriers).candidates(span, reading, limit, lock=False)

        return await self._database.read(read)

    async def counts(self, name: str, from_ms: int) -> PlannedConfig | None:
        return await self._database.read_aside(_counts, name, from_ms)

    async def plan_forward(self, span: Span, reading: Reading, limit: int) -> Chunk:
        return await self._write(_plan_forward, span, reading, limit, self.sizes.max_others)

    async def carry_out(self, span: Span, moves: Sequence[SlotMove]) -> Chunk:
        return await self._write(_carry_out, span, moves)

    async def push_back(self, span: Span, moves: Sequence[SlotMove]) -> Chunk:
        return await self._write(_push_back, span, moves)

    async def _write(
        self, work: Callable[Concatenate[ReplanTransaction, P], Chunk], *args: P.args, **kwargs: P.kwargs
    ) -> Chunk:
        def run(connection: Connection) -> Chunk:
            transaction = self._transaction(connection, self._carriers)
            transaction.begin()
            return work(transaction, *args, **kwargs)

        return await locking(self._database, partial(self._database.write, run))


def _survey(connection: Connection, name: str) -> tuple[PolicyVersion, int]:
    active = policies.find_active(connection, name)
    if active is None:
        raise NotFound("config", name)
    return active, to_ms(now(connection))


def _counts(connection: Connection, name: str, from_ms: int) -> PlannedConfig | None:
    active = policies.find_active(connection, name)
    if active is None:
        return None
    first = start = align(from_ms, active.policy.size_ms)
    reader, windows = SqlWindowReader(connection, name), list[WindowCount]()
    while page := reader.windows_from(start, 10_000):
        windows += page
        start = page[-1].start_ms + 1
    occupancy = Occupancy(active.policy, CountedWindows(windows))
    occupancy.learn_windows(first, windows, len(windows) + 1)
    return PlannedConfig(active, occupancy)


def _all_names(span: Span, candidates: Sequence[Candidate]) -> list[str]:
    """The config that is re-planned, and the further ones of slots that may move."""
    return sorted({span.name, *other_names(span.name, candidates)})


def standings_of(
    connection: Connection, carriers: Carriers, slots: Sequence[AssignedSlot], lock: bool
) -> dict[str, Standing]:
    """The progress of these slots' work, by event, for those that have work."""
    standings: dict[str, Standing] = {}
    for owner, carrier in carriers.items():
        own = [assigned for assigned in slots if assigned.owner == owner]
        if own:
            standings |= carrier.standings(connection, own, lock=lock)
    return standings


def _may_move(assigned: AssignedSlot, carriers: Carriers, standings: Mapping[str, Standing]) -> bool:
    """A slot with an owner moves only with its work; one without an owner may have none."""
    if assigned.owner is not None and assigned.owner not in carriers:
        return False
    standing = standings.get(assigned.event_id)
    return standing is Standing.WAITING if assigned.owner is not None else standing in (None, Standing.WAITING)


def _pull_forward(
    transaction: ReplanTransaction, span: Span, reading: Reading, limit: int, max_others: int, reads_again: bool
) -> Chunk:
    read = transaction.candidates(span, reading, limit, lock=True)
    few = few_others(span.name, read, max_others)
    config, others, limits, now_ms = transaction.lock(span, few)
    locked_at = time.perf_counter()
    if reads_again:
        read = transaction.candidates(span, reading, limit, lock=True)
        free = transaction.lock_slots([candidate.slot.event_id for candidate in read])
        read = [
            candidate if candidate.slot.event_id in free else candidate._replace(may_move=False) for candidate in read
        ]
        few = until_stranger(read, {span.name, *others})
        if read and not few:
            raise Conflict
    is_last = len(few) == len(read) < limit
    puller = Puller(limits, config, reading, others)
    examined, moves = puller.pull(without_strangers(few, {span.name, *others}), is_last=is_last)
    is_awaited = _carried_out(transaction, config, others, moves, now_ms)
    return Chunk(examined, moves, None if is_last else puller.reading, is_awaited, time.perf_counter() - locked_at)


def _plan_forward(transaction: ReplanTransaction, span: Span, reading: Reading, limit: int, max_others: int) -> Chunk:
    read = transaction.candidates(span, reading, limit, lock=True)
    few = few_others(span.name, read, max_others)
    config, others, limits, _ = transaction.look(span, few)
    is_last = len(few) == len(read) < limit
    puller = Puller(limits, config, reading, others)
    part = puller.pull(without_strangers(few, {span.name, *others}), is_last=is_last)
    return Chunk(part.examined, part.moves, None if is_last else puller.reading)


def _carry_out(transaction: ReplanTransaction, span: Span, moves: Sequence[SlotMove]) -> Chunk:
    carriers, slots = transaction.carriers, [move.slot for move in moves]
    standings = standings_of(transaction.connection, carriers, slots, True)
    config, others, limits, now_ms = transaction.lock(span, list(map(Candidate, slots)))
    locked_at = time.perf_counter()
    possible: list[SlotMove] = []
    for planned in moves:
        if planned.scheduled_ms < limits.earliest_ms or not _may_move(planned.slot, carriers, standings):
            break
        move = admitted(planned, config, others, limits.effective(planned.slot))
        if move is None:
            break
        possible.append(move)
    is_awaited = _carried_out(transaction, config, others, possible, now_ms)
    return Chunk([], possible, None, is_awaited, time.perf_counter() - locked_at)


def _push_back(transaction: ReplanTransaction, span: Span, moves: Sequence[SlotMove]) -> Chunk:
    connection, carriers = transaction.connection, transaction.carriers
    slots = [move.slot for move in moves]
    standings = standings_of(connection, carriers, slots, True)
    config, others, limits, now_ms = transaction.lock(span, list(map(Candidate, slots)))
    locked_at = time.perf_counter()
    free = transaction.lock_slots([assigned.event_id for assigned in slots])
    current = slot_records.find_all(connection, sorted(free))
    possible: list[SlotMove] = []
    for planned in reversed(moves):
        assigned = planned.slot
        is_same = current.get(assigned.event_id) == assigned._replace(existing=True)
        if not is_same or not _may_move(assigned, carriers, standings) or assigned.scheduled_ms < limits.earliest_ms:
            continue
        move = admitted(planned, config, others)
        if move is not None:
            possible.append(move)
    possible.reverse()
    is_awaited = _carried_out(transaction, config, others, possible, now_ms)
    return Chunk([], possible, None, is_awaited, time.perf_counter() - locked_at)


def _carried_out(
    transaction: ReplanTransaction,
    config: PlannedConfig,
    others: Mapping[str, PlannedConfig],
    moves: Sequence[SlotMove],
    now_ms: int,
) -> bool:
    """Writes moves whose places are taken. Returns whether another session waits for this transaction's locks."""
    if moves:
        transaction.move(config.active, moves, now_ms)
    return transaction.finish([planned for planned in (config, *others.values()) if planned.before], moves, now_ms)


def _row(move: SlotMove, version: int, moment: Any) -> dict[str, Any]:
    return {
        "b_event": move.slot.event_id,
        "b_name": move.slot.config_name,
        "b_old": from_ms(move.slot.scheduled_ms),
        "b_window": from_ms(move.window_start_ms),
        "b_at": from_ms(move.scheduled_ms),
        "b_version": version,
        "b_now": moment,
    }


def runs_near(config: PlannedConfig) -> list[FullRun]:
    """The stored runs that contain a changed window, end at one, or start right after one."""
    starts = starts_near(config)
    runs = zip(starts, config.occupancy.reader.runs_before(starts), strict=True) if starts else ()
    return [run for start, run in runs if run is not None and run.resume_ms >= start]


def record_of(move: SlotMove) -> str:
    """The record of a move for subscribers."""
    record: dict[str, Any] = {
        "eventId": move.slot.event_id,
        "configName": move.slot.config_name,
        "before": _instant_text(move.slot.scheduled_ms),
        "scheduledTime": _instant_text(move.scheduled_ms),
        "windowStart": _instant_text(move.window_start_ms),
        "owner": move.slot.owner,
    }
    if move.windows:
        record["windows"] = [_window_record(window) for window in move.windows]
    return json.dumps(record)


def _window_record(window: SlotWindow) -> dict[str, Any]:
    name, version, start_ms = window
    return {"configName": name, "configVersion": version, "windowStart": _instant_text(start_ms)}


def _instant_text(at_ms: int) -> str:
    return format_instant(from_ms(at_ms))
