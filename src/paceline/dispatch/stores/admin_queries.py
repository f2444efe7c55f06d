"""The queue's views and operations: plain functions over a `Connection`, the same on every dialect."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any

import sqlalchemy as sa

from paceline.dispatch.changes import checked_redirection, redirected
from paceline.dispatch.config import DispatchConfig, declared
from paceline.dispatch.model import (
    MOST_ABANDONED,
    AbandonedClaim,
    Action,
    AuditEntry,
    Claim,
    Item,
    Outlook,
    QueueStats,
    SilentClaim,
)
from paceline.dispatch.ports import Follower
from paceline.dispatch.status import Status
from paceline.dispatch.stores import attempts, batches, booked_slots, following, locks
from paceline.dispatch.stores.rows import (
    CHUNK,
    THIS_ITEM,
    StaleRequest,
    chunks,
    config_columns,
    dispatch_config,
    entry,
    item,
    item_columns,
    of_items,
    write_audit,
)
from paceline.dispatch.stores.tables import (
    DEAD,
    FINISHED,
    IN_FLIGHT,
    READY,
    UNKNOWN,
    among,
    audit,
    context,
    only,
    queue,
    report,
    worker,
)
from paceline.dispatch.stores.tables import config as config_table
from paceline.dispatch.stores.workers import workers as stored_workers
from paceline.dispatch.worker.heartbeats import LOCAL, is_attended, of_type
from paceline.errors import NotFound, StoreError
from paceline.sql.schema import database_now
from paceline.sql.schema import now as database_clock

# -- config ------------------------------------------------------------------------------------------------------


_THESE_TYPES = config_table.c.item_type.in_(sa.bindparam("item_types", expanding=True))
# Made once: every cycle runs it.
_CONFIGS = sa.select(config_table).where(_THESE_TYPES)


def configs_of(connection: sa.Connection, item_types: Sequence[str]) -> list[DispatchConfig | StoreError | None]:
    """The settings of these types, in order; an error for a type whose settings are wrong."""
    rows: dict[str, Any] = {}
    for some in chunks(list(item_types)):
        rows.update({row.item_type: row for row in connection.execute(_CONFIGS, {"item_types": some})})
    return [_config_or_error(rows.get(item_type)) for item_type in item_types]


def _config_or_error(row: Any) -> DispatchConfig | StoreError | None:
    try:
        return None if row is None else dispatch_config(row)
    except StoreError as error:
        return error


def configs(connection: sa.Connection) -> list[DispatchConfig]:
    rows = connection.execute(sa.select(config_table).order_by(config_table.c.item_type))
    return [dispatch_config(row) for row in rows]


def configure(connection: sa.Connection, config: DispatchConfig, now: datetime | None) -> None:
    moment = now or database_clock(connection)
    mine = config_table.c.item_type == config.item_type
    statement = sa.update(config_table).where(mine).values(**config_columns(config), updated_at=moment)
    if connection.execute(statement).rowcount == 0:
        _insert_config(connection, config, moment)
    _audit_config(connection, config, moment)


def declare(
    connection: sa.Connection, config: DispatchConfig, now: datetime | None, only_new: bool = False
) -> DispatchConfig:
    """What the code says of an item type, and the settings that follow from it. A `Conflict` as in `change`."""
    mine = config_table.c.item_type == config.item_type
    row = connection.execute(sa.select(config_table).where(mine).with_for_update()).one_or_none()
    if row is not None and only_new:
        return dispatch_config(row)
    moment = now or database_clock(connection)
    if row is None:
        settings = declared(DispatchConfig(item_type=config.item_type), {}, config)
        _insert_config(connection, config, moment, json.dumps(settings.said))
        _audit_config(connection, config, moment)
        return config
    current = dispatch_config(row)
    settings = declared(current, json.loads(row.stated_json or "{}"), config)
    said = json.dumps(settings.said)
    if said != row.stated_json:
        connection.execute(sa.update(config_table).where(mine).values(stated_json=said))
    if settings.config != current:
        configure(connection, settings.config, moment)
    return settings.config


def change(
    connection: sa.Connection, item_type: str, changes: Mapping[str, Any], now: datetime | None, create: bool = False
) -> DispatchConfig | None:
    """If somebody else creates the settings at the same time, this is a `Conflict`: they are there at the next try."""
    statement = sa.select(config_table).where(config_table.c.item_type == item_type).with_for_update()
    row = connection.execute(statement).one_or_none()
    if row is not None:
        changed = dispatch_config(row).changed(changes)
        configure(connection, changed, now)
        return changed
    if not create:
        return None
    # No update: it would find, and overwrite, a row that was committed after the look above.
    changed = DispatchConfig(item_type=item_type).changed(changes)
    moment = now or database_clock(connection)
    _insert_config(connection, changed, moment)
    _audit_config(connection, changed, moment)
    return changed


def _insert_config(
    connection: sa.Connection, config: DispatchConfig, moment: datetime, stated: str | None = None
) -> None:
    columns = config_columns(config) | {"created_at": moment, "updated_at": moment, "stated_json": stated}
    connection.execute(sa.insert(config_table).values(**columns))


def _audit_config(connection: sa.Connection, config: DispatchConfig, moment: datetime) -> None:
    write_audit(
        connection,
        [entry(config.item_type, None, None, Action.CONFIGURED, None, None, config.summary(), moment)],
    )


# -- looking -----------------------------------------------------------------------------------------------------


_CLAIM_COLUMNS = (
    queue.c.item_type,
    queue.c.item_id,
    queue.c.claim_epoch,
    queue.c.retry_count,
    queue.c.lock_name,
    queue.c.queue_status,
    queue.c.begun_at,
)


def silent_claims(item_type: str, deadline: datetime, limit: int, dialect: str) -> sa.Select[Any]:
    """Claims in flight without a heartbeat since `deadline`, the oldest heartbeat first."""
    item_type_, seen_at = (only(IN_FLIGHT, name, dialect) for name in ("item_type", "seen_at"))
    return (
        sa.select(*_CLAIM_COLUMNS)
        .where(among(IN_FLIGHT, dialect), item_type_ == item_type, seen_at <= deadline)
        .order_by(seen_at)
        .limit(limit)
    )


def ended_holds(item_type: str, until: datetime, limit: int, dialect: str) -> sa.Select[Any]:
    """Items whose hold ended before `until`, the first one first."""
    item_type_, due_at = (only(UNKNOWN, name, dialect) for name in ("item_type", "due_at"))
    return (
        sa.select(*_CLAIM_COLUMNS)
        .where(among(UNKNOWN, dialect), item_type_ == item_type, due_at <= until)
        .order_by(due_at)
        .limit(limit)
    )


def stale(connection: sa.Connection, requests: Sequence[StaleRequest]) -> list[list[SilentClaim]]:
    """The claims that each request asks for."""
    return [_stale(connection, *request) for request in requests]


def _stale(
    connection: sa.Connection, item_type: str, stale_after: timedelta, limit: int, now: datetime | None
) -> list[SilentClaim]:
    moment, dialect = now or database_clock(connection), connection.dialect.name
    rows = [
        *connection.execute(silent_claims(item_type, moment - stale_after, limit, dialect)),
        *connection.execute(ended_holds(item_type, moment, limit, dialect)),
    ]
    return [_silent_claim(row) for row in rows]


def _silent_claim(row: Any) -> SilentClaim:
    claim = Claim(row.item_type, row.item_id, row.claim_epoch, row.retry_count, row.lock_name)
    return SilentClaim(claim, Status(row.queue_status), row.begun_at is not None)


def outlooks(
    connection: sa.Connection, item_types: Sequence[str], finds_due: bool, now: datetime | None
) -> list[Outlook]:
    if connection.dialect.name == "sqlite":
        now = now or database_clock(connection)
    found = []
    for some in chunks(item_types):
        for row in connection.execute(_outlooks(connection.dialect.name, finds_due), {"item_types": some}):
            config, moment = _config_or_error(row), now or row.moment
            if isinstance(config, DispatchConfig):
                next_due = row.next_due if finds_due else moment
                found.append(Outlook(config, moment, next_due, row.silent_since, row.hold_ends))
    return found


@cache
def _outlooks(dialect: str, finds_due: bool) -> sa.Select[Any]:
    """By item type the first row of three indexes: its cost depends on no backlog. Made once: every worker runs it all
    the time."""

    def first(rows: str, column: str) -> sa.ColumnElement[Any]:
        mine = among(rows, dialect), only(rows, "item_type", dialect) == config_table.c.item_type
        statement = sa.select(sa.func.min(only(rows, column, dialect))).select_from(queue).where(*mine)
        return statement.correlate(config_table).scalar_subquery()

    moment = sa.null() if dialect == "sqlite" else database_now()
    return sa.select(
        config_table,
        moment.label("moment"),
        (first(READY, "due_at") if finds_due else sa.null()).label("next_due"),
        first(IN_FLIGHT, "seen_at").label("silent_since"),
        first(UNKNOWN, "due_at").label("hold_ends"),
    ).where(_THESE_TYPES)


def abandoned(
    connection: sa.Connection, item_types: Sequence[str], silent_for: timedelta, own: str, now: datetime | None
) -> list[AbandonedClaim]:
    """Those of other processes than `own`."""
    moment = now or database_clock(connection)
    found: dict[Claim, AbandonedClaim] = {}
    for some in chunks(item_types):
        statement = _abandoned(connection.dialect.name)
        parameters = {"item_types": some, "deadline": moment - silent_for, "own": own}
        for row in connection.execute(statement, parameters):
            silent = _silent_claim(row)
            silence = moment - max(row.seen_at, row.worker_seen_at)
            found[silent.claim] = AbandonedClaim(silent, row.process, row.machine, silence)
    return list(found.values())


@cache
def _abandoned(dialect: str) -> sa.Select[Any]:
    """Claims, and the workers of their processes, none of which has sent a heartbeat since the deadline."""
    item_type, seen_at = (only(IN_FLIGHT, name, dialect) for name in ("item_type", "seen_at"))
    deadline: sa.BindParameter[datetime] = sa.bindparam("deadline", type_=queue.c.seen_at.type)
    other = worker.alias()
    lives = sa.exists().where(other.c.process == queue.c.worker, other.c.seen_at > deadline)
    return (
        sa.select(
            *_CLAIM_COLUMNS,
            queue.c.seen_at,
            worker.c.process,
            worker.c.machine,
            worker.c.seen_at.label("worker_seen_at"),
        )
        .join_from(queue, worker, worker.c.process == queue.c.worker)
        .where(
            sa.text(IN_FLIGHT) if dialect != "oracle" else sa.true(),
            item_type.in_(sa.bindparam("item_types", expanding=True)),
            seen_at <= deadline,
            worker.c.engine == LOCAL,
            worker.c.seen_at <= deadline,
            worker.c.process != sa.bindparam("own"),
            ~lives,
        )
        .limit(MOST_ABANDONED)
    )


def holds(connection: sa.Connection, claims: Sequence[Claim]) -> list[bool]:
    """Whether each claim is still valid."""
    held: set[tuple[str, str, int]] = set()
    for item_type in {claim.item_type for claim in claims}:
        for some in chunks([claim.item_id for claim in claims if claim.item_type == item_type]):
            statement = sa.select(queue.c.item_id, queue.c.claim_epoch).where(of_items(item_type, some))
            rows = connection.execute(statement.where(sa.text(IN_FLIGHT)))
            held.update((item_type, row.item_id, row.claim_epoch) for row in rows)
    return [(claim.item_type, claim.item_id, claim.epoch) in held for claim in claims]


def find(connection: sa.Connection, item_type: str, item_id: str) -> tuple[Item, str | None] | None:
    row = connection.execute(sa.select(queue).where(of_items(item_type, [item_id]))).one_or_none()
    if row is None:
        return None
    statement = sa.select(context.c.context_json).where(context.c.item_type == item_type, context.c.item_id == item_id)
    return item(row), connection.execute(statement).scalar_one_or_none()


def stats(connection: sa.Connection, item_type: str, now: datetime | None) -> QueueStats:
    moment = now or database_clock(connection)
    by_status, due, in_flight = _stats(connection.dialect.name)
    depth = {Status(status): count for status, count in connection.execute(by_status, {"item_type": item_type})}
    ready_late, first_ready = connection.execute(due, {"item_type": item_type, "moment": moment}).one()
    claims, running, held_late, first_held = connection.execute(
        in_flight, {"item_type": item_type, "moment": moment}
    ).one()
    first = min((at for at in (first_ready, first_held) if at is not None), default=None)
    workers = stored_workers(connection, moment)
    mine = of_type(workers, item_type)
    return QueueStats(
        item_type,
        depth,
        None if first is None else moment - first,
        late=ready_late + held_late,
        held=claims - running,
        running=running,
        workers=len(mine),
        attended=is_attended(mine, item_type),
    )


@cache
def _stats(dialect: str) -> tuple[sa.Select[*tuple[Any, ...]], ...]:
    """The number of items by status; of those that wait and are due, the number and the first time; of those in flight,
    the number, how many have begun, and how many of the others are due since when. Made once: that takes longer than to
    run them on an idle queue."""
    item_type: sa.BindParameter[str] = sa.bindparam("item_type")
    by_status = sa.select(queue.c.queue_status, sa.func.count()).where(queue.c.item_type == item_type)
    moment: sa.BindParameter[datetime] = sa.bindparam("moment", type_=queue.c.due_at.type)
    due_at = only(READY, "due_at", dialect)
    due = (
        sa.select(sa.func.count(), sa.func.min(due_at))
        .select_from(queue)
        .where(among(READY, dialect), only(READY, "item_type", dialect) == item_type, due_at <= moment)
    )
    late_at = sa.case((queue.c.begun_at.is_(None) & (queue.c.due_at <= moment), queue.c.due_at))
    in_flight = (
        sa.select(sa.func.count(), sa.func.count(queue.c.begun_at), sa.func.count(late_at), sa.func.min(late_at))
        .select_from(queue)
        .where(among(IN_FLIGHT, dialect), only(IN_FLIGHT, "item_type", dialect) == item_type)
    )
    return by_status.group_by(queue.c.queue_status), due, in_flight


def audit_entries(
    connection: sa.Connection, item_type: str, item_id: str | None, limit: int, before: int | None
) -> list[AuditEntry]:
    statement = sa.select(audit).where(audit.c.item_type == item_type).order_by(audit.c.audit_id.desc()).limit(limit)
    if item_id is not None:
        statement = statement.where(audit.c.item_id == item_id)
    if before is not None:
        statement = statement.where(audit.c.audit_id < before)
    return [AuditEntry(*row) for row in connection.execute(statement)]


# -- operating ---------------------------------------------------------------------------------------------------

UPDATE_ITEM = (
    sa.update(queue)
    .where(
        *THIS_ITEM,
        queue.c.queue_status == sa.bindparam("b_before"),
    )
    .values({name: sa.bindparam(name) for name in queue.c.keys() if name not in ("item_type", "item_id")})  # noqa: SIM118
)


def redirect(
    connection: sa.Connection,
    item_type: str,
    item_ids: Sequence[str],
    to: Status,
    now: datetime | None,
    follower: Follower | None = None,
    *,
    in_flight: bool = False,
) -> int:
    """Redirects these items, and their followers. With `in_flight`, the caller knows that none of them has begun."""
    items = _lock_items(connection, item_type, list(dict.fromkeys(item_ids)), to, in_flight)
    moment = now or database_clock(connection)
    moves = following.checked_moves(connection, follower, items, to)
    _write_redirects(connection, items, to, moment)
    if follower is not None and moves:
        follower.follow(connection, moves, moment)
    return len(items)


def redirect_dead(
    connection: sa.Connection,
    item_type: str,
    after: str,
    to: Status,
    now: datetime | None,
    follower: Follower | None = None,
) -> tuple[int, str | None]:
    """Redirects some of the dead letters after the id `after`, except those that the follower refuses. Returns their
    number, and the last id it read; None when there are no more."""
    ids = _dead_letters(connection, item_type, after)
    if not ids:
        return 0, None
    locked = sa.select(queue).where(of_items(item_type, ids)).order_by(queue.c.item_id).with_for_update()
    rows = [item(row) for row in connection.execute(locked)]
    # Another process may have redirected some of them before they were locked.
    dead = [one for one in rows if one.status is Status.DEAD_LETTER]
    items = following.allowed_items(connection, follower, dead, to)
    moment = now or database_clock(connection)
    _write_redirects(connection, items, to, moment)
    if follower is not None and items:
        follower.follow(connection, following.item_moves(items, to), moment)
    return len(items), ids[-1]


def _lock_items(
    connection: sa.Connection, item_type: str, item_ids: Sequence[str], to: Status, in_flight: bool
) -> list[Item]:
    rows: dict[str, Item] = {}
    for some in chunks(sorted(item_ids)):
        statement = sa.select(queue).where(of_items(item_type, some)).order_by(queue.c.item_id).with_for_update()
        rows.update({row.item_id: item(row) for row in connection.execute(statement)})
    for item_id in item_ids:
        if item_id not in rows:
            raise NotFound("item", item_id)
        checked_redirection(rows[item_id].status, to, item_id, in_flight=in_flight)
    return list(rows.values())


def _dead_letters(connection: sa.Connection, item_type: str, after: str) -> list[str]:
    dialect = connection.dialect.name
    item_type_, item_id = (only(DEAD, name, dialect) for name in ("item_type", "item_id"))
    statement = sa.select(queue.c.item_id).where(among(DEAD, dialect), item_type_ == item_type)
    if after:
        statement = statement.where(item_id > after)
    return list(connection.execute(statement.order_by(item_id).limit(CHUNK)).scalars())


def _write_redirects(connection: sa.Connection, items: Sequence[Item], to: Status, now: datetime) -> None:
    if not items:
        return
    action = Action.REQUEUED if to is Status.READY else Action.DISCARDED
    _update_redirected(connection, items, to, now)
    batches.move(connection, [(one, to) for one in items], now)
    locks.move(connection, items, now)
    if to is Status.CANCELLED:
        for some in chunks(items):
            connection.execute(
                sa.delete(context).where(
                    context.c.item_type == items[0].item_type, context.c.item_id.in_([one.item_id for one in some])
                )
            )
        booked_slots.give_back(connection, items, now)
    write_audit(
        connection,
        [entry(one.item_type, one.item_id, one.batch_id, action, one.status, to, one.last_error, now) for one in items],
    )


def _update_redirected(connection: sa.Connection, items: Sequence[Item], to: Status, now: datetime) -> None:
    """One statement per kind of change: a thousand statements may not end within a transaction's deadline."""
    alike: dict[tuple[Status, tuple[tuple[str, Any], ...]], list[Item]] = {}
    for before in items:
        columns = item_columns(before)
        after = item_columns(redirected(before, to, now))
        changed = tuple((name, value) for name, value in after.items() if value != columns[name])
        alike.setdefault((before.status, changed), []).append(before)
    updates = []
    for (status, changed), some in alike.items():
        if len(some) > 1:
            for part in chunks(some):
                these = of_items(part[0].item_type, [one.item_id for one in part])
                connection.execute(
                    sa.update(queue).where(these, queue.c.queue_status == status.value).values(dict(changed))
                )
            continue
        columns = item_columns(redirected(some[0], to, now))
        updates.append(
            columns | {"b_type": columns.pop("item_type"), "b_id": columns.pop("item_id"), "b_before": status.value}
        )
    if updates:
        connection.execute(UPDATE_ITEM, updates)


