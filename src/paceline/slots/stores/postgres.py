"""Booking on PostgreSQL in two flushes: one that locks and reads, one that writes and commits.

The portable path in `sql.py` runs one statement at a time, and holds the configs' locks over every round trip. Here the
statements are sent together (`paceline.sql.pipeline`). Which windows to read is guessed from the policies of the last
bookings, where their searches ended, and the host's clock; a wrong guess costs another flush or statement
(`SqlWindowReader`), never a wrong booking.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy.engine import Connection

from paceline.durations import to_ms
from paceline.slots.booking.packer import Packer, Side
from paceline.slots.booking.packing import Booking, GroupPacker, event_ids_of, names_of, requests_by_config
from paceline.slots.model import AssignedSlot, BookingGroup, PolicyVersion, SlotRequest
from paceline.slots.occupancy import FullRun, Occupancy
from paceline.slots.stores import postgres_windows
from paceline.slots.stores.other_windows import parse_other_windows
from paceline.slots.stores.postgres_locks import LOCK, SET_TIMEOUT
from paceline.slots.stores.postgres_windows import TimeReads, WindowReads
from paceline.slots.stores.sql import Booker
from paceline.slots.stores.window_rows import SqlWindowReader
from paceline.slots.windows import align
from paceline.sql.pipeline import (
    BEGIN,
    PLAN_BY_KEY,
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
from paceline.sql.schema import now

MAX_GUESSES = 10_000
"""The number of sets of configs whose last search's end is cached."""
GUESSED_LATE_MS = 100
"""Times of slots are read from this long before the host's clock on: the database's clock may be behind it."""

SETTINGS = Statement(
    "paceline_slot_settings",
    f"SELECT {PLAN_BY_KEY}, {SET_TIMEOUT}",
)
# Read before the lock, which is then held for less time. If another config's writer books the event in between, the
# insert violates the key, and the whole transaction is retried.
EXISTING = Statement(
    "paceline_slot_existing",
    """
    SELECT event_id, config_name, config_version, (extract(epoch FROM requested_at) * 1000)::bigint,
        (extract(epoch FROM window_start) * 1000)::bigint, (extract(epoch FROM scheduled_at) * 1000)::bigint, owner,
        other_windows
    FROM paceline_slot WHERE event_id = ANY($1::text[])
    """,
)
RUNS_BEFORE = Statement(
    "paceline_slot_runs_before",
    """
    SELECT requested.at, (extract(epoch FROM run.window_start) * 1000)::bigint,
        (extract(epoch FROM run.resume_at) * 1000)::bigint
    FROM unnest($2::bigint[]) AS requested(at)
    CROSS JOIN LATERAL (
        SELECT window_start, resume_at FROM paceline_slot_run
        WHERE config_name = $1 AND window_start <= 'epoch'::timestamptz + requested.at * interval '1 ms'
        ORDER BY window_start DESC LIMIT 1
    ) AS run
    """,
)


class PostgresWindowReader(SqlWindowReader):
    """A `SqlWindowReader` that reads many windows at once."""

    __slots__ = ()

    def runs_before(self, starts_ms: Sequence[int]) -> list[FullRun | None]:
        call = (RUNS_BEFORE, (self.name, numbers(starts_ms)))
        (rows,) = run_async(self.connection, lambda raw: execute_pipeline(raw, [call]))
        runs = {whole_of(at): FullRun(whole_of(start), whole_of(resume)) for at, start, resume in rows}
        return [runs.get(start) for start in starts_ms]


class Snapshot(NamedTuple):
    """The results of the first flush."""

    versions: dict[str, int]
    now_ms: int
    """When all configs were locked; 0 if there are none."""
    existing: dict[str, AssignedSlot]
    windows: Rows
    times: Rows


class Reached(NamedTuple):
    """Where a search under several configs ended, and the config whose windows it passed."""

    at_ms: int
    leader: str


