"""The slots of a config per second, as they were wanted and as they are booked."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy.engine import Connection

from paceline.slots.listing import SlotHistory
from paceline.slots.stores.tables import slot
from paceline.sql.counting import last_instants, per_second
from paceline.sql.schema import now


def read(
    connection: Connection, name: str, last: timedelta, horizon: timedelta, at: datetime | None = None
) -> SlotHistory:
    moment = at or now(connection)
    since = moment - last
    mine = (slot.c.config_name == name) & (slot.c.scheduled_at >= since) & (slot.c.scheduled_at <= moment + horizon)
    past = mine & (slot.c.scheduled_at <= moment)
    wanted = mine & (slot.c.requested_at >= since) & (slot.c.requested_at <= moment)
    return SlotHistory(
        until=moment,
        wanted=per_second(connection, slot.c.requested_at, wanted),
        past=per_second(connection, slot.c.scheduled_at, past),
        instants=last_instants(connection, slot.c.scheduled_at, past),
        booked=per_second(connection, slot.c.scheduled_at, mine & (slot.c.scheduled_at > moment)),
    )
