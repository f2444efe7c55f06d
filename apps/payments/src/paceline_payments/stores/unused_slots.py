"""Slots to come that no payment uses, found in pages: other transactions run between two of them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from paceline.slots.stores.tables import slot
from paceline.sql.engine import Database
from paceline.sql.schema import now as database_clock
from paceline_payments.stores.tables import payment

PAGE = 2000
MAX_UNUSED = 10_000


class SlotUse(NamedTuple):
    """A slot, and the status of its payment."""

    event_id: str
    scheduled_at: datetime
    created_at: datetime
    owner: str | None
    status: str | None
    """None if there is no payment."""


async def unused_slots(
    database: Database, owner: str, prefix: str, is_unused: Callable[[SlotUse, datetime], bool]
) -> list[str]:
    """The owner's slots to come that are named `prefix` and an id, and that `is_unused` selects at this time; at most
    `MAX_UNUSED` of them."""
    moment = await database.read(database_clock)
    # A dict: a slot that a re-plan moves meanwhile may be on two pages.
    unused: dict[str, None] = {}
    last: tuple[datetime, str | None] = moment, None
    while page := await database.read(_page, prefix, *last):
        for use in page:
            if use.owner == owner and use.event_id.startswith(prefix) and is_unused(use, moment):
                unused[use.event_id] = None
        if len(page) < PAGE or len(unused) >= MAX_UNUSED:
            break
        last = page[-1].scheduled_at, page[-1].event_id
    return list(unused)[:MAX_UNUSED]


def _page(connection: Connection, prefix: str, after: datetime, after_event: str | None) -> list[SlotUse]:
    """The next slots of any owner, in order of their times: no index selects an owner's, and a page of its own would
    have no bound."""
    behind = slot.c.scheduled_at > after
    if after_event is not None:
        # The first condition is implied by the second. It lets the planner start at the cursor.
        behind = (slot.c.scheduled_at >= after) & (behind | (slot.c.event_id > after_event))
    some = (
        sa.select(slot.c.event_id, slot.c.scheduled_at, slot.c.created_at, slot.c.owner)
        .where(behind)
        .order_by(slot.c.scheduled_at, slot.c.event_id)
        .limit(PAGE)
        .subquery("some")
    )
    # The payment's id is cut out of the event's. The other way round, prefix and id compared with the event's, has no
    # index: SQLite would read all payments for every slot.
    is_its = payment.c.payment_id == sa.func.substr(some.c.event_id, len(prefix) + 1)
    rows = connection.execute(
        sa.select(*some.c, payment.c.status)
        .select_from(some.outerjoin(payment, is_its))
        .order_by(some.c.scheduled_at, some.c.event_id)
    )
    return [SlotUse._make(row) for row in rows]