class PostgresBooker(Booker):
    """Books in two flushes. A config's last policy is the guess for its next booking."""

    def __init__(self, uniform: Callable[[], float]) -> None:
        super().__init__(uniform)
        self._reached: dict[tuple[str, ...], Reached] = {}
        """By the names of several configs: where the last search under them ended."""

    def book(
        self, connection: Connection, groups: Sequence[BookingGroup], now_ms: int | None, template_configs: int
    ) -> list[list[Booking]]:
        guesses = {name: self._policies[name] for name in names_of(groups) if name in self._policies}
        guessed_now = int(time.time() * 1000) if now_ms is None else now_ms
        windows, times = self._guessed_reads(groups, guesses, guessed_now)
        snapshot: Snapshot = run_async(
            connection, lambda raw: _read(raw, names_of(groups), event_ids_of(groups), windows, times)
        )
        versions, at_ms, existing = snapshot.versions, snapshot.now_ms, snapshot.existing
        actives, unusable = self.actives(connection, groups, versions, existing, template_configs)
        if now_ms is not None:
            at_ms = now_ms
        elif len(actives) > len(versions) or not versions:
            at_ms = to_ms(now(connection))  # after the wait for a template's lock
        sides = {
            name: Side(active, Occupancy(active.policy, PostgresWindowReader(connection, name)))
            for name, active in actives.items()
        }
        guessed = {name: side.occupancy for name, side in sides.items() if guesses.get(name) is actives[name]}
        windows.learn(snapshot.windows, guessed)
        times.learn(snapshot.times, guessed)
        self._read_more(connection, groups, sides, guessed.keys(), at_ms)
        packer = GroupPacker(sides, unusable, at_ms, self._uniform)
        outcomes = packer.book(groups, existing)
        if packer.fresh:
            joint = {names: one for names, one in packer.packers.items() if len(names) > 1}
            if joint:
                self._note_reached(joint)
            changed = {name: side.occupancy for name, side in sides.items() if side.occupancy.is_changed}
            # Before the pipeline opens: joining runs may read from the database.
            runs = {name: one.changed_runs() for name, one in changed.items() if one.changes_runs}
            run_async(connection, lambda raw: postgres_windows.write(raw, changed, packer.fresh, runs, at_ms))
        return outcomes

    def _guessed_reads(
        self, groups: Sequence[BookingGroup], guesses: Mapping[str, PolicyVersion], now_ms: int
    ) -> tuple[WindowReads, TimeReads]:
        """What the configs that were booked before will probably need. Where the search under several configs passed
        the windows of one of them, only that one's first windows are read, and all of them where it will continue."""
        windows, times = WindowReads(), TimeReads()
        firsts: dict[str, list[SlotRequest]] = {}
        onward: dict[tuple[str, ...], int] = {}
        for names, requests, _ in groups:
            reached = self._reached.get(names) if len(names) > 1 else None
            read_first: Sequence[str] = names
            if reached is not None:
                reached_ms = reached.at_ms
                if reached_ms > now_ms and max([at for _, at in requests]) < reached_ms:
                    read_first = (reached.leader,)
                if read_first is not names or reached_ms > max(now_ms, requests[0][1]):
                    onward[names] = onward.get(names, 0) + len(requests)
            for name in read_first:
                if name in firsts:
                    firsts[name] += requests
                else:
                    firsts[name] = [*requests]
        for name, requests in firsts.items():
            if name in guesses:
                windows.add(guesses[name], requests, now_ms)
                times.add(guesses[name], requests, now_ms - GUESSED_LATE_MS)
        for names, count in onward.items():
            own = [guesses[name] for name in names if name in guesses]
            if len(own) == len(names):
                windows.add_from(own, self._reached[names].at_ms, count)
        return windows, times

    def _read_more(
        self,
        connection: Connection,
        groups: Sequence[BookingGroup],
        sides: Mapping[str, Side],
        guessed: Collection[str],
        now_ms: int,
    ) -> None:
        """Reads the windows of the configs that were not guessed; then, for each set of configs, those where its search
        continues, if one config's full run ends after the windows of the others that were read."""
        if len(guessed) < len(sides):
            windows, times = WindowReads(), TimeReads()
            for name, requests in requests_by_config(groups).items():
                if name in sides and name not in guessed:
                    windows.add(sides[name].active, requests, now_ms)
                    times.add(sides[name].active, requests, now_ms)
            self._learn(connection, windows, times, sides)
        onward = WindowReads()
        seen: set[tuple[str, ...]] = set()
        first_free: dict[int, dict[str, int]] = {}
        for names, requests, _ in groups:
            own = [sides[name] for name in names if name in sides]
            if len(names) == 1 or len(own) < len(names) or names in seen or not requests:
                continue
            seen.add(names)
            effective = max(requests[0][1], now_ms)
            known = first_free.setdefault(effective, {})
            for name, side in zip(names, own, strict=True):
                if name not in known:
                    known[name] = _first_free(side, effective)
            at = max([known[name] for name in names])
            behind = [side.active for side in own if not side.knows(at)]
            if behind:
                onward.add_from(behind, at, len(requests))
        self._learn(connection, onward, TimeReads(), sides)

    @staticmethod
    def _learn(connection: Connection, windows: WindowReads, times: TimeReads, sides: Mapping[str, Side]) -> None:
        of_windows, of_times = windows.calls(), times.calls()
        if not of_windows and not of_times:
            return
        rows = run_async(connection, lambda raw: execute_pipeline(raw, [*of_windows, *of_times]))
        occupancies = {name: side.occupancy for name, side in sides.items()}
        if of_windows:
            windows.learn(rows[0], occupancies)
        if of_times:
            times.learn(rows[-1], occupancies)

    def _note_reached(self, packers: Mapping[tuple[str, ...], Packer]) -> None:
        if len(self._reached) + len(packers) > MAX_GUESSES:
            self._reached = {}
        for names, packer in packers.items():
            self._reached[names] = Reached(packer.reached_ms, names[packer.leader])


