"""What an operator sees of items in this process's memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from paceline.dispatch.model import Attempt, Item, QueueHistory, QueueStats
from paceline.dispatch.status import IN_FLIGHT, Status
from paceline.dispatch.worker.heartbeats import Worker, is_attended
from paceline.durations import EPOCH

MICROSECOND = timedelta(microseconds=1)


def history_of(
    items: Sequence[Item],
    attempts: Mapping[tuple[str, str], Sequence[Attempt]],
    last: timedelta,
    horizon: timedelta,
    now: datetime,
) -> QueueHistory:
    """The history of a type's items, which made these attempts."""
    since = now - last
    tried = [one for some in attempts.values() for one in some]
    recorded = {(key[1], one.began_at) for key, some in attempts.items() for one in some}
    running = [item for item in items if item.status in (*IN_FLIGHT, Status.COMPLETED)]
    begun = [item.begun_at for item in running if (item.item_id, item.begun_at) not in recorded]
    begun += [one.began_at for one in tried]
    completed = [item.completed_at for item in items if item.status is Status.COMPLETED]
    due = [
        item.due_at
        for item in items
        if item.status is Status.READY or (item.status in IN_FLIGHT and item.begun_at is None)
    ]

    def recent(times: Iterable[datetime | None]) -> list[datetime]:
        return [at for at in times if at is not None and at >= since]

    def seconds(times: Iterable[datetime | None]) -> Counter[int]:
        return Counter(int(at.timestamp()) for at in recent(times))

    return QueueHistory(
        now,
        seconds(item.created_at for item in items),
        seconds(begun),
        Counter((at - EPOCH) // MICROSECOND for at in recent(begun)),
        seconds(completed),
        seconds(one.ended_at for one in tried),
        seconds(item.updated_at for item in items if item.status is Status.DEAD_LETTER),
        seconds(item.completed_at for item in items if item.status is Status.CANCELLED),
        Counter(int(at.timestamp()) for at in due if now < at <= now + horizon),
    )


def stats_of(item_type: str, items: Sequence[Item], workers: Sequence[Worker], now: datetime) -> QueueStats:
    """The state of a type that these workers serve."""
    in_flight = [item for item in items if item.status in IN_FLIGHT]
    held = [item for item in in_flight if item.begun_at is None]
    waiting = [item for item in items if item.status is Status.READY]
    due = [item.due_at for item in [*waiting, *held] if item.due_at <= now]
    return QueueStats(
        item_type,
        Counter(item.status for item in items),
        now - min(due) if due else None,
        late=len(due),
        held=len(held),
        running=len(in_flight) - len(held),
        workers=len(workers),
        attended=is_attended(workers, item_type),
    )
