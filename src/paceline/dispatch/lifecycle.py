"""`ScheduleLifecycle`: the last step of an init workflow, composed into it rather than inherited."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from paceline.dispatch.queue import DispatchQueue
from paceline.durations import parse_instant
from paceline.errors import PacelineError
from paceline.slots.model import SlotRequest
from paceline.slots.scheduler import SlotScheduler


class ScheduleResult(NamedTuple):
    """An item that will run by itself; the init workflow may end."""

    item_id: str
    execute_at: datetime
    existing: bool
    """True when it had been scheduled before."""


class ScheduleLifecycle:
    """Books a slot, if there is a scheduler, then saves the context and queues the item, in this order: a crash in
    between leaves a slot that a retry finds again, never an item without its context.

        lifecycle = ScheduleLifecycle(queue, "REPORT", slots=slots)
        await lifecycle.schedule("report-1", {"customer": 7}, "2027-03-01T16:00:00Z")

    Every call is idempotent: the same item keeps its slot and its place. Slots are booked under the item's id, so
    domains that share a slot config should not share ids. `slot_config` may name several configs: a slot then lies in
    one window of each.
    """

    def __init__(
        self,
        queue: DispatchQueue,
        item_type: str,
        *,
        slots: SlotScheduler | None = None,
        slot_config: str | Sequence[str] = "default",
    ) -> None:
        self._queue = queue
        self._item_type = item_type
        self._slots = slots
        self._slot_config = slot_config

    async def schedule(
        self, item_id: str, context: Any, execute_at: datetime | str, *, init_workflow_id: str | None = None
    ) -> ScheduleResult:
        """Schedules one item to run at `execute_at`, or at the next slot after it."""
        slot = None
        if self._slots is not None:
            slot = await self._slots.assign(item_id, self._slot_config, execute_at)
        moment = slot.scheduled_time if slot is not None else parse_instant(execute_at, "execute_at")
        queued = await self._queue.enqueue(
            self._item_type,
            item_id,
            context=context,
            execute_at=moment,
            slot=slot,
            init_workflow_id=init_workflow_id,
        )
        return ScheduleResult(item_id, moment, queued.existing)

    async def schedule_many(
        self, items: Sequence[tuple[str, Any, datetime | str]]
    ) -> list[ScheduleResult | PacelineError]:
        """Schedules many, given as `(item_id, context, execute_at)`. For an item that gets no slot, its error is
        returned in its place."""
        results: dict[int, ScheduleResult | PacelineError] = {}
        moments: dict[int, datetime] = {}
        if self._slots is None:
            moments = {at: parse_instant(when, "execute_at") for at, (_, _, when) in enumerate(items)}
        else:
            requests = [SlotRequest.of(item_id, when) for item_id, _, when in items]
            for at, booking in enumerate(await self._slots.book(requests, self._slot_config)):
                if isinstance(booking, PacelineError):
                    results[at] = booking
                else:
                    moments[at] = booking.scheduled_time
        queued = await self._queue.enqueue_many(
            self._item_type,
            [(items[at][0], items[at][1], moment) for at, moment in moments.items()],
            slotted=self._slots is not None,
        )
        for (at, moment), entry in zip(moments.items(), queued, strict=True):
            results[at] = ScheduleResult(entry.item_id, moment, entry.existing)
        return [results[at] for at in range(len(items))]
