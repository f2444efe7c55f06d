"""The configs' policies: plain functions over a connection, and the lock that every writer of a config takes first."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from paceline.slots.model import PolicyVersion, WindowPolicy
from paceline.slots.stores.tables import slot_config, slot_policy

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


def configs(connection: Connection) -> list[PolicyVersion]:
    """The active version of every config, by name."""
    active = (slot_config.c.name == slot_policy.c.name) & (slot_config.c.version == slot_policy.c.version)
    rows = connection.execute(sa.select(slot_policy).join(slot_config, active))
    # Sorted here: databases order text by different collations.
    return sorted((_policy_version(row) for row in rows), key=lambda version: version.name)


def lock_active(connection: Connection, name: str) -> PolicyVersion | None:
    """Locks the config's row until the transaction ends and returns its active version."""
    version = connection.execute(LOCK, {"name": name}).scalar()
    return None if version is None else load_policy(connection, name, version)


def find_active(connection: Connection, name: str) -> PolicyVersion | None:
    """The config's active version, without its lock."""
    version = active_version(connection, name)
    return None if version is None else load_policy(connection, name, version)


def lock_all(connection: Connection, names: Iterable[str]) -> dict[str, PolicyVersion]:
    """Locks the rows of several configs, in the order of their names, and returns the active versions."""
    locked = {name: lock_active(connection, name) for name in sorted(names)}
    return {name: active for name, active in locked.items() if active is not None}


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
    )
