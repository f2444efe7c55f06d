"""What is booked under the configs that follow a template, for previews of its changes.

Slots have no index by config, so the slots of all followers are read at once: one config after another would read all
slots as often as there are configs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from paceline.durations import EPOCH, from_ms, to_ms
from paceline.slots.forecast.impact import WindowGroup
from paceline.slots.model import PolicyVersion
from paceline.slots.stores import policies
from paceline.slots.stores.other_windows import other_names
from paceline.slots.stores.slot_records import is_beyond
from paceline.slots.stores.tables import slot, slot_config, slot_forgotten, slot_window
from paceline.slots.stores.window_rows import stored_ms, stored_time
from paceline.slots.windows import align
from paceline.sql.schema import now

T = TypeVar("T")


def survey(
    connection: Connection,
    template: str,
    size_ms: int,
    look: Callable[[PolicyVersion, Iterable[WindowGroup]], T],
) -> list[T]:
    """The results of a pure function over the followers' windows, one for each version of the template in use."""
    is_follower = slot_config.c.template == template
    versions = connection.execute(sa.select(slot_config.c.version).where(is_follower).distinct()).scalars().all()
    now_ms = to_ms(now(connection))
    results = []
    for version in sorted(versions):
        active = policies.load_policy(connection, template, version)
        names = sa.select(slot_config.c.name).where(is_follower, slot_config.c.version == version)
        is_counted = size_ms == active.policy.size_ms and not _is_partly_gone(connection, names, align(now_ms, size_ms))
        windows = _counted if is_counted else _recounted
        results.append(look(active, windows(connection, names, size_ms, now_ms)))
    return results


def count_beyond(connection: Connection, template: str, max_delay_ms: int) -> int:
    """The number of future slots of followers that lie more than `max_delay_ms` after their requested time and their
    booking. A slot of several followers is counted once."""
    names = sa.select(slot_config.c.name).where(slot_config.c.template == template)
    beyond = (slot.c.scheduled_at > now(connection)) & is_beyond(connection, max_delay_ms)
    is_first = slot.c.config_name.in_(names)
    count = connection.execute(sa.select(sa.func.count()).select_from(slot).where(beyond, is_first)).scalar_one()
    followers = set(connection.execute(names).scalars())
    others = connection.execute(
        sa.select(slot.c.other_windows).where(beyond, slot.c.other_windows.is_not(None), ~is_first)
    ).scalars()
    return count + sum(not followers.isdisjoint(other_names(text)) for text in others)


def _is_partly_gone(connection: Connection, names: sa.Select[Any], start_ms: int) -> bool:
    """Whether slots after a time were pruned of one of these configs: its counters say more than it has."""
    gone = (slot_forgotten.c.slots_until > from_ms(start_ms)) & slot_forgotten.c.config_name.in_(names)
    return connection.execute(sa.select(slot_forgotten.c.config_name).where(gone).limit(1)).scalar() is not None


def _counted(connection: Connection, names: sa.Select[Any], size_ms: int, now_ms: int) -> Iterable[WindowGroup]:
    """The counted windows of these configs."""
    columns = slot_window.c.window_start, slot_window.c.taken
    start_ms = align(now_ms, size_ms)
    counted = slot_window.c.config_name.in_(names) & (slot_window.c.taken > 0)
    present = connection.execute(
        sa.select(slot_window.c.config_name, slot_window.c.taken).where(
            counted, slot_window.c.window_start == from_ms(start_ms)
        )
    ).all()
    if present:
        passed = _slots_by_window(connection, names, size_ms, _passed(start_ms, now_ms))
        for name, taken in present:
            yield WindowGroup(start_ms, taken, passed[name, start_ms])
    rows = connection.execute(
        sa.select(*columns, sa.func.count())
        .where(counted, slot_window.c.window_start > from_ms(start_ms))
        .group_by(*columns)
    )
    for start, taken, configs in rows:
        yield WindowGroup(to_ms(start), taken, configs=configs)


def _passed(start_ms: int, now_ms: int) -> sa.ColumnElement[bool]:
    """Selects the slots of the present window that lie in the past."""
    return sa.and_(slot.c.scheduled_at >= from_ms(start_ms), slot.c.scheduled_at < from_ms(now_ms))


def _recounted(connection: Connection, names: sa.Select[Any], size_ms: int, now_ms: int) -> Iterable[WindowGroup]:
    """The slots of these configs, counted in windows of another size."""
    passed = _slots_by_window(connection, names, size_ms, _passed(align(now_ms, size_ms), now_ms))
    taken = passed + _slots_by_window(connection, names, size_ms, slot.c.scheduled_at >= from_ms(now_ms))
    groups = Counter((window[1], count, passed[window]) for window, count in taken.items())
    return (WindowGroup(*group, configs) for group, configs in groups.items())


def _slots_by_window(
    connection: Connection, names: sa.Select[Any], size_ms: int, selected: sa.ColumnElement[bool]
) -> Counter[tuple[str, int]]:
    """How many of the selected slots lie in each window of each of these configs."""
    columns = slot.c.config_name, slot.c.other_windows
    charged = slot.c.other_windows.is_not(None) | slot.c.config_name.in_(names)
    rows: Iterable[tuple[str, str | None, int, int]]
    if connection.dialect.name == "postgresql":
        size = timedelta(milliseconds=size_ms)
        start = sa.func.date_bin(size, slot.c.scheduled_at, EPOCH, type_=slot.c.scheduled_at.type)
        grouped = sa.select(*columns, start, sa.func.count()).where(selected, charged).group_by(*columns, start)
        rows = ((name, others, to_ms(at), count) for name, others, at, count in connection.execute(grouped))
    else:
        ms = stored_ms(connection)
        each = sa.select(*columns, stored_time(connection, slot.c.scheduled_at)).where(selected, charged)
        rows = ((name, others, align(ms(at), size_ms), 1) for name, others, at in connection.execute(each))
    followers = set(connection.execute(names).scalars())
    counts: Counter[tuple[str, int]] = Counter()
    for name, others, start_ms, count in rows:
        for config in (name, *other_names(others)):
            if config in followers:
                counts[config, start_ms] += count
    return counts
