"""Moving slots in a database: each chunk is one transaction that moves slots, counters, runs and what carries them.

Locks are taken in one order, as everywhere: what carries the slots, then the rows of the config and of the slots'
further configs, by name. A carrier never waits for its locks. Slots are read before the configs are locked, and each is
moved only if it still is what was read.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from headgate.durations import format_instant, from_ms, to_ms
from headgate.errors import Conflict, NotFound
from headgate.messaging import Record
from headgate.slots.carriers import Carriers, SlotMove, Standing
from headgate.slots.listing import Cursor, ListedSlot, SlotFilter, SlotStatus
from headgate.slots.model import AssignedSlot, PolicyVersion, SlotWindow
from headgate.slots.occupancy import CountedWindows, FullRun, Occupancy, WindowCount
from headgate.slots.replan import Assignment, Candidate, Limits, PlannedConfig, assign_earlier
from headgate.slots.replan_places import place, rejoined_runs, starts_near, still_fits
from headgate.slots.replanning import (
    Chunk,
    Reading,
    Span,
    after,
    few_others,
    other_names,
    whole_windows,
    without_strangers,
)
from headgate.slots.stores import policies, slot_records
from headgate.slots.stores.other_windows import other_windows_text
from headgate.slots.stores.tables import slot
from headgate.slots.stores.window_rows import SqlWindowReader, write_counts, write_runs
from headgate.slots.windows import align
from headgate.sql.engine import Database
from headgate.sql.outbox import append
from headgate.sql.schema import now

TOPIC = "slot-moved"
KEY = 128
WINDOWS = 256
"""Windows that are read at once, …"""
OTHER_WINDOWS = 64
"""… and of each further config, in one statement for all of them."""
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
# A slot that keeps its window was let into it by the version that it has.
_VERSION = sa.case(
    (slot.c.window_start == sa.bindparam("b_window"), slot.c.config_version), else_=sa.bindparam("b_version")
)
_MOVE_SINGLE = _MOVE.where(slot.c.other_windows.is_(None)).values(config_version=_VERSION)
_MOVE_JOINT = _MOVE.values(other_windows=sa.bindparam("b_others"))


class SqlReplanStore:
    """The `ReplanStore` port over a `Database`."""

    def __init__(self, database: Database, carriers: Carriers | None = None) -> None:
        self._database = database
        self._carriers: Carriers = carriers or {}
        self._uniform = random.Random().random
        self._known: dict[tuple[str, int], PolicyVersion] = {}

    async def survey(self, span: Span) -> tuple[PolicyVersion, int]:
        return await self._database.read(_survey, span.name)

    async def pull_forward(self, span: Span, reading: Reading, limit: int, *, reads_again: bool = False) -> Chunk:
        return await self._database.write(
            _pull_forward, self._carriers, span, reading, limit, self._uniform, self._known, reads_again
        )

    async def candidates(self, span: Span, reading: Reading, limit: int) -> list[Candidate]:
        return await self._database.read(_candidates, self._carriers, span, reading, limit, False)

    async def counts(self, name: str, from_ms: int) -> PlannedConfig | None:
        return await self._database.read_aside(_counts, name, from_ms)

    async def push_back(self, span: Span, moves: Sequence[SlotMove]) -> list[SlotMove]:
        return await self._database.write(_push_back, self._carriers, span, moves, self._known)


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


def _candidates(
    connection: Connection, carriers: Carriers, span: Span, reading: Reading, limit: int, lock: bool
) -> list[Candidate]:
    """The next slots in order, and whether each may move. A page may be shorter than `limit` only at the end."""
    candidates: list[Candidate] = []
    while (missing := limit - len(candidates)) > 0:
        created: dict[str, int] = {}
        if lock and connection.dialect.name == "postgresql":
            # Imported here: the driver is an extra that SQLite's users do not have.
            from headgate.slots.stores import postgres_replan

            slots = postgres_replan.read(connection, span, reading, missing)
        else:
            records = _records(connection, span, reading, missing)
            slots = [record.slot for record in records]
            created = {record.slot.event_id: record.created_ms for record in records}
        standings = standings_of(connection, carriers, slots, lock)
        if standings or created or any(assigned.owner is not None for assigned in slots):
            candidates += [
                Candidate(assigned, _may_move(assigned, carriers, standings), created.get(assigned.event_id, 0))
                for assigned in slots
                if standings.get(assigned.event_id) is not Standing.ENDED
            ]
        else:
            candidates += map(Candidate, slots)
        if len(slots) < missing:
            break
        reading = after(slots[-1])
    return candidates


def _records(connection: Connection, span: Span, reading: Reading, limit: int) -> list[ListedSlot]:
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
    """A slot that belongs to an application moves only with its work; one that belongs to nobody may have none."""
    if assigned.owner is not None and assigned.owner not in carriers:
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
    known: dict[tuple[str, int], PolicyVersion],
    reads_again: bool,
) -> Chunk:
    read = _candidates(connection, carriers, span, reading, limit, True)
    few = few_others(span.name, read)
    config, others, limits, now_ms = _lock(connection, span, few, reading.at_ms, known)
    if reads_again:
        locked = {span.name, *other_names(span.name, few)}
        read = _candidates(connection, carriers, span, reading, limit, True)
        few = list(takewhile(lambda candidate: locked.issuperset(candidate.slot.config_names), read))
        if read and not few:
            raise Conflict
    is_last = len(few) == len(read) < limit
    candidates = without_strangers(few, {span.name, *others})
    assignments = assign_earlier(limits, candidates, config, reading.at_ms, others)
    kept = whole_windows(assignments, is_last=is_last)
    # Inside a window only if one window holds more slots than a transaction moves.
    floor = reading.at_ms if reading.event_id else 0
    moves = place(limits, kept, config, uniform, floor, others)
    is_awaited = _write(connection, carriers, config, others, moves, now_ms) if moves else _is_awaited(connection)
    following = None if is_last else _following(assignments, kept, moves)
    examined = [assignment.candidate.slot for assignment in kept]
    return Chunk(examined, moves, following, is_awaited)


def _is_awaited(connection: Connection) -> bool:
    if connection.dialect.name != "postgresql":
        return False  # SQLite does not say, and serves one writer after another
    from headgate.slots.stores import postgres_replan

    return postgres_replan.is_awaited(connection)


def _lock(
    connection: Connection,
    span: Span,
    candidates: Sequence[Candidate],
    from_ms: int,
    known: dict[tuple[str, int], PolicyVersion],
) -> tuple[PlannedConfig, dict[str, PlannedConfig], Limits, int]:
    """The config and the slots' further ones, whose rows are locked, and the time. One that does not exist is left
    out."""
    names = {span.name, *other_names(span.name, candidates)}
    if connection.dialect.name == "postgresql":
        from headgate.slots.stores import postgres_replan

        actives, now_ms = postgres_replan.lock(connection, names, known)
    else:
        actives = policies.lock_all(connection, names)
        now_ms = to_ms(now(connection))
    configs = {
        name: PlannedConfig(active, Occupancy(active.policy, _window_reader(connection, name), chunk=WINDOWS))
        for name, active in actives.items()
    }
    config = configs.pop(span.name, None)
    if config is None:
        raise NotFound("config", span.name)
    limits = Limits(config.policy, span.earliest(now_ms))
    if connection.dialect.name == "postgresql":
        postgres_replan.read_windows(connection, configs.values(), max(from_ms, limits.earliest_ms), OTHER_WINDOWS)
    return config, configs, limits, now_ms


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


def _push_back(
    connection: Connection,
    carriers: Carriers,
    span: Span,
    moves: Sequence[SlotMove],
    known: dict[tuple[str, int], PolicyVersion],
) -> list[SlotMove]:
    _begin(connection)
    slots = [move.slot for move in moves]
    standings = standings_of(connection, carriers, slots, True)
    first = min(assigned.scheduled_ms for assigned in slots)
    config, others, limits, now_ms = _lock(connection, span, list(map(Candidate, slots)), first, known)
    current = slot_records.find_all(connection, [assigned.event_id for assigned in slots])
    possible: list[SlotMove] = []
    for move in reversed(moves):
        is_same = current.get(move.slot.event_id) == move.slot._replace(existing=True)
        if not is_same or not _may_move(move.slot, carriers, standings) or move.slot.scheduled_ms < limits.earliest_ms:
            continue
        if still_fits(move, config, others):
            possible.append(move)
    possible.reverse()
    if possible:
        _write(connection, carriers, config, others, possible, now_ms)
    return possible


def _write(
    connection: Connection,
    carriers: Carriers,
    config: PlannedConfig,
    others: Mapping[str, PlannedConfig],
    moves: Sequence[SlotMove],
    now_ms: int,
) -> bool:
    """Moves slots with what carries them. Returns whether anybody waits for this transaction's locks."""
    moment = from_ms(now_ms)
    single = [move for move in moves if not move.windows]
    joint = [move for move in moves if move.windows]
    if single:
        _move_single(connection, config.active, single, moment)
    if joint:
        _move_joint(connection, joint, moment)
    for owner, carrier in carriers.items():
        own = [move for move in moves if move.slot.owner == owner]
        if own:
            carrier.move(connection, own, moment)
    changed = [planned for planned in (config, *others.values()) if planned.before]
    if changed and connection.dialect.name == "postgresql":
        from headgate.slots.stores import postgres_replan

        return postgres_replan.write_windows(connection, changed)
    for planned in changed:
        write_counts(connection, planned.active.name, planned.occupancy)
        write_runs(connection, planned.active.name, rejoined_runs(planned, runs_near(planned)))
    return False


