"""Configs that are made from a template, follow it, and are deleted when they are idle.

While a config follows its template, its version is the version of the template whose policy it has: a config that is
deleted and made again can't give an old version's number to another policy.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from paceline.durations import from_ms, to_ms
from paceline.errors import InvalidInput, PacelineError
from paceline.slots.model import PolicyVersion
from paceline.slots.stores import forgotten, policies
from paceline.slots.stores.tables import slot_config, slot_policy, slot_run, slot_window
from paceline.slots.stores.window_rows import rebuild_runs, recount
from paceline.slots.templates import WILDCARD, best_template, is_template
from paceline.slots.windows import align
from paceline.sql.schema import insert_rows, instant_form, now

MAX_EVICTED = 100
"""The number of idle configs that are evicted at once when a template reaches its maximum."""
MIN_IDLE_AGE = timedelta(minutes=1)
"""A config younger than this is not idle: its first booking may be in flight."""


_TEMPLATES = sa.select(slot_config.c.name).where(slot_config.c.name.contains(WILDCARD, autoescape=True))


def find_template(connection: Connection, name: str) -> str | None:
    """The template that a config of this name would be made from."""
    return best_template(connection.execute(_TEMPLATES).scalars().all(), name)


def version_of(connection: Connection, name: str) -> int:
    """The version of the template for a config that does not exist; 0 without a template. The config's first own
    version has the next number: slots of an evicted config may have the numbers up to there."""
    template = None if is_template(name) else find_template(connection, name)
    return (template and policies.active_version(connection, template)) or 0


class MadeConfigs(NamedTuple):
    """The configs that were made from templates, and those that could not be."""

    versions: dict[str, PolicyVersion]
    refused: dict[str, PacelineError]


def make_all(connection: Connection, names: Sequence[str], max_configs: int) -> MadeConfigs:
    """Makes each of these configs from the template that matches it best, if there is one. Locks the templates after
    all configs that the caller has locked: nobody who holds a template's lock waits for a config's."""
    found = connection.execute(_TEMPLATES).scalars().all()
    by_template: dict[str, list[str]] = {}
    for name in names:
        template_name = best_template(found, name)
        if template_name is not None:
            by_template.setdefault(template_name, []).append(name)
    made = MadeConfigs({}, {})
    for template_name, followers_names in sorted(by_template.items()):
        template = policies.lock_active(connection, template_name)
        if template is None:
            continue
        # Made by another process meanwhile.
        there = policies.lock_new(connection, followers_names)
        made.versions.update((version.name, version) for version in policies.load_all(connection, sorted(there)))
        new = [name for name in followers_names if name not in there]
        if new:
            _insert_followers(connection, new, template, max_configs, made)
    return made


def _insert_followers(
    connection: Connection, names: Sequence[str], template: PolicyVersion, max_configs: int, made: MadeConfigs
) -> None:
    """Makes configs from a template, whose row is locked, as far as it may have more of them."""
    moment = now(connection)
    following = sa.select(sa.func.count()).select_from(slot_config).where(slot_config.c.template == template.name)
    room = max_configs - connection.execute(following).scalar_one()
    if room < len(names):
        ended, young = to_ms(moment - template.policy.window), to_ms(moment - MIN_IDLE_AGE)
        most = max(MAX_EVICTED, len(names) - room)
        room += remove_idle(connection, ended, young, most, template.name)
    for name in names[max(room, 0) :]:
        made.refused[name] = InvalidInput(
            "config_name",
            f"{name!r} can't be made from {template.name!r}, which has {max_configs} configs in use;"
            f" configure {name!r} by itself, or raise PACELINE_SLOTS_TEMPLATE_CONFIGS",
        )
    new = {name: PolicyVersion(name, template.version, template.policy, moment) for name in names[: max(room, 0)]}
    text = json.dumps(template.policy.to_json(), sort_keys=True)
    columns = ("name", "version", "policy", "created_at")
    created_at = instant_form(connection)(to_ms(moment))
    insert_rows(connection, slot_policy, columns, [(name, template.version, text, created_at) for name in new])
    rows = [(name, template.version, template.name) for name in new]
    insert_rows(connection, slot_config, ("name", "version", "template"), rows)
    now_ms = to_ms(moment)
    for name in forgotten.missing_after(connection, list(new), align(now_ms, template.policy.size_ms)):
        recount(connection, name, template.policy, now_ms)
        rebuild_runs(connection, name, template.policy, now_ms)
    made.versions.update(new)


def count_former_slots(connection: Connection, version: PolicyVersion, now_ms: int) -> None:
    """Counts slots that a new config has from before."""
    if has_former_slots(connection, version, now_ms):
        recount(connection, version.name, version.policy, now_ms)
        rebuild_runs(connection, version.name, version.policy, now_ms)


def has_former_slots(connection: Connection, version: PolicyVersion, now_ms: int) -> bool:
    """Whether a config that does not exist may have slots in its window of now: one of this name was deleted as idle,
    and its windows were shorter."""
    return max(forgotten.load(connection, version.name)) > align(now_ms, version.policy.size_ms)


def insert_policy(connection: Connection, version: PolicyVersion) -> None:
    """Adds a version to a config's history."""
    connection.execute(
        slot_policy.insert().values(
            name=version.name,
            version=version.version,
            policy=json.dumps(version.policy.to_json(), sort_keys=True),
            created_at=version.created_at,
        )
    )


