"""`SqlSlotStore`: the `SlotStore` port on a `Database`, with its statements: plain functions over a connection, written
once for SQLite, PostgreSQL and Oracle.

Bookings, cancellations and changes of a policy first lock the config's row (`FOR UPDATE`; on SQLite the whole database,
by `BEGIN IMMEDIATE`), so packing is exact without retries. Everything read after the lock is current.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from paceline.durations import from_ms, to_ms
from paceline.errors import Conflict, NotFound, PacelineError
from paceline.slots.booking.packer import Side
from paceline.slots.booking.packing import Booking, GroupPacker, event_ids_of, names_of, requests_by_config
from paceline.slots.carriers import Carriers
from paceline.slots.forecast.impact import WindowGroup
from paceline.slots.listing import NO_CAUSE, Cancellation, Cursor, ListedConfig, ListedSlot, SlotFilter, SlotHistory
from paceline.slots.model import AssignedSlot, BookingGroup, PolicyVersion, SlotRequest, WindowPolicy
from paceline.slots.occupancy import Occupancy
from paceline.slots.ports import LockHolder, PruneResult
from paceline.slots.stores import followers, forgotten, history, policies, pruning, slot_records, templates
from paceline.slots.stores.cancelling import cancel_with_work
from paceline.slots.stores.lock_waits import lock_holders, locking
from paceline.slots.stores.other_windows import other_windows_text, parse_other_windows
from paceline.slots.stores.pruning import PrunedPage
from paceline.slots.stores.tables import slot, slot_config
from paceline.slots.stores.window_rows import (
    SqlWindowReader,
    rebuild_runs,
    recount,
    write_occupancy,
)
from paceline.slots.templates import is_template
from paceline.slots.windows import align
from paceline.sql.engine import Database
from paceline.sql.in_lists import MAX_IN_LIST
from paceline.sql.schema import insert_rows, instant_form, now

P = ParamSpec("P")
T = TypeVar("T")

MAX_POLICIES = 50_000
"""The policies that a process caches. Configs come and go with a template: it may see any number of them."""
PRUNE_BATCH = 5000
SURVEY_CHUNK = 1024

_slot_columns = (
    slot.c.event_id,
    slot.c.config_name,
    slot.c.config_version,
    slot.c.requested_at,
    slot.c.window_start,
    slot.c.scheduled_at,
    slot.c.owner,
    slot.c.other_windows,
)
_COLUMN_NAMES = [column.name for column in (*_slot_columns, slot.c.created_at)]
_SLOTS_OF = sa.select(*_slot_columns).where(slot.c.event_id.in_(sa.bindparam("event_ids", expanding=True)))
# For SQLite, as a JSON list: SQLAlchemy compiles an IN list again for every number of ids.
_LISTED = sa.func.json_each(sa.bindparam("event_ids")).table_valued("value", name="listed")
_SLOTS_LISTED = sa.select(*_slot_columns).where(slot.c.event_id.in_(sa.select(_LISTED.c.value)))


class SqlSlotStore:
    """Slots in SQLite, PostgreSQL or Oracle. Any number of processes may share the database."""

    def __init__(self, database: Database, carriers: Carriers | None = None, *, owns_database: bool = True) -> None:
        self._database = database
        self._carriers: Carriers = carriers or {}
        self._owns_database = owns_database
        uniform = random.Random().random
        self._booker = Booker(uniform)
        # Imported here: they import this module, and PostgreSQL's driver is an optional extra.
        if database.dialect == "postgresql":
            from paceline.slots.stores.postgres import PostgresBooker

            self._booker = PostgresBooker(uniform)
        elif database.dialect == "sqlite":
            from paceline.slots.stores.sqlite import SqliteBooker

            self._booker = SqliteBooker(uniform)

    async def configure(
        self, name: str, policy: WindowPolicy, *, now_ms: int | None = None, replacing: int | None = None
    ) -> PolicyVersion:
        # A changed window size counts all booked slots again, however many.
        version = await self._change(_configure, name, policy, now_ms, replacing)
        if is_template(name):
            # Each in its own transaction: no caller waits for all of them. A config that is made or changed meanwhile
            # reads the template's newest policy under its lock.
            for follower in await self._database.read(templates.followers, name):
                await self._change(_follow, follower, name, now_ms)
        return version

    async def _change(self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await locking(self._database, partial(self._database.write_unhurried, work, *args, **kwargs))

    async def make_from_template(self, name: str, max_configs: int) -> PolicyVersion | None:
        # Read first: most unknown names are typing mistakes, and a write would wait for other writers.
        if await self._database.read(templates.find_template, name) is None:
            return None
        made = await self._database.write(templates.make_all, [name], max_configs)
        if name in made.refused:
            raise made.refused[name]
        return made.versions.get(name)

    async def active_version(self, name: str) -> int | None:
        return await self._database.read(policies.active_version, name)

    async def history(self, name: str) -> list[PolicyVersion]:
        return await self._database.read(policies.history, name)

    async def configs(self, *, following: bool = False) -> list[PolicyVersion]:
        return await self._database.read(policies.configs, following)

    async def search_configs(
        self, search: str, template: str | None, after: str | None, limit: int
    ) -> list[ListedConfig]:
        return await self._database.read(policies.search_configs, search, template, after, limit)

    async def book(
        self,
        names: str | Sequence[str],
        requests: Sequence[SlotRequest],
        *,
        now_ms: int | None = None,
        owner: str | None = None,
    ) -> list[Booking]:
        all_names = (names,) if isinstance(names, str) else tuple(names)
        (bookings,) = await self.book_groups([BookingGroup(all_names, requests, owner)], now_ms=now_ms)
        return bookings

    async def book_groups(
        self, groups: Sequence[BookingGroup], *, now_ms: int | None = None, template_configs: int = 0
    ) -> list[list[Booking]]:
        if not any(group.requests for group in groups):
            return [[] for _ in groups]
        return await self._database.write(self._booker.book, groups, now_ms, template_configs)

    async def lock_holders(self, names: Sequence[str]) -> dict[str, LockHolder]:
        return await lock_holders(self._database, names)

    def series_of(self, name: str) -> str | None:
        return self._booker.series_of(name)

    async def find(self, event_id: str) -> AssignedSlot | None:
        return (await self._database.read(_find_all, [event_id])).get(event_id)

    async def cancel(
        self, event_id: str, *, owner: str | None = None, cause: Cancellation = NO_CAUSE
    ) -> AssignedSlot | None:
        cancelled = partial(self._database.write, cancel_with_work, self._carriers, event_id, owner, cause)
        return await locking(self._database, cancelled)

    async def booked(self, before_ms: int, after: tuple[int, str] | None, limit: int) -> list[AssignedSlot]:
        return await self._database.read(_booked, before_ms, after, limit)

    async def page(
        self, selection: SlotFilter, after: Cursor | None, limit: int, *, latest_first: bool = False
    ) -> list[ListedSlot]:
        return await self._database.read(slot_records.page, selection, after, limit, latest_first)

    async def count(self, selection: SlotFilter) -> int:
        return await self._database.read_aside(slot_records.count, selection)

    async def slot_history(
        self, name: str, last: timedelta, horizon: timedelta, *, now: datetime | None = None
    ) -> SlotHistory:
        return await self._database.read_aside(history.read, name, last, horizon, now)

    async def beginning(self, prefix: str, limit: int) -> list[ListedSlot]:
        return await self._database.read(slot_records.beginning, prefix, limit)

    async def record(self, event_id: str) -> ListedSlot | None:
        return await self._database.read(slot_records.find, event_id)

    async def count_beyond(self, name: str, max_delay_ms: int) -> int:
        count = followers.count_beyond if is_template(name) else slot_records.count_beyond
        return await self._database.read_aside(count, name, max_delay_ms)

    async def survey(self, name: str, look: Callable[[PolicyVersion, Occupancy, int], T]) -> T:
        return await self._database.read_aside(_survey, name, look)

    async def survey_joint(self, names: Sequence[str], look: Callable[[Sequence[Side], int], T]) -> T:
        return await self._database.read_aside(_survey_joint, names, look)

    async def survey_followers(
        self, template: str, size_ms: int, look: Callable[[PolicyVersion, Iterable[WindowGroup]], T]
    ) -> list[T]:
        return await self._database.read_aside(followers.survey, template, size_ms, look)

    async def prune(self, before_ms: int) -> PruneResult:
        ends = pruning.ends(await self._database.read(policies.configs), before_ms)
        common = min(ends.values(), default=before_ms)
        total = 0
        total += await self._prune_pages(_prune_page, common, None)
        for name, end_ms in ends.items():
            if end_ms > common:
                total += await self._prune_pages(_prune_page, end_ms, pruning.booked_alone_under(name))
        if before_ms > common:
            total += await self._prune_pages(_prune_page, before_ms, pruning.OF_DELETED_CONFIGS)
        while await self._database.write(slot_records.prune_cancelled, before_ms, PRUNE_BATCH):
            pass
        while await self._database.write(pruning.remove_move_records, before_ms, PRUNE_BATCH):
            pass
        total += await self._prune_pages(pruning.prune_joint, ends, before_ms)
        # One config at a time: thousands of locks at once would block all callers.
        windows = 0
        for name in await self._database.read(pruning.names_to_prune, before_ms):
            windows += await locking(self._database, partial(self._database.write, _prune_windows, name, before_ms))
        while await self._database.write(templates.remove_idle, 0, before_ms, PRUNE_BATCH):
            pass
        await self._database.write(forgotten.remove_old, before_ms)
        return PruneResult(total, windows)

    async def _prune_pages(self, prune_page: Callable[..., PrunedPage], *args: Any) -> int:
        """Deletes slots, a page in each transaction; returns their number."""
        total, cursor = 0, None
        while True:
            try:
                page = await self._database.write(prune_page, self._carriers, *args, cursor, PRUNE_BATCH)
            except Conflict:  # another prune was the first to note what is missing of a config
                continue
            total += page.removed
            if (cursor := page.cursor) is None:
                return total

    async def close(self) -> None:
        if self._owns_database:
            await self._database.close()


def _configure(
    connection: Connection, name: str, policy: WindowPolicy, now_ms: int | None, replacing: int | None
) -> PolicyVersion:
    """Adds a version and makes it the active one; recounts windows and runs where the change makes them differ."""
    active = policies.lock_active(connection, name)
    if replacing is not None and replacing != (active.version if active else 0):
        raise Conflict
    now_ms = to_ms(now(connection)) if now_ms is None else now_ms
    before = active.version if active else templates.version_of(connection, name)
    version = PolicyVersion(name, before + 1, policy, from_ms(now_ms))
    if active is None:
        templates.insert_policy(connection, version)
        # If two callers create the same config at once, the second waits here, violates the key, and retries.
        connection.execute(slot_config.insert().values(name=name, version=version.version))
        templates.count_former_slots(connection, version, now_ms)
    else:
        _activate(connection, active, version, now_ms)
    return version


def _activate(
    connection: Connection, active: PolicyVersion, version: PolicyVersion, now_ms: int, template: str | None = None
) -> None:
    """Replaces the active version of a config, whose row is locked. It follows `template` from now on."""
    name, policy = version.name, version.policy
    templates.insert_policy(connection, version)
    connection.execute(
        slot_config.update().where(slot_config.c.name == name).values(version=version.version, template=template)
    )
    # A window that is full because slots of it are gone is full under the new limit, too.
    is_partly_gone = forgotten.load(connection, name).slots_ms > align(now_ms, policy.size_ms)
    if policy.size_ms != active.policy.size_ms or is_partly_gone:
        recount(connection, name, policy, now_ms)
    rebuild_runs(connection, name, policy, now_ms)


def _follow(connection: Connection, name: str, template_name: str, now_ms: int | None) -> None:
    """Gives a config the active policy of the template that it follows."""
    active = policies.lock_active(connection, name)
    following = connection.execute(sa.select(slot_config.c.template).where(slot_config.c.name == name)).scalar()
    version = policies.active_version(connection, template_name)
    if active is None or version is None or following != template_name or active.version >= version:
        return
    template = policies.load_policy(connection, template_name, version)
    now_ms = to_ms(now(connection)) if now_ms is None else now_ms
    fresh = PolicyVersion(name, version, template.policy, from_ms(now_ms))
    _activate(connection, active, fresh, now_ms, template_name)


class Booker:
    """Books one statement after another. Caches each config's last policy: a version never changes."""

    def __init__(self, uniform: Callable[[], float]) -> None:
        self._uniform = uniform
        self._policies: dict[str, PolicyVersion] = {}
        self._templates: dict[str, str] = {}
        """The template of each of these configs, or its own name."""

    def book(
        self, connection: Connection, groups: Sequence[BookingGroup], now_ms: int | None, template_configs: int
    ) -> list[list[Booking]]:
        """Books every request in this transaction."""
        versions = policies.lock_versions(connection, names_of(groups))
        existing = self._existing(connection, event_ids_of(groups))
        actives, unusable = self.actives(connection, groups, versions, existing, template_configs)
        now_ms = to_ms(now(connection)) if now_ms is None else now_ms
        requests = requests_by_config(groups)
        sides = {name: self._side(connection, active, requests[name], now_ms) for name, active in actives.items()}
        packer = GroupPacker(sides, unusable, now_ms, self._uniform)
        outcomes = packer.book(groups, existing)
        if packer.fresh:
            self._write(connection, packer.fresh, sides, now_ms)
        return outcomes

    def actives(
        self,
        connection: Connection,
        groups: Sequence[BookingGroup],
        versions: Mapping[str, int],
        existing: Mapping[str, AssignedSlot],
        template_configs: int,
    ) -> tuple[dict[str, PolicyVersion], dict[str, PacelineError]]:
        """The policies of the configs whose rows are locked, and of those that are made here from their templates; and
        the errors of configs that can't be made. A config is made only for an event without a slot."""
        missing = {
            name
            for group in groups
            for name in group.names
            if name not in versions and any(event_id not in existing for event_id, _ in group.requests)
        }
        refused: dict[str, PacelineError] = {}
        if missing and template_configs:
            made = templates.make_all(connection, sorted(missing), template_configs)
            refused = made.refused
            self._remember(connection, made.versions.values())
            versions = {**versions, **{name: version.version for name, version in made.versions.items()}}
        cached = self._policies
        unknown = [name for name, version in versions.items() if name not in cached or cached[name].version != version]
        if unknown:
            self._remember(connection, policies.load_all(connection, unknown))
        return {name: self._policies[name] for name in versions}, refused

    def _remember(self, connection: Connection, versions: Collection[PolicyVersion]) -> None:
        if len(self._policies) + len(versions) > MAX_POLICIES:
            self._policies, self._templates = {}, {}
        new = {version.name: version for version in versions}
        self._policies.update(new)
        followed = policies.templates_of(connection, list(new))
        self._templates.update((name, followed.get(name, name)) for name in new)

    def series_of(self, name: str) -> str | None:
        """The template that a config follows, or its own name; None if nothing was booked under it here."""
        return self._templates.get(name)

    def _existing(self, connection: Connection, event_ids: Sequence[str]) -> dict[str, AssignedSlot]:
        return _find_all(connection, event_ids)

    def _side(
        self, connection: Connection, active: PolicyVersion, _requests: Sequence[SlotRequest], _now_ms: int
    ) -> Side:
        """A config whose row is locked."""
        return Side(active, Occupancy(active.policy, SqlWindowReader(connection, active.name)))

    def _write(
        self, connection: Connection, fresh: Sequence[AssignedSlot], sides: Mapping[str, Side], now_ms: int
    ) -> None:
        """Writes new slots, counters and runs."""
        _insert_slots(connection, fresh, now_ms)
        for name, side in sides.items():
            if side.occupancy.is_changed:
                write_occupancy(connection, name, side.occupancy)


