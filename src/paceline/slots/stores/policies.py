"""The configs' policies: plain functions over a connection, and the lock that every writer of a config takes first."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from paceline.errors import Conflict
from paceline.slots.listing import ListedConfig, config_page
from paceline.slots.model import PolicyVersion, WindowPolicy
from paceline.slots.stores.tables import slot_config, slot_policy
from paceline.slots.templates import is_template
from paceline.sql.in_lists import where_in

LOCK = sa.select(slot_config.c.version).where(slot_config.c.name == sa.bindparam("name")).with_for_update()
_POLICY = sa.select(slot_policy).where(
    slot_policy.c.name == sa.bindparam("name"), slot_policy.c.version == sa.bindparam("version")
)


def active_version(connection: Connection, name: str) -> int | None:
    """The number of a config's active version, without its lock."""
    return connection.execute(sa.select(slot_config.c.version).where(slot_config.c.name == name)).scalar()


def history(connection: Connection, name: str) -> list[PolicyVersion]:
    """Every version of a config, newest first."""
    rows = connection.execute(
        sa.select(slot_policy).where(slot_policy.c.name == name).order_by(slot_policy.c.version.desc())
    )
    return [_policy_version(row) for row in rows]


def configs(connection: Connection, following: bool = False) -> list[PolicyVersion]:
    """The active version of every config, by name; or of those that follow a downstream."""
    active = (slot_config.c.name == slot_policy.c.name) & (slot_config.c.version == slot_policy.c.version)
    query = sa.select(slot_policy).join(slot_config, active)
    if following:
        query = query.where(slot_policy.c.policy.like('%"follow": "%'))  # thousands of others are not read
    rows = connection.execute(query)
    # Sorted here: databases order text by different collations.
    return sorted((_policy_version(row) for row in rows), key=lambda version: version.name)


def search_configs(
    connection: Connection, search: str, template: str | None, after: str | None, limit: int
) -> list[ListedConfig]:
    """A page of configs. The names are few bytes each; only the page's policies are read."""
    names = sa.select(slot_config.c.name)
    if template is not None:
        names = names.where(slot_config.c.template == template if template else slot_config.c.template.is_(None))
    page = config_page(connection.execute(names).scalars(), search, after, limit)
    followed, followers = templates_of(connection, page), _count_followers(connection, page)
    return [
        ListedConfig(version, followed.get(version.name), followers.get(version.name, 0))
        for version in sorted(load_all(connection, page), key=lambda version: version.name)
    ]


def _count_followers(connection: Connection, names: Sequence[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for these in where_in(connection, slot_config.c.template, [name for name in names if is_template(name)]):
        query = sa.select(slot_config.c.template, sa.func.count()).where(these).group_by(slot_config.c.template)
        counts.update((name, count) for name, count in connection.execute(query))
    return counts


def lock_active(connection: Connection, name: str) -> PolicyVersion | None:
    """Locks the config's row until the transaction ends and returns its active version."""
    return lock_all(connection, [name]).get(name)


def find_active(connection: Connection, name: str) -> PolicyVersion | None:
    """The config's active version, without its lock."""
    version = active_version(connection, name)
    return None if version is None else load_policy(connection, name, version)


def lock_all(connection: Connection, names: Iterable[str]) -> dict[str, PolicyVersion]:
    """Locks the rows of several configs, in the order of their names, and returns the active versions."""
    locked = lock_versions(connection, sorted(names))
    return {active.name: active for active in load_all(connection, list(locked))}


def lock_versions(connection: Connection, names: Sequence[str]) -> dict[str, int]:
    """Locks the rows of those configs that there are, in the order of the names, and returns their active versions.

    Raises:
        LockTimeout: on PostgreSQL, one of the locks did not become free in time.
    """
    if connection.dialect.name == "sqlite":  # the whole database is locked
        return _versions(connection, names)
    if connection.dialect.name == "postgresql":
        # Imported here: the driver is an extra that SQLite's users do not have.
        from paceline.slots.stores import postgres_locks

        return postgres_locks.lock(connection, sorted(names))
    versions = {name: connection.execute(LOCK, {"name": name}).scalar() for name in sorted(names)}
    return {name: version for name, version in versions.items() if version is not None}


def lock_new(connection: Connection, names: Sequence[str]) -> dict[str, int]:
    """As `lock_versions`, of configs that were not there before; without waiting, as the caller holds later locks.

    Raises:
        Conflict: another transaction has locked one of them.
    """
    locked: dict[str, int] = {}
    for these in where_in(connection, slot_config.c.name, sorted(names)):
        query = sa.select(slot_config.c.name, slot_config.c.version).where(these)
        locked.update((name, version) for name, version in connection.execute(query.with_for_update(skip_locked=True)))
    if len(locked) < len(_versions(connection, names)):
        raise Conflict
    return locked


def _versions(connection: Connection, names: Sequence[str]) -> dict[str, int]:
    versions: dict[str, int] = {}
    for these in where_in(connection, slot_config.c.name, names):
        rows = connection.execute(sa.select(slot_config.c.name, slot_config.c.version).where(these))
        versions.update((name, version) for name, version in rows)
    return versions


def load_all(connection: Connection, names: Sequence[str]) -> list[PolicyVersion]:
    """The active versions of configs."""
    active = (slot_config.c.name == slot_policy.c.name) & (slot_config.c.version == slot_policy.c.version)
    loaded: list[PolicyVersion] = []
    for these in where_in(connection, slot_config.c.name, names):
        rows = connection.execute(sa.select(slot_policy).join(slot_config, active).where(these))
        loaded += map(_policy_version, rows)
    return loaded


def templates_of(connection: Connection, names: Sequence[str]) -> dict[str, str]:
    """The templates of those of these configs that follow one."""
    templates: dict[str, str] = {}
    for these in where_in(connection, slot_config.c.name, names):
        query = sa.select(slot_config.c.name, slot_config.c.template).where(these, slot_config.c.template.is_not(None))
        templates.update((name, template) for name, template in connection.execute(query))
    return templates


def load_policy(connection: Connection, name: str, version: int) -> PolicyVersion:
    return _policy_version(connection.execute(_POLICY, {"name": name, "version": version}).one())


def _policy_version(row: Row[Any]) -> PolicyVersion:
    return PolicyVersion(row.name, row.version, policy_from_json(row.policy), row.created_at)


@lru_cache(maxsize=256)
def policy_from_json(text: str) -> WindowPolicy:
    """A stored policy. Cached: every booking reads it, and a calendar caches its computed days."""
    stored = json.loads(text)
    return WindowPolicy(
        stored["maxPerWindow"],
        stored["windowSize"],
        stored["spread"],
        stored["calendar"],
        stored["maxDelay"],
        stored["firstWindow"],
        stored["curve"],
        stored["follow"],
        stored["fullMaxPerWindow"],
    )
