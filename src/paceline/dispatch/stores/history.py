"""What happened to a queue's items, counted per second from their rows: the same for every process that reads it."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from paceline.dispatch.model import QueueHistory
from paceline.dispatch.status import Status
from paceline.dispatch.stores.tables import DEAD, FINISHED, IN_FLIGHT, READY, UNKNOWN, among, attempt, only, queue
from paceline.sql.counting import MAX_INSTANTS, last_instants, per_second
from paceline.sql.schema import now as database_clock


def read(
    connection: sa.Connection, item_type: str, last: timedelta, horizon: timedelta, now: datetime | None
) -> QueueHistory:
    moment = now or database_clock(connection)
    rows = _Rows(connection, item_type, moment - last)
    begun, instants = rows.begun()
    done, withdrawn = rows.finished()
    return QueueHistory(
        until=moment,
        arrived=rows.arrived(),
        begun=begun,
        instants=instants,
        done=done,
        failed=rows.failed(),
        dead=rows.dead(),
        withdrawn=withdrawn,
        due=rows.due(moment, horizon),
    )


class _Rows:
    """The rows of an item type that changed since a time. Each condition has an index, but for dead letters and
    unknown items: all of those are read."""

    def __init__(self, connection: sa.Connection, item_type: str, since: datetime) -> None:
        self._connection = connection
        self._dialect = connection.dialect.name
        self._item_type = item_type
        self._since = since

    def _of(self, rows: str) -> sa.ColumnElement[bool]:
        return among(rows, self._dialect) & (only(rows, "item_type", self._dialect) == self._item_type)

    def _finished(self) -> sa.ColumnElement[bool]:
        ended = only(FINISHED, "completed_at", self._dialect) >= self._since
        return among(FINISHED, self._dialect) & ended & (queue.c.item_type == self._item_type)

    def _per_second(self, column: sa.ColumnElement[Any], *conditions: sa.ColumnElement[bool]) -> Counter[int]:
        return per_second(self._connection, column, *conditions)

    def arrived(self) -> Counter[int]:
        """An item that arrived since then waits, or is in flight, or ended since then."""
        since = queue.c.created_at >= self._since
        waits = self._of(READY) & (only(READY, "created_at", self._dialect) >= self._since)
        counts = self._per_second(queue.c.created_at, waits)
        for place in (self._of(IN_FLIGHT), self._of(UNKNOWN), self._of(DEAD), self._finished()):
            counts += self._per_second(queue.c.created_at, place, since)
        return counts

    def begun(self) -> tuple[Counter[int], dict[int, int]]:
        """Of items that run, that ended well, and of attempts that did not; per second, and the last instants. An item
        that was resolved has a record of its attempt, too."""
        tried = sa.exists().where(
            attempt.c.item_type == queue.c.item_type,
            attempt.c.item_id == queue.c.item_id,
            attempt.c.claim_epoch == queue.c.claim_epoch,
        )
        places = (
            (queue.c.begun_at, self._of(IN_FLIGHT)),
            (queue.c.begun_at, self._finished() & (queue.c.queue_status == Status.COMPLETED) & ~tried),
            (attempt.c.begun_at, self._tried()),
        )
        seconds: Counter[int] = Counter()
        instants: Counter[int] = Counter()
        for column, place in places:
            seconds += self._per_second(column, place, column >= self._since)
            instants.update(last_instants(self._connection, column, place, column >= self._since))
        return seconds, {at: instants[at] for at in sorted(instants)[-MAX_INSTANTS:]}

    def _tried(self) -> sa.ColumnElement[bool]:
        return (attempt.c.item_type == self._item_type) & (attempt.c.ended_at >= self._since)

    def finished(self) -> tuple[Counter[int], Counter[int]]:
        """What was completed, and what was cancelled."""
        done, withdrawn = (
            self._per_second(queue.c.completed_at, self._finished(), queue.c.queue_status == status)
            for status in (Status.COMPLETED, Status.CANCELLED)
        )
        return done, withdrawn

    def failed(self) -> Counter[int]:
        return self._per_second(attempt.c.ended_at, self._tried())

    def dead(self) -> Counter[int]:
        return self._per_second(queue.c.updated_at, self._of(DEAD), queue.c.updated_at >= self._since)

    def due(self, moment: datetime, horizon: timedelta) -> Counter[int]:
        due_at = only(READY, "due_at", self._dialect)
        waits = self._per_second(queue.c.due_at, self._of(READY), due_at > moment, due_at <= moment + horizon)
        held = self._of(IN_FLIGHT) & queue.c.begun_at.is_(None)
        return waits + self._per_second(
            queue.c.due_at, held, queue.c.due_at > moment, queue.c.due_at <= moment + horizon
        )
