"""Who holds a config's lock, on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from paceline.slots.ports import LockHolder

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


def lock_holders(connection: Connection, names: Sequence[str]) -> dict[str, LockHolder]:
    """The sessions that hold the locks of these configs."""
    rows = connection.execute(_HOLDERS, {"names": list(names)})
    return {name: LockHolder(pid, text or "", float(query), float(held)) for name, pid, text, query, held in rows}