def _first_free(side: Side, effective_ms: int) -> int:
    """The first instant at which a config may have room, as far as its windows were read."""
    policy, start = side.active.policy, align(effective_ms, side.size_ms)
    if not side.knows(start) or (policy.next_open(start) == start and side.offer(start, effective_ms).places > 0):
        return effective_ms
    return side.occupancy.first_known_free(policy.next_open(start + side.size_ms))


async def _read(
    raw: Raw, names: Sequence[str], event_ids: Sequence[str], windows: WindowReads, times: TimeReads
) -> Snapshot:
    """The first flush: begins, reads the events' existing slots, locks the configs, reads windows and times."""
    of_windows, of_times = windows.calls(), times.calls()
    calls: list[tuple[Statement, Sequence[str]]] = [
        (BEGIN, ()),
        (SETTINGS, ()),
        (EXISTING, (texts(event_ids),)),
        (LOCK, (texts(names),)),
        *of_windows,
        *of_times,
    ]
    _, _, existing, locked, *rows = await execute_pipeline(raw, calls)
    return Snapshot(
        {text_of(name): whole_of(version) for name, version, _ in locked},
        whole_of(locked[-1][2]) if locked else 0,
        {slot.event_id: slot for slot in map(_assigned, existing)},
        rows[0] if of_windows else [],
        rows[-1] if of_times else [],
    )


def _assigned(row: tuple[bytes | None, ...]) -> AssignedSlot:
    event_id, name, *rest, owner, other_windows = row
    assert event_id is not None
    assert name is not None
    version, requested, window, scheduled = map(whole_of, rest)
    owner_name = None if owner is None else owner.decode()
    others = parse_other_windows(None if other_windows is None else other_windows.decode())
    return AssignedSlot(
        event_id.decode(), name.decode(), version, requested, window, scheduled, True, owner_name, others
    )