def _find_all(connection: Connection, event_ids: Sequence[str]) -> dict[str, AssignedSlot]:
    """The slots that these events have, by event."""
    slots: dict[str, AssignedSlot] = {}
    if connection.dialect.name == "sqlite":
        for row in connection.execute(_SLOTS_LISTED, {"event_ids": json.dumps(event_ids)}):
            slots[row.event_id] = _assigned(*row)
        return slots
    for first in range(0, len(event_ids), MAX_IN_LIST):
        for row in connection.execute(_SLOTS_OF, {"event_ids": event_ids[first : first + MAX_IN_LIST]}):
            slots[row.event_id] = _assigned(*row)
    return slots


def _prune_page(
    connection: Connection,
    carriers: Carriers,
    end_ms: int,
    selected: sa.ColumnElement[bool] | None,
    after: tuple[int, str] | None,
    limit: int,
) -> PrunedPage:
    """Deletes those of the next slots, selected or all, whose work is not pending."""
    slots = _booked(connection, end_ms, after, limit, selected)
    cursor = (slots[-1].scheduled_ms, slots[-1].event_id) if len(slots) == limit else None
    return PrunedPage(pruning.remove_finished(connection, carriers, slots), cursor)


def _booked(
    connection: Connection,
    before_ms: int,
    after: tuple[int, str] | None,
    limit: int,
    selected: sa.ColumnElement[bool] | None = None,
) -> list[AssignedSlot]:
    """Slots scheduled before a time, oldest first, after a cursor; the `selected` ones, if given."""
    query = sa.select(*_slot_columns).where(slot.c.scheduled_at < from_ms(before_ms))
    if selected is not None:
        query = query.where(selected)
    if after is not None:
        at, event_id = from_ms(after[0]), after[1]
        query = query.where((slot.c.scheduled_at > at) | ((slot.c.scheduled_at == at) & (slot.c.event_id > event_id)))
    rows = connection.execute(query.order_by(slot.c.scheduled_at, slot.c.event_id).limit(limit))
    return [_assigned(*row) for row in rows]