# -- retention ---------------------------------------------------------------------------------------------------

PRUNE_BATCH = 1000
_FORGET_REPORT = sa.delete(report).where(
    report.c.item_type == sa.bindparam("b_type"), report.c.item_id == sa.bindparam("b_id")
)


def prune_items(connection: sa.Connection, before: datetime) -> int:
    """Deletes some finished items; 0 when none is left."""
    dialect = connection.dialect.name
    completed_at = only(FINISHED, "completed_at", dialect)
    rows = connection.execute(
        sa.select(queue.c.item_type, queue.c.item_id)
        .where(among(FINISHED, dialect), completed_at < before)
        .order_by(completed_at)
        .limit(PRUNE_BATCH)
    ).all()
    if rows:
        delete = sa.delete(queue).where(
            queue.c.item_type == sa.bindparam("b_type"),
            queue.c.item_id == sa.bindparam("b_id"),
            sa.text(FINISHED),
        )
        keys = [{"b_type": row.item_type, "b_id": row.item_id} for row in rows]
        connection.execute(delete, keys)
        connection.execute(_FORGET_REPORT, keys)
        connection.execute(attempts.FORGET, keys)
        connection.execute(batches.FORGET, keys)
    return len(rows)


def prune_audit(connection: sa.Connection, before: datetime) -> int:
    """Deletes some old audit entries; 0 when none is left. Entries are numbered in the order of their times, nearly,
    so the oldest are first and no index on the time is needed."""
    rows = connection.execute(
        sa.select(audit.c.audit_id, audit.c.created_at).order_by(audit.c.audit_id).limit(PRUNE_BATCH)
    ).all()
    old = [row.audit_id for row in rows if row.created_at < before]
    for some in chunks(old):
        connection.execute(sa.delete(audit).where(audit.c.audit_id.in_(list(some))))
    return len(old)