def _move_single(connection: Connection, active: PolicyVersion, moves: Sequence[SlotMove], moment: Any) -> None:
    if connection.dialect.name == "postgresql":
        from headgate.slots.stores import postgres_replan

        if postgres_replan.move(connection, active, moves, TOPIC, KEY) != len(moves):
            raise Conflict
        return
    rows = [_row(move, active.version, moment) for move in moves]
    if connection.execute(_MOVE_SINGLE, rows).rowcount != len(moves):
        raise Conflict
    _publish(connection, moves)


def _move_joint(connection: Connection, moves: Sequence[SlotMove], moment: Any) -> None:
    if connection.dialect.name == "postgresql":
        from headgate.slots.stores import postgres_replan

        if postgres_replan.move_joint(connection, moves, TOPIC, KEY, list(map(_record, moves))) != len(moves):
            raise Conflict
        return
    # Oracle compares no texts without bounds, so here they are read again; the configs are locked.
    current = slot_records.find_all(connection, [move.slot.event_id for move in moves])
    if any(current.get(move.slot.event_id) != move.slot._replace(existing=True) for move in moves):
        raise Conflict
    rows = [
        _row(move, move.windows[0].config_version, moment) | {"b_others": other_windows_text(move.windows[1:])}
        for move in moves
    ]
    if connection.execute(_MOVE_JOINT, rows).rowcount != len(moves):
        raise Conflict
    _publish(connection, moves)


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


