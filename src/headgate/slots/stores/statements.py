"""Slots in a database: plain functions over a connection, written once for SQLite, PostgreSQL and Oracle.

Whoever books, cancels or configures first locks the config's row (`FOR UPDATE`; on SQLite the whole database, by
`BEGIN IMMEDIATE`), so packing is exact and nobody retries. Everything read after the lock is current.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import groupby
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from headgate.durations import EPOCH, from_ms, to_ms
from headgate.errors import Conflict, NotFound, SlotOwned
from headgate.slots.model import AssignedSlot, PolicyVersion, SlotRequest, WindowPolicy
from headgate.slots.occupancy import FullRun, Occupancy, RunChanges, WindowCount, full_runs
from headgate.slots.packing import Booking, Packer, book_all, unbooked
from headgate.slots.stores.tables import slot, slot_config, slot_policy, slot_run, slot_window
from headgate.slots.windows import align
from headgate.sql.instants import InstantText
from headgate.sql.schema import now

T = TypeVar("T")

MOST_IDS = 900
"""Ids in one IN list: Oracle takes 1000 expressions at most."""
SURVEY_CHUNK = 1024
# One statement for PostgreSQL: row by row, a hundred thousand of them would hold the config's lock for half a minute.
_INSERT_RUNS = sa.text(
    """
    INSERT INTO headgate_slot_run (config_name, window_start, resume_at)
    SELECT CAST(:name AS text), 'epoch'::timestamptz + start * interval '1 ms',
        'epoch'::timestamptz + resume * interval '1 ms'
    FROM unnest(CAST(:starts AS bigint[]), CAST(:resumes AS bigint[])) AS new(start, resume)
    """
)

_slot_columns = (
    slot.c.event_id,
    slot.c.config_name,
    slot.c.config_version,
    slot.c.requested_at,
    slot.c.window_start,
    slot.c.scheduled_at,
    slot.c.owner,
)


class SqlWindowReader:
    """One config's counters and runs, read through a connection."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection = connection
        self._name = name

    def windows_from(self, start_ms: int, limit: int) -> list[WindowCount]:
        rows = self._connection.execute(
            sa.select(slot_window.c.window_start, slot_window.c.taken, slot_window.c.placed)
            .where(slot_window.c.config_name == self._name, slot_window.c.window_start >= from_ms(start_ms))
            .order_by(slot_window.c.window_start)
            .limit(limit)
        )
        return [WindowCount(to_ms(start), taken, placed) for start, taken, placed in rows]

    def run_before(self, start_ms: int) -> FullRun | None:
        row = self._connection.execute(
            sa.select(slot_run.c.window_start, slot_run.c.resume_at)
            .where(slot_run.c.config_name == self._name, slot_run.c.window_start <= from_ms(start_ms))
            .order_by(slot_run.c.window_start.desc())
            .limit(1)
        ).first()
        return None if row is None else FullRun(to_ms(row.window_start), to_ms(row.resume_at))

    def runs_before(self, starts_ms: Sequence[int]) -> list[FullRun | None]:
        return [self.run_before(start) for start in starts_ms]


def configure(
    connection: Connection,
    name: str,
    policy: WindowPolicy,
    now_ms: int | None,
    only_if_absent: bool,
    replacing: int | None,
) -> PolicyVersion:
    """Adds a version and makes it the active one; recounts windows and runs where the change makes them differ."""
    active = lock_active(connection, name)
    if active is not None and only_if_absent:
        return active
    if replacing is not None and replacing != (active.version if active else 0):
        raise Conflict
    now_ms = _now_ms(connection, now_ms)
    version = PolicyVersion(name, active.version + 1 if active else 1, policy, from_ms(now_ms))
    connection.execute(
        slot_policy.insert().values(
            name=name,
            version=version.version,
            policy=json.dumps(policy.to_json(), sort_keys=True),
            created_at=version.created_at,
        )
    )
    if active is None:
        # Two who create the same config at once: the second waits here, fails on the key, and tries again.
        connection.execute(slot_config.insert().values(name=name, version=version.version))
        return version
    connection.execute(slot_config.update().where(slot_config.c.name == name).values(version=version.version))
    if policy.size_ms != active.policy.size_ms:
        _recount(connection, name, policy, now_ms)
    _rebuild_runs(connection, name, policy, now_ms)
    return version


