"""Plans in the database: changed at run time, seen by every limiter at its next load."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from math import inf

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from paceline.background import Background
from paceline.errors import ConfigurationError, NotFound
from paceline.limits.model import Plan
from paceline.limits.plan_documents import document_of, plan_from
from paceline.limits.stores.tables import limit_plan
from paceline.sql import migrate
from paceline.sql.databases import database
from paceline.sql.engine import Database, announce
from paceline.sql.hints import ChangeWatch
from paceline.sql.schema import now

REFRESH_EVERY = 1.0
HINT = "plans"
_PROBE = f"SELECT max(revision) FROM {limit_plan.name}"  # noqa: S608  # our own name


class AsyncSqlPlans:
    """An `AsyncPlanRegistry` and `PlanEditor` over a database's plans. It makes its table at the first call.

    Any number of limiters may share it; the plans are read once per change.
    """

    def __init__(self, database: Database, *, refresh_every: float | None = REFRESH_EVERY) -> None:
        self.refresh_every = refresh_every
        self._database = database
        self._seen: int | None = None
        self._is_loaded = False
        """Whether the last load succeeded."""
        self._plans: Mapping[str, Plan] = {}
        self._changes = ChangeWatch(database.hints, HINT, _PROBE)

    async def load(self) -> Mapping[str, Plan]:
        """All plans by name; read only if one was changed since the last `load`."""
        await migrate.prepare_once(self._database)
        if self._is_loaded and not self._changes.may_have_changed():
            return self._plans
        self._is_loaded = False
        self._changes.note_read()
        revision = await self._database.read(_revision)
        if revision != self._seen:
            plans = await self.all()
            self._seen, self._plans = revision, plans
        self._is_loaded = True
        return self._plans

    async def changed(self, every: float) -> None:
        """Returns after `every` seconds, or later: once plans may have changed. After a load that failed, no later."""
        if self._is_loaded:
            await self._changes.changed(inf, every=every)
        else:
            await asyncio.sleep(every)

    async def all(self) -> Mapping[str, Plan]:
        """All plans by name."""
        await migrate.prepare_once(self._database)
        return {name: _plan(name, document) for name, document in await self._database.read(_documents)}

    async def put(self, plan: Plan) -> None:
        """Adds a plan, or replaces the one of the same name."""
        await migrate.prepare_once(self._database)
        await self._database.write(_put, plan.name, json.dumps(document_of(plan)))

    async def delete(self, name: str) -> None:
        """Removes a plan; `NotFound` if there is none of this name."""
        await migrate.prepare_once(self._database)
        if not await self._database.write(_put, name, None):
            raise NotFound("plan", name)

    async def close(self) -> None:
        await self._database.close()


async def open_plans(url: str) -> AsyncSqlPlans:
    """The plans of the database at a URL, on the connections that this event loop has there."""
    return AsyncSqlPlans(await database(url))


class SqlPlans:
    """`AsyncSqlPlans` for threads: a `PlanRegistry` for `Limiter`."""

    def __init__(self, url: str, *, refresh_every: float | None = REFRESH_EVERY) -> None:
        self.refresh_every = refresh_every
        self._background = Background(lambda: AsyncSqlPlans(Database(url, pool_size=1), refresh_every=refresh_every))

    def load(self) -> Mapping[str, Plan]:
        """All plans by name; read only if one was changed since the last `load`."""
        return self._background.run(lambda plans: plans.load())

    def put(self, plan: Plan) -> None:
        """Adds a plan, or replaces the one of the same name."""
        self._background.run(lambda plans: plans.put(plan))

    def delete(self, name: str) -> None:
        """Removes a plan; `NotFound` if there is none of this name."""
        self._background.run(lambda plans: plans.delete(name))

    def close(self) -> None:
        self._background.close()


def _plan(name: str, document: str) -> Plan:
    try:
        return plan_from(name, json.loads(document))
    except ConfigurationError as error:
        raise ConfigurationError(f"plans.{name}.{error.field}", error.problem) from error
    except ValueError as error:
        raise ConfigurationError(f"plans.{name}", f"is not JSON in the database: {error}") from error


def _revision(connection: Connection) -> int:
    return int(connection.execute(sa.select(sa.func.coalesce(sa.func.max(limit_plan.c.revision), 0))).scalar_one())


def _documents(connection: Connection) -> list[tuple[str, str]]:
    query = sa.select(limit_plan.c.name, limit_plan.c.plan).where(limit_plan.c.plan.is_not(None))
    return [(name, document) for name, document in connection.execute(query.order_by(limit_plan.c.name))]


def _put(connection: Connection, name: str, document: str | None) -> bool:
    """Whether there was something to replace, or there is now."""
    announce(connection, HINT)
    if connection.dialect.name != "sqlite":
        # Two concurrent writers would take the same revision, and a reader that saw one would never see the other.
        connection.exec_driver_sql(f"LOCK TABLE {limit_plan.name} IN EXCLUSIVE MODE")
    mine = limit_plan.c.name == name
    before = connection.execute(sa.select(limit_plan.c.plan).where(mine)).one_or_none()
    if document is None and (before is None or before.plan is None):
        return False
    values = {"revision": _revision(connection) + 1, "plan": document, "changed_at": now(connection)}
    if before is None:
        connection.execute(sa.insert(limit_plan).values(name=name, **values))
    else:
        connection.execute(sa.update(limit_plan).where(mine).values(**values))
    return True
