"""What is missing of a config's past: slots that were pruned, and the counters of an idle config that was deleted.

The window of now may become longer, and then begins earlier: it is counted again from its slots. If some of them are
gone, nobody knows how many, and nothing more is booked in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from paceline.durations import EPOCH, from_ms, to_ms
from paceline.slots.model import LONGEST_WINDOW
from paceline.slots.stores.tables import slot_forgotten
from paceline.sql.in_lists import where_in
from paceline.sql.schema import execute_rows


class Forgotten(NamedTuple):
    """The times before which slots, and counters, of a config may be missing; 0 if none are."""

    slots_ms: int
    counters_ms: int


NOTHING = Forgotten(0, 0)


def load(connection: Connection, name: str) -> Forgotten:
    """What is missing of a config."""
    query = sa.select(slot_forgotten.c.slots_until, slot_forgotten.c.counters_until)
    row = connection.execute(query.where(slot_forgotten.c.config_name == name)).first()
    return NOTHING if row is None else Forgotten(to_ms(row.slots_until), to_ms(row.counters_until))


def missing_after(connection: Connection, names: Sequence[str], after_ms: int) -> list[str]:
    """Those of these configs of which slots or counters after a time may be missing."""
    missing: list[str] = []
    after = from_ms(after_ms)
    for these in where_in(connection, slot_forgotten.c.config_name, names):
        is_after = (slot_forgotten.c.slots_until > after) | (slot_forgotten.c.counters_until > after)
        missing += connection.execute(sa.select(slot_forgotten.c.config_name).where(these, is_after)).scalars()
    return missing


def note_slots(connection: Connection, until_ms: Mapping[str, int]) -> None:
    """Notes that slots of these configs are deleted, by the time until which they are."""
    _note(connection, slot_forgotten.c.slots_until, until_ms)


def note_counters(connection: Connection, until_ms: Mapping[str, int]) -> None:
    """Notes that counters of these configs are deleted, by the time until which they are."""
    _note(connection, slot_forgotten.c.counters_until, until_ms)


def remove_old(connection: Connection, before_ms: int) -> None:
    """Deletes notes that no window of the longest size can reach back to."""
    before = from_ms(before_ms) - LONGEST_WINDOW
    connection.execute(
        slot_forgotten.delete().where(slot_forgotten.c.slots_until < before, slot_forgotten.c.counters_until < before)
    )


def _note(connection: Connection, column: sa.Column[datetime], until_ms: Mapping[str, int]) -> None:
    """Writes later times; keeps earlier ones."""
    names = sorted(until_ms)
    known: set[str] = set()
    for listed in where_in(connection, slot_forgotten.c.config_name, names):
        known.update(connection.execute(sa.select(slot_forgotten.c.config_name).where(listed)).scalars().all())
    later = slot_forgotten.update().where(
        slot_forgotten.c.config_name == sa.bindparam("b_name"), column < sa.bindparam("b_until")
    )
    later = later.values({column: sa.bindparam("b_until")})
    rows = [{"b_name": name, "b_until": from_ms(until_ms[name])} for name in names if name in known]
    execute_rows(connection, later, rows)
    nothing = {"slots_until": EPOCH, "counters_until": EPOCH}
    new = [name for name in names if name not in known]
    rows = [{**nothing, "config_name": name, column.name: from_ms(until_ms[name])} for name in new]
    execute_rows(connection, slot_forgotten.insert(), rows)