def followers(connection: Connection, template: str) -> list[str]:
    """The configs that follow a template."""
    names = connection.execute(sa.select(slot_config.c.name).where(slot_config.c.template == template)).scalars()
    return sorted(names.all())


def lock_unless_locked(name: str, *conditions: sa.ColumnElement[bool]) -> sa.Select[tuple[str]]:
    """Locks a config's row if the conditions hold; returns nothing if another transaction has locked it."""
    query = sa.select(slot_config.c.name).where(slot_config.c.name == name, *conditions)
    return query.with_for_update(of=slot_config.c.name, skip_locked=True)


def remove_idle(connection: Connection, ended_ms: int, created_ms: int, limit: int, template: str | None = None) -> int:
    """Deletes configs that follow a template and have no slot in a window that starts after `ended_ms`, if their policy
    is from before `created_ms`. Returns their number. A config with a booking in flight is left out."""
    in_use = sa.select(slot_window.c.config_name).where(
        slot_window.c.config_name == slot_config.c.name,
        slot_window.c.window_start > from_ms(ended_ms),
        slot_window.c.taken > 0,  # a cancelled slot leaves an empty window
    )
    settled = sa.select(slot_policy.c.name).where(
        slot_policy.c.name == slot_config.c.name,
        slot_policy.c.version == slot_config.c.version,
        slot_policy.c.created_at < from_ms(created_ms),
    )
    idle = [
        slot_config.c.template.is_not(None) if template is None else slot_config.c.template == template,
        ~in_use.exists(),
        settled.exists(),
    ]
    candidates = connection.execute(sa.select(slot_config.c.name).where(*idle).limit(limit)).scalars().all()
    if not candidates:
        return 0
    removed = 0
    until_ms: dict[str, int] = {}
    now_ms = to_ms(now(connection))
    for name in sorted(candidates):
        # Locked one by one and checked again: a booking may have come in between. A locked config is skipped: it is in
        # use.
        if connection.execute(lock_unless_locked(name, *idle)).scalar() is None:
            continue
        active = policies.find_active(connection, name)
        if active is not None:
            until_ms[name] = align(now_ms, active.policy.size_ms)
        for table, column in (
            (slot_window, slot_window.c.config_name),
            (slot_run, slot_run.c.config_name),
            (slot_policy, slot_policy.c.name),
            (slot_config, slot_config.c.name),
        ):
            connection.execute(table.delete().where(column == name))
        removed += 1
    forgotten.note_counters(connection, until_ms)
    return removed
