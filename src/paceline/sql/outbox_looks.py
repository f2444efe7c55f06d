"""Looks of readers into the outbox: the leases of their topics, and which records are available.

Readers of one process that look at the same time share a transaction, so an idle process has few.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache, lru_cache
from math import inf
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from paceline.sql.engine import Database
from paceline.sql.outbox_tables import outbox, outbox_reader
from paceline.sql.schema import database_now, now


class Look(NamedTuple):
    """A reader's look at its topic."""

    topic: str
    owner: str
    max_records: int
    is_leased: bool
    """Whether the reader held the topic's lease when it looked last."""
    renews: bool
    """Whether that lease is due for renewal."""


class View(NamedTuple):
    """What a look finds."""

    is_leased: bool
    """Whether the reader holds the lease."""
    free_in: float = 0.0
    """The seconds until another reader's lease ends."""
    ids: Sequence[int] = ()
    """The topic's oldest available records; none without the lease."""
    available_in: float = inf
    """The seconds until a further record is available, if no more are now."""


async def look(database: Database, looks: Sequence[Look], span: timedelta) -> list[View]:
    """One view for each look. Writes only if a lease is free, or due for renewal.

    Raises:
        Conflict: another process took a lease at the same moment.
    """
    waits: Mapping[Look, float] = {}
    if seeking := [each for each in looks if not each.is_leased]:
        waits = await database.read(free_after, seeking)
    open_looks = [each for each in looks if each not in waits]
    if any(each.renews or not each.is_leased for each in open_looks):
        found = await database.write(lease_and_read, open_looks, span)
    elif open_looks:
        found = await database.read(available, open_looks)
    else:
        found = {}
    return [found.get(each) or View(is_leased=False, free_in=waits.get(each, 0.0)) for each in looks]


def lease_and_read(connection: Connection, looks: Sequence[Look], span: timedelta) -> dict[Look, View]:
    """Takes or renews leases, and reads the topics whose lease is the reader's then."""
    owners = [each.owner for each in looks if each.is_leased]
    is_renewed = False
    if owners and connection.dialect.name == "postgresql":
        # The statement reads the clock itself, which saves a round trip.
        is_renewed = connection.execute(_RENEW_FOR, {"owners": owners, "span": span}).rowcount == len(owners)
    elif owners:
        until = now(connection) + span
        is_renewed = connection.execute(_RENEW_UNTIL, {"owners": owners, "until": until}).rowcount == len(owners)
    # In one order in every process: two that wait for each other's rows would deadlock.
    ordered = sorted(looks, key=lambda each: each.topic)
    return available(
        connection,
        [
            each
            for each in ordered
            if (each.is_leased and is_renewed) or lease(connection, each.topic, each.owner, span)
        ],
    )


def available(connection: Connection, looks: Sequence[Look]) -> dict[Look, View]:
    """The views of readers that hold their leases."""
    reading = [each for each in looks if each.max_records]
    ids: dict[str, list[int]] = {each.topic: [] for each in looks}
    if reading:
        values: dict[str, Any] = {}
        for number, each in enumerate(reading):
            values |= {f"topic_{number}": each.topic, f"limit_{number}": each.max_records}
        if connection.dialect.name == "sqlite":
            values["at"] = now(connection)
        statement = _first_ids(len(reading), is_sqlite=connection.dialect.name == "sqlite")
        for topic, position in connection.execute(statement, values):
            ids[topic].append(position)
    waits = available_after(connection, [each.topic for each in reading if len(ids[each.topic]) < each.max_records])
    return {
        each: View(is_leased=True, ids=sorted(ids[each.topic]), available_in=waits.get(each.topic, inf))
        for each in looks
    }


