"""The locks of configs on PostgreSQL: waiting for them, and who holds them."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from psycopg.pq import TransactionStatus
from sqlalchemy.engine import Connection

from paceline.errors import LockTimeout
from paceline.slots.ports import LockHolder
from paceline.sql.pipeline import (
    BEGIN,
    Call,
    Raw,
    Rows,
    Statement,
    execute_pipeline,
    run_async,
    text_of,
    texts,
    whole_of,
)

LOCK_SECONDS = 2.0
"""How long a transaction waits for configs' locks: well below its deadline, so that the caller learns which config it
is, and others continue without it."""

SET_TIMEOUT = f"set_config('lock_timeout', '{round(LOCK_SECONDS * 1000)}', true)"
"""A column that sets this for the following statements of its transaction."""
_SET_TIMEOUT = Statement("paceline_slot_lock_timeout", f"SELECT {SET_TIMEOUT}")
# In the order of the given names, which are sorted: rows are locked in this order. The last row's clock is read when
# all are locked.
LOCK = Statement(
    "paceline_slot_lock",
    """
    SELECT name, version, ceil(extract(epoch FROM clock_timestamp()) * 1000)::bigint
    FROM (
        SELECT config.name, config.version
        FROM unnest($1::text[]) WITH ORDINALITY AS requested(name, place)
        JOIN paceline_slot_config AS config ON config.name = requested.name
        ORDER BY requested.place FOR UPDATE OF config
    ) AS locked
    """,
)
# A locked row has its holder's transaction id as xmax, and a transaction holds a lock on its own id until it ends.
_HOLDERS = sa.text(
    """
    SELECT config.name, activity.pid, activity.application_name,
        extract(epoch FROM clock_timestamp() - coalesce(activity.query_start, activity.backend_start)),
        extract(epoch FROM clock_timestamp() - coalesce(activity.xact_start, activity.backend_start))
    FROM paceline_slot_config AS config
    JOIN pg_locks AS held ON held.locktype = 'transactionid' AND held.granted AND held.mode = 'ExclusiveLock'
        AND held.transactionid = config.xmax
    JOIN pg_stat_activity AS activity ON activity.pid = held.pid
    WHERE config.name = ANY(:names)
    """
)


def lock(connection: Connection, names: Sequence[str]) -> dict[str, int]:
    """Locks the rows of those configs that there are, in the given order, and returns their active versions.

    Raises:
        LockTimeout: one of the locks did not become free in time.
    """
    calls: list[Call] = [(_SET_TIMEOUT, ()), (LOCK, (texts(names),))]

    async def run(raw: Raw) -> list[Rows]:
        begun = raw.pgconn.transaction_status != TransactionStatus.IDLE
        return await execute_pipeline(raw, calls if begun else [(BEGIN, ()), *calls])

    try:
        rows: Rows = run_async(connection, run)[-1]
    except LockTimeout as error:
        raise LockTimeout(
            f"the lock of a config did not become free within {LOCK_SECONDS:g} s", tuple(names)
        ) from error
    return {text_of(name): whole_of(version) for name, version, _ in rows}


def lock_holders(connection: Connection, names: Sequence[str]) -> dict[str, LockHolder]:
    """The sessions that hold the locks of these configs."""
    rows = connection.execute(_HOLDERS, {"names": list(names)})
    return {name: LockHolder(pid, text or "", float(query), float(held)) for name, pid, text, query, held in rows}