def _survey(connection: Connection, name: str, look: Callable[[PolicyVersion, Occupancy, int], T]) -> T:
    """The result of a pure function over the config's windows."""
    side = _side(connection, name)
    return look(side.active, side.occupancy, to_ms(now(connection)))


def _survey_joint(connection: Connection, names: Sequence[str], look: Callable[[Sequence[Side], int], T]) -> T:
    """The result of a pure function over the windows of several configs."""
    sides = [_side(connection, name) for name in names]
    return look(sides, to_ms(now(connection)))


def _side(connection: Connection, name: str) -> Side:
    """A config's active policy, or that of its template, and its windows."""
    source: str | None = name
    version = policies.active_version(connection, name)
    if version is None and (source := templates.find_template(connection, name)) is not None:
        version = policies.active_version(connection, source)
    if version is None or source is None:
        raise NotFound("config", name)
    active = replace(policies.load_policy(connection, source, version), name=name)
    occupancy = Occupancy(active.policy, SqlWindowReader(connection, name), chunk=SURVEY_CHUNK)
    if source != name:
        # A config that is not made yet has its template's policy, and the windows that its first booking will find.
        now_ms = to_ms(now(connection))
        if templates.has_former_slots(connection, active, now_ms):
            occupancy = occupancy.recounted(active.policy, now_ms)
    return Side(active, occupancy)


def _prune_windows(connection: Connection, name: str, before_ms: int) -> int:
    active = policies.lock_active(connection, name)
    return 0 if active is None else pruning.remove_windows(connection, active, before_ms)


def _assigned(
    event_id: str,
    config_name: str,
    version: int,
    requested: datetime,
    window: datetime,
    scheduled: datetime,
    owner: str | None,
    other_windows: str | None,
) -> AssignedSlot:
    """The slot of a stored row."""
    others = parse_other_windows(other_windows)
    times = to_ms(requested), to_ms(window), to_ms(scheduled)
    return AssignedSlot(event_id, config_name, version, *times, True, owner, others)


def _insert_slots(connection: Connection, slots: Sequence[AssignedSlot], now_ms: int) -> None:
    instant = instant_form(connection)
    created_at = instant(now_ms)
    texts = {others: other_windows_text(others) for others in {assigned.other_windows for assigned in slots}}
    rows = [
        (event_id, name, version, instant(requested), instant(window), instant(at), owner, texts[others], created_at)
        for event_id, name, version, requested, window, at, _, owner, others in slots
    ]
    insert_rows(connection, slot, _COLUMN_NAMES, rows)
