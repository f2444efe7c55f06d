"""Booking on SQLite, by the driver's own calls: SQLAlchemy takes longer to prepare a statement than SQLite to run it,
and a booking of a few events takes a dozen. Times are passed as the text in which they are stored.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy.engine import Connection

from paceline.slots.booking.packer import Side
from paceline.slots.model import AssignedSlot, PolicyVersion, SlotRequest
from paceline.slots.occupancy import FullRun, Occupancy, RunChanges, WindowCount
from paceline.slots.stores.other_windows import name_in_text, other_windows_text, parse_other_windows
from paceline.slots.stores.sql import Booker
from paceline.slots.stores.window_rows import FEW_WINDOWS, SqlWindowReader, read_ahead, window_queries
from paceline.sql.schema import instant_ms, instant_text, sqlite_connection

# A cross join, which SQLite never reorders; for an IN list it would sort the ids first.
_SLOTS = """
    SELECT event_id, config_name, config_version, requested_at, window_start, scheduled_at, owner, other_windows
    FROM json_each(?) AS listed CROSS JOIN paceline_slot ON event_id = listed.value
"""
# Without a column that is null: the driver looks for an adapter for every None, which takes as long as the insert.
_INSERT_SLOT = """
    INSERT INTO paceline_slot (event_id, config_name, config_version, requested_at, window_start, scheduled_at,
        created_at)
    VALUES (?, ?, ?, ?, ?, ?, ?)
"""
_INSERT_OTHER_SLOT = """
    INSERT INTO paceline_slot (event_id, config_name, config_version, requested_at, window_start, scheduled_at,
        created_at, owner, other_windows)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_WINDOWS_FROM = """
    SELECT window_start, taken, placed FROM paceline_slot_window
    WHERE config_name = ? AND window_start >= ? ORDER BY window_start LIMIT ?
"""
_INSERT_WINDOW = "INSERT INTO paceline_slot_window (taken, placed, config_name, window_start) VALUES (?, ?, ?, ?)"
_UPDATE_WINDOW = "UPDATE paceline_slot_window SET taken = ?, placed = ? WHERE config_name = ? AND window_start = ?"
_RUN_BEFORE = """
    SELECT window_start, resume_at FROM paceline_slot_run
    WHERE config_name = ? AND window_start <= ? ORDER BY window_start DESC LIMIT 1
"""
_TIMES = """
    SELECT scheduled_at FROM paceline_slot
    WHERE scheduled_at >= ? AND scheduled_at < ? AND (config_name = ? OR instr(other_windows, ?) > 0)
    ORDER BY scheduled_at LIMIT ?
"""
_REMOVE_RUN = "DELETE FROM paceline_slot_run WHERE config_name = ? AND window_start = ?"
_INSERT_RUN = "INSERT INTO paceline_slot_run (config_name, window_start, resume_at) VALUES (?, ?, ?)"


FIRST_CHUNK = 2
"""The number of windows in the first read. After a full one the full run is looked up, so it needs no more."""


class SqliteBooker(Booker):
    """Books in the one write transaction that SQLite allows at a time."""

    def _existing(self, connection: Connection, event_ids: Sequence[str]) -> dict[str, AssignedSlot]:
        return _existing(sqlite_connection(connection), event_ids)

    def _side(
        self, connection: Connection, active: PolicyVersion, requests: Sequence[SlotRequest], now_ms: int
    ) -> Side:
        reader = SqliteWindowReader(connection, active.name, sqlite_connection(connection))
        occupancy = Occupancy(active.policy, reader, first_chunk=FIRST_CHUNK)
        if len({requested_ms for _, requested_ms in requests}) > FEW_WINDOWS:
            read_ahead(reader, occupancy, window_queries(active.policy, requests, now_ms))
        return Side(active, occupancy)

    def _write(
        self, connection: Connection, fresh: Sequence[AssignedSlot], sides: Mapping[str, Side], now_ms: int
    ) -> None:
        driver = sqlite_connection(connection)
        _insert_slots(driver, fresh, now_ms)
        for name, side in sides.items():
            if side.occupancy.is_changed:
                _write_counts(driver, name, side.occupancy)
                _write_runs(driver, name, side.occupancy.changed_runs())


@dataclass(slots=True)
class SqliteWindowReader(SqlWindowReader):
    """`SqlWindowReader`, with the two reads of every booking."""

    driver: sqlite3.Connection

    def windows_from(self, start_ms: int, limit: int) -> list[WindowCount]:
        rows = self.driver.execute(_WINDOWS_FROM, (self.name, instant_text(start_ms), limit))
        return [WindowCount(instant_ms(start), taken, placed) for start, taken, placed in rows]

    def times(self, from_ms: int, until_ms: int, limit: int) -> list[int]:
        span = instant_text(from_ms), instant_text(until_ms)
        rows = self.driver.execute(_TIMES, (*span, self.name, name_in_text(self.name), limit))
        return [instant_ms(at) for (at,) in rows]

    def run_before(self, start_ms: int) -> FullRun | None:
        row = self.driver.execute(_RUN_BEFORE, (self.name, instant_text(start_ms))).fetchone()
        return None if row is None else FullRun(instant_ms(row[0]), instant_ms(row[1]))


def _existing(driver: sqlite3.Connection, event_ids: Sequence[str]) -> dict[str, AssignedSlot]:
    """The slots that these events have, by event."""
    slots: dict[str, AssignedSlot] = {}
    for row in driver.execute(_SLOTS, (json.dumps(event_ids),)):
        event_id, name, version, requested, window, scheduled, owner, others = row
        times = instant_ms(requested), instant_ms(window), instant_ms(scheduled)
        slots[event_id] = AssignedSlot(event_id, name, version, *times, True, owner, parse_other_windows(others))
    return slots


def _insert_slots(driver: sqlite3.Connection, slots: Sequence[AssignedSlot], now_ms: int) -> None:
    created_at = instant_text(now_ms)
    # Many events have the same requested time, or lie in the same window.
    texts = {ms: instant_text(ms) for ms in {slot[3] for slot in slots} | {slot[4] for slot in slots}}
    plain, others = [], []
    for event_id, name, version, at, window, place, _, owner, windows in slots:
        row = (event_id, name, version, texts[at], texts[window], instant_text(place), created_at)
        if owner is None and not windows:
            plain.append(row)
        else:
            others.append((*row, owner, other_windows_text(windows)))
    driver.executemany(_INSERT_SLOT, plain)
    driver.executemany(_INSERT_OTHER_SLOT, others)


def _write_counts(driver: sqlite3.Connection, name: str, occupancy: Occupancy) -> None:
    """Writes counters back. Under the lock, the existing rows are known."""
    new: list[tuple[int, int, str, str]] = []
    old: list[tuple[int, int, str, str]] = []
    for start, taken, placed in occupancy.changed_windows():
        (old if start in occupancy.stored else new).append((taken, placed, name, instant_text(start)))
    driver.executemany(_INSERT_WINDOW, new)
    driver.executemany(_UPDATE_WINDOW, old)


def _write_runs(driver: sqlite3.Connection, name: str, changes: RunChanges) -> None:
    driver.executemany(_REMOVE_RUN, [(name, instant_text(start)) for start in changes.removed])
    rows = [(name, instant_text(start), instant_text(resume)) for start, resume in changes.written]
    driver.executemany(_INSERT_RUN, rows)
