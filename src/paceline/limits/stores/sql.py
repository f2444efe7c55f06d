"""Limits kept in SQLite or PostgreSQL: rows under lock, the pure reference, the database's clock.

Calls made while a transaction is in flight are batched into the next one, so many callers cost one commit. Rows are
locked in the order of their keys, all before any is written, and no transaction that holds one waits to insert
another: so there are no deadlocks. An expired row means the same as a missing one; some are deleted periodically.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

from paceline.batching import Batcher
from paceline.errors import ConfigurationError, Conflict, StoreUnavailable
from paceline.limits.algorithms import State
from paceline.limits.holds import HoldName, HoldRecord, Mark, held_part
from paceline.limits.model import Charge, Decision
from paceline.limits.ports import Hold, Settlement
from paceline.limits.stores.background import BackgroundLimitStore
from paceline.limits.stores.locked_rows import Cell, LockedRows, cell_of, hold_row_of
from paceline.limits.stores.tables import limit_hold, limit_state
from paceline.sql import migrate
from paceline.sql.engine import Database
from paceline.sql.schema import now as database_clock

DEFAULT_DEADLINE = 5.0
LONGEST_START = 2.0
"""Seconds that a caller with a shorter deadline waits for the tables of a file, which are made once."""
_ATTEMPTS = 10
_BATCH = 200
_MOST_CELLS = 10_000
"""Cells of one statement. SQLite takes 32,766 parameters, and a cell is two."""
_PRUNE_EVERY = 60.0
_PRUNE_BATCH = 1000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LATEST_US = 250_000_000_000_000_000


@dataclass(frozen=True, slots=True)
class Call:
    """One caller's work and the rows it needs."""

    cells: tuple[Cell, ...]
    hold: HoldName | None
    writes: bool
    work: Callable[[LockedRows], Any]


class MissingRows(Exception):
    """Rows to lock do not exist; nothing was done."""

    def __init__(self, cells: list[Cell]) -> None:
        self.cells = cells