def active_version(connection: Connection, name: str) -> int | None:
    """The number of a config's active version, without its lock."""
    return connection.execute(sa.select(slot_config.c.version).where(slot_config.c.name == name)).scalar()


def history(connection: Connection, name: str) -> list[PolicyVersion]:
    """Every version of a config, newest first."""
    rows = connection.execute(
        sa.select(slot_policy).where(slot_policy.c.name == name).order_by(slot_policy.c.version.desc())
    )
    return [_policy_version(row) for row in rows]


def configs(connection: Connection) -> list[PolicyVersion]:
    """The active version of every config, by name."""
    active = (slot_config.c.name == slot_policy.c.name) & (slot_config.c.version == slot_policy.c.version)
    rows = connection.execute(sa.select(slot_policy).join(slot_config, active))
    # Sorted here: databases order text by rules of their own.
    return sorted((_policy_version(row) for row in rows), key=lambda version: version.name)


def book(
    connection: Connection,
    name: str,
    requests: Sequence[SlotRequest],
    now_ms: int | None,
    uniform: Callable[[], float],
    owner: str | None = None,
) -> list[Booking]:
    """Books every request in this transaction."""
    active = lock_active(connection, name)
    existing = find_all(connection, [event_id for event_id, _ in requests])
    if active is None:
        return unbooked(name, requests, existing)
    now_ms = _now_ms(connection, now_ms)
    occupancy = Occupancy(active.policy, SqlWindowReader(connection, name))
    bookings, fresh = book_all(active, Packer(active.policy, occupancy, now_ms, uniform), requests, existing, owner)
    if fresh:
        _insert_slots(connection, fresh, from_ms(now_ms))
        write_occupancy(connection, name, occupancy)
    return bookings


def find_all(connection: Connection, event_ids: Sequence[str]) -> dict[str, AssignedSlot]:
    """The slots that these events have, by event."""
    found: dict[str, AssignedSlot] = {}
    for first in range(0, len(event_ids), MOST_IDS):
        rows = connection.execute(
            sa.select(*_slot_columns).where(slot.c.event_id.in_(event_ids[first : first + MOST_IDS]))
        )
        found.update((row.event_id, assigned(*row)) for row in rows)
    return found


def cancel(connection: Connection, event_id: str, owner: str | None = None) -> AssignedSlot | None:
    """Deletes the slot, if it is the owner's, and frees its room in the window that its time falls into today."""
    config_name = connection.execute(sa.select(slot.c.config_name).where(slot.c.event_id == event_id)).scalar()
    if config_name is None:
        return None
    active = lock_active(connection, config_name)
    had = find_all(connection, [event_id]).get(event_id)
    if had is None or active is None:
        return None
    if had.config_name != config_name:
        # Cancelled and booked again elsewhere while this waited: the lock it holds is not the one it needs.
        raise Conflict
    if had.owner != owner:
        raise SlotOwned(event_id, had.owner)
    connection.execute(slot.delete().where(slot.c.event_id == event_id))
    occupancy = Occupancy(active.policy, SqlWindowReader(connection, config_name), chunk=1)
    window = align(had.scheduled_ms, active.policy.size_ms)
    if occupancy.taken(window):
        occupancy.release(window)
        write_occupancy(connection, config_name, occupancy)
    return had


def booked(connection: Connection, before_ms: int, after: tuple[int, str] | None, limit: int) -> list[AssignedSlot]:
    """Slots scheduled before a time, oldest first, past a cursor."""
    query = sa.select(*_slot_columns).where(slot.c.scheduled_at < from_ms(before_ms))
    if after is not None:
        at, event_id = from_ms(after[0]), after[1]
        query = query.where((slot.c.scheduled_at > at) | ((slot.c.scheduled_at == at) & (slot.c.event_id > event_id)))
    rows = connection.execute(query.order_by(slot.c.scheduled_at, slot.c.event_id).limit(limit))
    return [assigned(*row) for row in rows]


def survey(connection: Connection, name: str, look: Callable[[PolicyVersion, Occupancy, int], T]) -> T:
    """What a pure function makes of the config's windows."""
    version = active_version(connection, name)
    if version is None:
        raise NotFound("config", name)
    active = _load_policy(connection, name, version)
    ledger = SqlWindowReader(connection, name)
    return look(active, Occupancy(active.policy, ledger, chunk=SURVEY_CHUNK), _now_ms(connection, None))


