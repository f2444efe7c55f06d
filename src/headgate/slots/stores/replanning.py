"""Moving slots in a database: each chunk is one transaction that moves slots, counters, runs and what carries them.

Locks are taken in one order, as everywhere: what carries the slots, then the config's row. A carrier never waits for
its locks. Slots are read before the config is locked, and each is moved only if it still has the time that was read.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from headgate.durations import format_instant, from_ms, to_ms
from headgate.errors import Conflict, NotFound
from headgate.messaging import Record
from headgate.slots.carriers import Carriers, SlotMove, Standing
from headgate.slots.listing import Cursor, ListedSlot, SlotFilter, SlotStatus
from headgate.slots.model import AssignedSlot, PolicyVersion, WindowPolicy
from headgate.slots.occupancy import CountedWindows, FullRun, Occupancy, WindowCount
from headgate.slots.replan import Assignment, Candidate, Counts, Limits, assign_earlier, place, rejoined_runs
from headgate.slots.replanning import Chunk, Reading, Span, after, whole_windows
from headgate.slots.stores import policies, slot_records
from headgate.slots.stores.tables import slot
from headgate.slots.stores.window_rows import SqlWindowReader, write_counts, write_runs
from headgate.slots.windows import align
from headgate.sql.engine import Database
from headgate.sql.outbox import append
from headgate.sql.schema import now

TOPIC = "slot-moved"
KEY = 128
WINDOWS = 256
"""Windows that are read at once."""
_MOVE = (
    slot.update()
    .where(slot.c.event_id == sa.bindparam("b_event"), slot.c.scheduled_at == sa.bindparam("b_old"))
    .values(
        window_start=sa.bindparam("b_window"),
        scheduled_at=sa.bindparam("b_at"),
        config_version=sa.bindparam("b_version"),
        moved_at=sa.bindparam("b_now"),
    )
)


class SqlReplanStore:
    """The `ReplanStore` port over a `Database`."""

    def __init__(self, database: Database, carriers: Carriers | None = None) -> None:
        self._database = database
        self._carriers: Carriers = carriers or {}
        self._uniform = random.Random().random

    async def survey(self, span: Span) -> tuple[PolicyVersion, int]:
        return await self._database.read(_survey, span.name)

    async def pull_forward(self, span: Span, reading: Reading, limit: int) -> Chunk:
        return await self._database.write(_pull_forward, self._carriers, span, reading, limit, self._uniform)

    async def candidates(self, span: Span, reading: Reading, limit: int) -> list[Candidate]:
        return await self._database.read(_candidates, self._carriers, span, reading, limit, False)

    async def counts(self, span: Span, from_ms: int) -> Occupancy:
        return await self._database.read_aside(_counts, span.name, from_ms)

    async def push_back(self, span: Span, moves: Sequence[SlotMove]) -> list[SlotMove]:
        return await self._database.write(_push_back, self._carriers, span, moves)


def _survey(connection: Connection, name: str) -> tuple[PolicyVersion, int]:
    active = policies.find_active(connection, name)
    if active is None:
        raise NotFound("config", name)
    return active, to_ms(now(connection))


def _counts(connection: Connection, name: str, from_ms: int) -> Occupancy:
    active, _ = _survey(connection, name)
    reader, windows, start = SqlWindowReader(connection, name), list[WindowCount](), from_ms
    while page := reader.windows_from(start, 10_000):
        windows += page
        start = page[-1].start_ms + 1
    occupancy = Occupancy(active.policy, CountedWindows(windows))
    occupancy.learn_windows(from_ms, windows, len(windows) + 1)
    return occupancy


def _candidates(
    connection: Connection, carriers: Carriers, span: Span, reading: Reading, limit: int, lock: bool
) -> list[Candidate]:
    """The next slots in order, and whether each may move. A page may be shorter than `limit` only at the end."""
    candidates: list[Candidate] = []
    while (missing := limit - len(candidates)) > 0:
        records = _records(connection, span, reading, missing, lock)
        slots = [record.slot for record in records]
        standings = standings_of(connection, carriers, slots, lock)
        candidates += [
            Candidate(record.slot, _may_move(record.slot, carriers, standings), record.created_ms)
            for record in records
            if standings.get(record.slot.event_id) is not Standing.ENDED
        ]
        if len(records) < missing:
            break
        reading = after(slots[-1])
    return candidates


def _records(connection: Connection, span: Span, reading: Reading, limit: int, lock: bool) -> list[ListedSlot]:
    if lock and connection.dialect.name == "postgresql":
        # Imported here: the driver is an extra that SQLite's users do not have.
        from headgate.slots.stores import postgres_replan

        return postgres_replan.read(connection, span, reading, limit)
    # Behind an event: its id with a NUL, which no database stores.
    event_id = reading.event_id.removesuffix("\x00")
    behind = Cursor(reading.at_ms, event_id, 0) if reading.event_id else None
    selection = SlotFilter(span.name, reading.at_ms, span.to_ms, SlotStatus.BOOKED)
    return slot_records.page(connection, selection, behind, limit)


def standings_of(
    connection: Connection, carriers: Carriers, slots: Sequence[AssignedSlot], lock: bool
) -> dict[str, Standing]:
    """How far the work of these slots has come, by event, for those that have work."""
    standings: dict[str, Standing] = {}
    for owner, carrier in carriers.items():
        own = [assigned for assigned in slots if assigned.owner == owner]
        if own:
            standings |= carrier.standings(connection, own, lock=lock)
    return standings


def _may_move(assigned: AssignedSlot, carriers: Carriers, standings: Mapping[str, Standing]) -> bool:
    """A slot that belongs to an application moves only with its work; one that belongs to nobody may have none. A slot
    under several configs stays: its time suits all of them."""
    if assigned.other_windows or (assigned.owner is not None and assigned.owner not in carriers):
        return False
    standing = standings.get(assigned.event_id)
    return standing is Standing.WAITING if assigned.owner is not None else standing in (None, Standing.WAITING)


def _pull_forward(
    connection: Connection,
    carriers: Carriers,
    span: Span,
    reading: Reading,
    limit: int,
    uniform: Callable[[], float],
) -> Chunk:
    _begin(connection)
    candidates = _candidates(connection, carriers, span, reading, limit, True)
    active = policies.lock_active(connection, span.name)
    if active is None:
        raise NotFound("config", span.name)
    policy = active.policy
    limits = Limits(policy, span.earliest(to_ms(now(connection))))
    occupancy = Occupancy(policy, _window_reader(connection, span.name), chunk=WINDOWS)
    is_last = len(candidates) < limit
    assignments = assign_earlier(limits, candidates, Counts(occupancy), reading.at_ms)
    kept = whole_windows(assignments, is_last=is_last)
    # Inside a window only if one window holds more slots than a transaction moves.
    floor = reading.at_ms if reading.event_id else 0
    moves, before = place(limits, kept, occupancy, uniform, floor)
    if moves:
        _write(connection, carriers, active, moves, occupancy, before)
    following = None if is_last else _following(assignments, kept, moves)
    return Chunk([assignment.candidate.slot for assignment in kept], moves, following)


def _begin(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        from headgate.slots.stores import postgres_replan

        postgres_replan.begin(connection)


def _following(assignments: Sequence[Assignment], kept: Sequence[Assignment], moves: Sequence[SlotMove]) -> Reading:
    if len(kept) < len(assignments):
        return Reading(assignments[-1].window_ms)
    last = kept[-1].candidate.slot
    place = next((move.scheduled_ms for move in reversed(moves) if move.slot.event_id == last.event_id), None)
    return after(last if place is None else last._replace(scheduled_ms=place))


def _push_back(connection: Connection, carriers: Carriers, span: Span, moves: Sequence[SlotMove]) -> list[SlotMove]:
    _begin(connection)
    slots = [move.slot for move in moves]
    standings = standings_of(connection, carriers, slots, True)
    active = policies.lock_active(connection, span.name)
    if active is None:
        raise NotFound("config", span.name)
    policy = active.policy
    current = slot_records.find_all(connection, [assigned.event_id for assigned in slots])
    earliest = span.earliest(to_ms(now(connection)))
    occupancy = Occupancy(policy, _window_reader(connection, span.name), chunk=WINDOWS)
    before: dict[int, int] = {}
    possible: list[SlotMove] = []
    for move in reversed(moves):
        is_same = current.get(move.slot.event_id) == move.slot._replace(existing=True)
        if not is_same or not _may_move(move.slot, carriers, standings) or move.slot.scheduled_ms < earliest:
            continue
        if _has_room(policy, occupancy, move, before):
            possible.append(move)
    possible.reverse()
    if possible:
        _write(connection, carriers, active, possible, occupancy, before)
    return possible


def _has_room(policy: WindowPolicy, occupancy: Occupancy, move: SlotMove, before: dict[int, int]) -> bool:
    """Takes the place of a move in the window that it goes to, if the window has one."""
    own, target = (align(at, policy.size_ms) for at in (move.slot.scheduled_ms, move.scheduled_ms))
    if target != move.window_start_ms:
        return False  # the window's size was changed meanwhile
    if own == target:
        return True
    if occupancy.taken(target) >= policy.limit_at(target) or policy.next_open(target) != target:
        return False
    before.setdefault(target, occupancy.taken(target))
    before.setdefault(own, occupancy.taken(own))
    occupancy.release(own)
    occupancy.take(target)
    return True


def _write(
    connection: Connection,
    carriers: Carriers,
    active: PolicyVersion,
    moves: Sequence[SlotMove],
    occupancy: Occupancy,
    before: dict[int, int],
) -> None:
    moment = now(connection)
    _move_slots(connection, active, moves, moment)
    for owner, carrier in carriers.items():
        own = [move for move in moves if move.slot.owner == owner]
        if own:
            carrier.move(connection, own, moment)
    write_counts(connection, active.name, occupancy)
    stored = _runs_near(active.policy, occupancy, before)
    write_runs(connection, active.name, rejoined_runs(active.policy, before, occupancy, stored))


def _move_slots(connection: Connection, active: PolicyVersion, moves: Sequence[SlotMove], moment: Any) -> None:
    if connection.dialect.name == "postgresql":
        from headgate.slots.stores import postgres_replan

        if postgres_replan.move(connection, active, moves, TOPIC, KEY) != len(moves):
            raise Conflict
        return
    moved = connection.execute(
        _MOVE,
        [
            {
                "b_event": move.slot.event_id,
                "b_old": from_ms(move.slot.scheduled_ms),
                "b_window": from_ms(move.window_start_ms),
                "b_at": from_ms(move.scheduled_ms),
                "b_version": active.version,
                "b_now": moment,
            }
            for move in moves
        ],
    )
    if moved.rowcount != len(moves):
        raise Conflict
    append(connection, [Record(TOPIC, move.slot.event_id[:KEY], _record(active.name, move)) for move in moves])


def _record(name: str, move: SlotMove) -> str:
    """What subscribers read of a move."""
    return json.dumps(
        {
            "eventId": move.slot.event_id,
            "configName": name,
            "before": format_instant(from_ms(move.slot.scheduled_ms)),
            "scheduledTime": format_instant(from_ms(move.scheduled_ms)),
            "windowStart": format_instant(from_ms(move.window_start_ms)),
            "owner": move.slot.owner,
        }
    )


def _runs_near(policy: WindowPolicy, occupancy: Occupancy, before: Mapping[int, int]) -> list[FullRun]:
    """The stored runs that contain a changed window, end at one, or start right behind one."""
    limits = [(start, held, policy.limit_at(start)) for start, held in before.items()]
    changed = [start for start, held, limit in limits if (held >= limit) != (occupancy.taken(start) >= limit)]
    behind = [policy.next_open(start + policy.size_ms) for start in changed]
    starts = sorted({*changed, *behind, *(start - 1 for start in changed)})
    if not starts:
        return []
    runs = zip(starts, occupancy.reader.runs_before(starts), strict=True)
    return sorted({run for start, run in runs if run is not None and run.resume_ms >= start})


def _window_reader(connection: Connection, name: str) -> SqlWindowReader:
    if connection.dialect.name != "postgresql":
        return SqlWindowReader(connection, name)
    # Imported here: the driver is an extra that SQLite's users do not have.
    from headgate.slots.stores.postgres import PostgresWindowReader

    return PostgresWindowReader(connection, name)