class AsyncSqlLimitStore:
    """A `LimitStore` in a database, for event loops. It connects, and makes its tables, at the first call."""

    def __init__(self, url: str, *, deadline: float | None = None) -> None:
        self._database = Database(url)
        if self._database.dialect not in ("sqlite", "postgresql"):
            raise ConfigurationError("store", f"limits can't be kept in {self._database.dialect}; use postgresql://")
        self._deadline = DEFAULT_DEADLINE if deadline is None else deadline
        self._patience = None if deadline is None else max(deadline, LONGEST_START)
        self._preparing: asyncio.Future[None] | None = None
        self._batcher: Batcher[Call, Any] = Batcher(self._flush, max_batch=_BATCH)
        self._is_file = self._database.dialect == "sqlite"
        self._pruned_at = time.monotonic()
        self._execute = execute
        if not self._is_file:
            # Imported here: the driver is an extra that SQLite's users do not have.
            from paceline.limits.stores import postgres_limits

            self._execute = postgres_limits.execute

    async def decide(
        self, chain: Sequence[Charge], *, spend: bool = True, hold: Hold | None = None, now_us: int | None = None
    ) -> Decision:
        name = hold_row_of(hold.id, held_part(chain, hold.places)) if hold is not None else None
        decision: Decision = await self._submit(
            chain, name, lambda rows: rows.decide(chain, spend, hold, now_us), writes=spend
        )
        return decision

    async def decide_many(self, chains: Sequence[Sequence[Charge]], *, now_us: int | None = None) -> list[Decision]:
        def decide(rows: LockedRows) -> list[Decision]:
            return [rows.decide(chain, True, None, now_us) for chain in chains]

        charges = [charge for chain in chains for charge in chain]
        decisions: list[Decision] = await self._submit(charges, None, decide) if charges else []
        return decisions

    async def refund(self, chain: Sequence[Charge], *, now_us: int | None = None) -> None:
        await self._submit(chain, None, lambda rows: rows.refund(chain, now_us))

    async def settle(
        self, hold_id: str, chain: Sequence[Charge], actual: int | Sequence[int], *, now_us: int | None = None
    ) -> Settlement:
        name = hold_row_of(hold_id, chain)
        settlement: Settlement = await self._submit(
            chain, name, lambda rows: rows.settle(hold_id, chain, actual, now_us)
        )
        return settlement

    async def renew(
        self, hold_id: str, chain: Sequence[Charge], ttl_us: int, *, now_us: int | None = None
    ) -> Settlement:
        name = hold_row_of(hold_id, chain)
        result: Settlement = await self._submit(chain, name, lambda rows: rows.renew(hold_id, chain, ttl_us, now_us))
        return result

    async def reset(self, chain: Sequence[Charge]) -> None:
        await self._submit(chain, None, lambda rows: rows.reset(chain))

    async def prune(self) -> int:
        """Deletes every expired row. Returns how many there were."""
        await migrate.prepare_once(self._database)
        total = 0
        while count := await self._database.write(prune):
            total += count
        return total

    async def close(self) -> None:
        self._database.hasten(self._deadline)
        await self._batcher.close()
        await self._database.close()

    async def _submit(
        self, chain: Sequence[Charge], hold: HoldName | None, work: Callable[[LockedRows], Any], *, writes: bool = True
    ) -> Any:
        call = Call(tuple(map(cell_of, chain)), hold, writes, work)
        try:
            if self._is_file and not migrate.is_prepared(self._database):
                await self._prepare()
            async with asyncio.timeout(self._deadline):
                return await self._batcher.submit(call)
        except TimeoutError as error:
            raise StoreUnavailable(f"the database did not answer within {self._deadline:g} s") from error

    async def _prepare(self) -> None:
        """Creating the tables of a file, or waiting for the process that does, may exceed a decision's timeout, and is
        no outage. It goes on while callers with a deadline no longer wait."""
        if self._preparing is None or self._preparing.done():
            self._preparing = asyncio.ensure_future(migrate.prepare_once(self._database))
            self._preparing.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        async with asyncio.timeout(self._patience):
            await asyncio.shield(self._preparing)

    async def _flush(self, calls: Sequence[Call]) -> Sequence[Any]:
        # Outside the deadline: else every call would start, and roll back, a slow first migration.
        await migrate.prepare_once(self._database)
        try:
            async with asyncio.timeout(self._deadline):
                return await self._execute_batch(calls)
        except TimeoutError as error:
            raise StoreUnavailable(f"the database did not answer within {self._deadline:g} s") from error

    async def _execute_batch(self, calls: Sequence[Call]) -> Sequence[Any]:
        for _ in range(_ATTEMPTS):
            prunes = time.monotonic() - self._pruned_at > _PRUNE_EVERY
            try:
                results, pruned = await self._database.flush(self._execute, calls, prunes)
            except MissingRows as missing:
                await self._database.write(_make_rows, missing.cells)
            except Conflict:
                continue  # rolled back as a whole: nothing was counted
            else:
                if prunes and pruned < _PRUNE_BATCH:  # else more may have expired, for the next batch
                    self._pruned_at = time.monotonic()
                return results
        raise StoreUnavailable("the rows of these limits are changing too fast")


class SqlLimitStore(BackgroundLimitStore[AsyncSqlLimitStore]):
    """`AsyncSqlLimitStore` for threads: its calls run, batched, on one event loop in a thread of its own."""

    def __init__(self, url: str, *, deadline: float | None = None) -> None:
        super().__init__(lambda: AsyncSqlLimitStore(url, deadline=deadline))

    def prune(self) -> int:
        """Deletes every expired row. Returns how many there were."""
        return self._background.run(lambda store: store.prune())


def needed_rows(calls: Sequence[Call]) -> tuple[list[Cell], list[Cell], list[HoldName]]:
    """The states that calls lock, those that they only read, and their holds; all sorted."""
    locked = sorted({cell for call in calls if call.writes for cell in call.cells})
    unlocked = sorted({cell for call in calls for cell in call.cells} - set(locked))
    return locked, unlocked, sorted({call.hold for call in calls if call.hold is not None})


def state_of(text: str) -> State | None:
    """A state as it is stored."""
    return tuple(map(int, text.split())) or None


def state_text(state: State) -> str:
    """As it is stored."""
    return " ".join(map(str, state))


def marks_of(text: str) -> tuple[Mark, ...]:
    """The marks of a hold as they are stored."""
    numbers = iter(map(int, text.split()))
    return tuple(Mark(tag, (time, end), cost) for tag, time, end, cost in zip(*[numbers] * 4, strict=True))