def prune_ends(connection: Connection, before_ms: int) -> dict[str, int]:
    """For each config the start of the window that a time lies in: a window's slots are forgotten together. If some of
    them were missing while its counters stand, a resize would count the rest only, and offer their room again."""
    return {active.name: align(before_ms, active.policy.size_ms) for active in configs(connection)}


def prune_slots(connection: Connection, before_ms: int, limit: int, name: str | None = None) -> int:
    """Deletes up to `limit` slots scheduled before a time, of one config or of all."""
    old = sa.select(slot.c.event_id).where(slot.c.scheduled_at < from_ms(before_ms)).limit(limit)
    if name is not None:
        old = old.where(slot.c.config_name == name)
    return connection.execute(slot.delete().where(slot.c.event_id.in_(old))).rowcount


def prune_windows(connection: Connection, before_ms: int) -> int:
    """Deletes the counters and runs of windows that ended before a time."""
    removed = 0
    names = connection.execute(sa.select(slot_config.c.name).order_by(slot_config.c.name)).scalars().all()
    for name in names:
        active = lock_active(connection, name)
        assert active is not None
        last = from_ms(before_ms - active.policy.size_ms)
        removed += connection.execute(
            slot_window.delete().where(slot_window.c.config_name == name, slot_window.c.window_start <= last)
        ).rowcount
        connection.execute(
            slot_run.delete().where(slot_run.c.config_name == name, slot_run.c.resume_at <= from_ms(before_ms))
        )
    return removed


def lock_active(connection: Connection, name: str) -> PolicyVersion | None:
    """Locks the config's row until the transaction ends and returns its active version."""
    version = connection.execute(
        sa.select(slot_config.c.version).where(slot_config.c.name == name).with_for_update()
    ).scalar()
    return None if version is None else _load_policy(connection, name, version)


def write_occupancy(connection: Connection, name: str, occupancy: Occupancy) -> None:
    """Writes counters and runs back. Under the lock it is known which rows exist, so no upsert is needed."""
    counts = occupancy.changed_windows()
    new = [count for count in counts if not occupancy.is_stored(count.start_ms)]
    old = [count for count in counts if occupancy.is_stored(count.start_ms)]
    _insert_windows(connection, name, new)
    if old:
        connection.execute(
            slot_window.update()
            .where(slot_window.c.config_name == name, slot_window.c.window_start == sa.bindparam("at"))
            .values(taken=sa.bindparam("held"), placed=sa.bindparam("ever")),
            [{"at": from_ms(start), "held": taken, "ever": placed} for start, taken, placed in old],
        )
    _write_runs(connection, name, occupancy.changed_runs())


def assigned(
    event_id: str,
    config_name: str,
    version: int,
    requested: datetime,
    window: datetime,
    scheduled: datetime,
    owner: str | None,
) -> AssignedSlot:
    """A stored row as the slot it is."""
    return AssignedSlot(event_id, config_name, version, to_ms(requested), to_ms(window), to_ms(scheduled), True, owner)


def _load_policy(connection: Connection, name: str, version: int) -> PolicyVersion:
    row = connection.execute(
        sa.select(slot_policy).where(slot_policy.c.name == name, slot_policy.c.version == version)
    ).one()
    return _policy_version(row)


def _policy_version(row: Row[Any]) -> PolicyVersion:
    return PolicyVersion(row.name, row.version, policy_from_json(row.policy), row.created_at)


@lru_cache(maxsize=256)
def policy_from_json(text: str) -> WindowPolicy:
    """A stored policy. Remembered: every booking reads it, and a calendar remembers the days it has worked out."""
    stored = json.loads(text)
    return WindowPolicy(
        stored["maxPerWindow"], stored["windowSize"], stored["spread"], stored["calendar"], stored["maxDelay"]
    )


