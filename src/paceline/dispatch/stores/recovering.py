"""Recovery writes only claims that are still stale: a heartbeat may have come since they were read."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import sqlalchemy as sa

from paceline.dispatch.model import BatchSummary, Change
from paceline.dispatch.status import Status
from paceline.dispatch.stores.portable import locked
from paceline.dispatch.stores.reports import Settle
from paceline.sql.schema import now as database_clock


def of_silent(write: Settle, silent_for: timedelta) -> Settle:
    """`write`, for changes of claims without a heartbeat for `silent_for`, and of items whose hold is over."""

    def settle(
        connection: sa.Connection, changes: Sequence[Change], summaries: Sequence[BatchSummary], now: datetime | None
    ) -> list[bool]:
        rows = locked(connection, [change.claim for change in changes])
        deadline = (now or database_clock(connection)) - silent_for
        silent = {key for key, row in rows.items() if row.seen_at is not None and row.seen_at <= deadline}
        is_silent = [
            # The end of a hold needs no silence: nothing sends a heartbeat.
            change.seen is Status.UNKNOWN or (change.claim.item_type, change.claim.item_id) in silent
            for change in changes
        ]
        recovered = [change for change, silent_still in zip(changes, is_silent, strict=True) if silent_still]
        done = iter(write(connection, recovered, summaries, now))
        return [silent_still and next(done) for silent_still in is_silent]

    return settle