def available_after(connection: Connection, topics: Sequence[str]) -> dict[str, float]:
    """The seconds until the next record of each topic is available, of topics whose other records are."""
    if not topics:
        return {}
    values: dict[str, Any] = {"topics": topics}
    is_sqlite = connection.dialect.name == "sqlite"
    if is_sqlite:
        values["at"] = now(connection)
    rows = connection.execute(_next_available(is_sqlite=is_sqlite), values)
    return {topic: (first - moment).total_seconds() for topic, first, moment in rows}


def first_ids(connection: Connection, topic: str, max_records: int) -> list[int]:
    """The oldest records of a topic that are available."""
    (view,) = available(connection, [Look(topic, "", max_records, is_leased=True, renews=False)]).values()
    return list(view.ids)


_renewed = outbox_reader.update().where(outbox_reader.c.owner.in_(sa.bindparam("owners", expanding=True)))
_RENEW_UNTIL = _renewed.values(leased_until=sa.bindparam("until"))
_RENEW_FOR = _renewed.values(leased_until=database_now() + sa.bindparam("span", type_=sa.Interval))


_READERS = sa.select(outbox_reader).where(outbox_reader.c.topic.in_(sa.bindparam("topics", expanding=True)))


@cache
def _next_available(*, is_sqlite: bool) -> sa.Select[Any]:
    at: Any = sa.bindparam("at", type_=outbox.c.available_at.type) if is_sqlite else database_now()
    is_topic = outbox.c.topic.in_(sa.bindparam("topics", expanding=True))
    query = sa.select(outbox.c.topic, sa.func.min(outbox.c.available_at), at)
    return query.where(is_topic, outbox.c.available_at > at).group_by(outbox.c.topic)


@lru_cache(maxsize=32)
def _first_ids(topics: int, *, is_sqlite: bool) -> sa.Select[Any] | sa.CompoundSelect[Any]:
    """A statement is made once: that takes longer than to run it."""
    # An idle reader asks this most: the clock is read by the same statement, where it takes one to read it.
    at: Any = sa.bindparam("at", type_=outbox.c.available_at.type) if is_sqlite else database_now()
    selects = []
    for number in range(topics):
        query = (
            sa.select(outbox.c.topic, outbox.c.id)
            .where(outbox.c.topic == sa.bindparam(f"topic_{number}"))
            .where(sa.or_(outbox.c.available_at.is_(None), outbox.c.available_at <= at))
            .order_by(outbox.c.id)
            .limit(sa.bindparam(f"limit_{number}", type_=sa.Integer))
        )
        # SQLite takes no parentheses around a part of a union, and a part without them has no order.
        selects.append(sa.select(query.subquery(f"look_{number}")) if topics > 1 else query)
    return selects[0] if topics == 1 else sa.union_all(*selects)


def free_after(connection: Connection, looks: Sequence[Look]) -> dict[Look, float]:
    """The looks at topics of which another reader holds the lease, and for how many seconds."""
    rows = {row.topic: row for row in connection.execute(_READERS, {"topics": [each.topic for each in looks]})}
    if not rows:
        return {}
    at = now(connection)
    return {
        each: (rows[each.topic].leased_until - at).total_seconds()
        for each in looks
        if each.topic in rows and _is_held_by_another(rows[each.topic], each.owner, at)
    }


def lease(connection: Connection, topic: str, owner: str, span: timedelta) -> bool:
    """Takes the topic's lease, or renews it; False if another holds it."""
    is_topic = outbox_reader.c.topic == topic
    row = connection.execute(sa.select(outbox_reader).where(is_topic).with_for_update()).first()
    at = now(connection)
    if row is None:
        connection.execute(outbox_reader.insert().values(topic=topic, owner=owner, leased_until=at + span))
        return True
    if _is_held_by_another(row, owner, at):
        return False
    connection.execute(outbox_reader.update().where(is_topic).values(owner=owner, leased_until=at + span))
    return True


def _is_held_by_another(row: Any, owner: str, at: datetime) -> bool:
    return bool(row.owner != owner and row.leased_until > at)