def _recount(connection: Connection, name: str, policy: WindowPolicy, now_ms: int) -> None:
    """Counts the booked slots again, in windows of the new size."""
    size = policy.size_ms
    connection.execute(slot_window.delete().where(slot_window.c.config_name == name))
    ahead = (slot.c.config_name == name) & (slot.c.scheduled_at >= from_ms(align(now_ms, size)))
    if connection.dialect.name == "postgresql":
        # Counted where the slots are: a hundred thousand windows would take half a minute to be sent back.
        start = sa.func.date_bin(policy.window, slot.c.scheduled_at, EPOCH, type_=slot.c.scheduled_at.type)
        counted = sa.select(sa.literal(name), start, sa.func.count(), sa.func.count()).where(ahead).group_by(start)
        connection.execute(slot_window.insert().from_select(list(slot_window.c.keys()), counted))
        return
    times = connection.execute(sa.select(slot.c.scheduled_at).where(ahead).order_by(slot.c.scheduled_at)).scalars()
    counts = []
    for start_ms, group in groupby(align(to_ms(at), size) for at in times):
        taken = sum(1 for _ in group)
        counts.append(WindowCount(start_ms, taken, taken))
    _insert_windows(connection, name, counts)


def _rebuild_runs(connection: Connection, name: str, policy: WindowPolicy, now_ms: int) -> None:
    connection.execute(slot_run.delete().where(slot_run.c.config_name == name))
    full = connection.execute(
        sa.select(slot_window.c.window_start, slot_window.c.taken, slot_window.c.placed)
        .where(
            slot_window.c.config_name == name,
            slot_window.c.window_start >= from_ms(align(now_ms, policy.size_ms)),
            slot_window.c.taken >= policy.max_per_window,
        )
        .order_by(slot_window.c.window_start)
    )
    counts = (WindowCount(to_ms(start), taken, placed) for start, taken, placed in full)
    _write_runs(connection, name, RunChanges([], full_runs(counts, policy)))


def _write_runs(connection: Connection, name: str, changes: RunChanges) -> None:
    if changes.removed:
        connection.execute(
            slot_run.delete().where(slot_run.c.config_name == name, slot_run.c.window_start == sa.bindparam("at")),
            [{"at": from_ms(start)} for start in changes.removed],
        )
    if changes.written and connection.dialect.name == "postgresql":
        starts, resumes = zip(*changes.written, strict=True)
        connection.execute(_INSERT_RUNS, {"name": name, "starts": list(starts), "resumes": list(resumes)})
    elif changes.written:
        connection.execute(
            slot_run.insert(),
            [
                {"config_name": name, "window_start": from_ms(start), "resume_at": from_ms(resume)}
                for start, resume in changes.written
            ],
        )


def _insert_windows(connection: Connection, name: str, counts: Iterable[WindowCount]) -> None:
    rows = [
        {"config_name": name, "window_start": from_ms(start), "taken": taken, "placed": placed}
        for start, taken, placed in counts
    ]
    if rows:
        connection.execute(slot_window.insert(), rows)


def _insert_slots(connection: Connection, slots: Sequence[AssignedSlot], created_at: datetime) -> None:
    if connection.dialect.name == "sqlite":
        _insert_slots_sqlite(connection, slots, created_at)
        return
    connection.execute(
        slot.insert(),
        [
            {
                "event_id": event_id,
                "config_name": name,
                "config_version": version,
                "requested_at": from_ms(requested),
                "window_start": from_ms(window),
                "scheduled_at": from_ms(scheduled),
                "created_at": created_at,
                "owner": owner,
            }
            for event_id, name, version, requested, window, scheduled, _, owner in slots
        ],
    )


def _insert_slots_sqlite(connection: Connection, slots: Sequence[AssignedSlot], created_at: datetime) -> None:
    """The same insert with the text form of times made here: SQLAlchemy's own conversion costs more than SQLite."""
    text = InstantText()
    created = text(to_ms(created_at)) + "000"
    connection.exec_driver_sql(
        "INSERT INTO headgate_slot (event_id, config_name, config_version, requested_at, window_start, scheduled_at,"
        " created_at, owner) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                event_id,
                name,
                version,
                text(requested) + "000",
                text(window) + "000",
                text(scheduled) + "000",
                created,
                owner,
            )
            for event_id, name, version, requested, window, scheduled, _, owner in slots
        ],
    )


def _now_ms(connection: Connection, now_ms: int | None) -> int:
    return to_ms(now(connection)) if now_ms is None else now_ms