def marks_text(marks: Sequence[Mark]) -> str:
    """As they are stored."""
    return " ".join(f"{mark.tag} {mark.place[0]} {mark.place[1]} {mark.cost}" for mark in marks)


def execute(connection: Connection, calls: Sequence[Call], prunes: bool) -> tuple[list[Any], int]:
    """The results of the calls, in one transaction of SQLite, and how many expired rows were deleted."""
    locked, unlocked, names = needed_rows(calls)
    states, holds = _read_states(connection, sorted({*locked, *unlocked})), _read_holds(connection, names)
    # SQLite runs in this process, so its clock is this one; but SQLite shows only milliseconds of it.
    rows = LockedRows(states, holds, time.time_ns() // 1000)
    results = [call.work(rows) for call in calls]
    _write_states(connection, rows)
    _write_holds(connection, rows)
    return results, prune(connection) if prunes else 0


def _make_rows(connection: Connection, cells: Sequence[Cell]) -> None:
    """Inserts rows that are as new, to be locked by a later transaction of PostgreSQL."""
    expires_at = database_clock(connection) + timedelta(minutes=1)
    rows = [{"key": cell.key, "plan": cell.plan, "state": None, "expires_at": expires_at} for cell in cells]
    connection.execute(postgresql.insert(limit_state).on_conflict_do_nothing(), rows)


def _read_states(connection: Connection, cells: Sequence[Cell]) -> dict[Cell, State]:
    states: dict[Cell, State] = {}
    for first in range(0, len(cells), _MOST_CELLS):
        row = sa.tuple_(limit_state.c.key, limit_state.c.plan)
        query = sa.select(limit_state.c.key, limit_state.c.plan, limit_state.c.state)
        for key, plan, text in connection.execute(query.where(row.in_(cells[first : first + _MOST_CELLS]))):
            if text and (state := state_of(text)):
                states[Cell(key, plan)] = state
    return states


def _read_holds(connection: Connection, names: Sequence[HoldName]) -> dict[HoldName, HoldRecord]:
    if not names:
        return {}
    query = sa.select(limit_hold).where(sa.tuple_(limit_hold.c.key, limit_hold.c.id).in_(names))
    return {
        HoldName(row.key, row.id): HoldRecord(marks_of(row.marks or ""), _microseconds(row.expires_at), row.settled)
        for row in connection.execute(query)
    }


def _write_states(connection: Connection, locked_rows: LockedRows) -> None:
    rows = [
        {
            "key": cell.key,
            "plan": cell.plan,
            "state": None if state is None else state_text(state),
            "expires_at": _instant(expires_us),
        }
        for cell, (state, expires_us) in sorted(locked_rows.state_writes.items())
    ]
    _insert_rows(connection, limit_state, rows, updated=("state", "expires_at"))


def _write_holds(connection: Connection, locked_rows: LockedRows) -> None:
    rows = [
        {
            "key": name.key,
            "id": name.id,
            "settled": record.settled,
            "marks": marks_text(record.marks),
            "expires_at": _instant(record.expires_us),
        }
        for name, record in sorted(locked_rows.hold_writes.items())
    ]
    _insert_rows(connection, limit_hold, rows, updated=("settled", "marks", "expires_at"))


def prune(connection: Connection) -> int:
    """Deletes some expired rows, skipping locked ones."""
    now = database_clock(connection)
    deleted = 0
    for table in (limit_state, limit_hold):
        key = table.primary_key.columns
        old = sa.select(*key).where(table.c.expires_at < now).limit(_PRUNE_BATCH)
        if connection.dialect.name == "postgresql":
            old = old.with_for_update(skip_locked=True)
        deleted += connection.execute(sa.delete(table).where(sa.tuple_(*key).in_(old))).rowcount
    return deleted


def _insert_rows(
    connection: Connection, table: sa.Table, rows: Sequence[dict[str, Any]], *, updated: tuple[str, ...]
) -> None:
    """Inserts rows; of those that exist, changes the `updated` columns."""
    if rows:
        statement = sqlite.insert(table)
        columns = {name: statement.excluded[name] for name in updated}
        connection.execute(statement.on_conflict_do_update(index_elements=list(table.primary_key), set_=columns), rows)


def _instant(us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=min(us, LATEST_US))


def _microseconds(instant: datetime) -> int:
    return (instant - _EPOCH) // timedelta(microseconds=1)