def _publish(connection: Connection, moves: Sequence[SlotMove]) -> None:
    append(connection, [Record(TOPIC, move.slot.event_id[:KEY], _record(move)) for move in moves])


def _record(move: SlotMove) -> str:
    """What subscribers read of a move."""
    record: dict[str, Any] = {
        "eventId": move.slot.event_id,
        "configName": move.slot.config_name,
        "before": _instant(move.slot.scheduled_ms),
        "scheduledTime": _instant(move.scheduled_ms),
        "windowStart": _instant(move.window_start_ms),
        "owner": move.slot.owner,
    }
    if move.windows:
        record["windows"] = [_window(window) for window in move.windows]
    return json.dumps(record)


def _window(window: SlotWindow) -> dict[str, Any]:
    name, version, start_ms = window
    return {"configName": name, "configVersion": version, "windowStart": _instant(start_ms)}


def _instant(at_ms: int) -> str:
    return format_instant(from_ms(at_ms))


def runs_near(config: PlannedConfig) -> list[FullRun]:
    """The stored runs that contain a changed window, end at one, or start right behind one."""
    starts = starts_near(config)
    runs = zip(starts, config.occupancy.reader.runs_before(starts), strict=True) if starts else ()
    return [run for start, run in runs if run is not None and run.resume_ms >= start]


def _window_reader(connection: Connection, name: str) -> SqlWindowReader:
    if connection.dialect.name != "postgresql":
        return SqlWindowReader(connection, name)
    # Imported here: the driver is an extra that SQLite's users do not have.
    from headgate.slots.stores.postgres import PostgresWindowReader

    return PostgresWindowReader(connection, name)
