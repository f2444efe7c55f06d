"""What an operator changes about items: cancel them, or move what waits to another time, priority or lane. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

from headgate.dispatch.model import Action, Claim, Item
from headgate.dispatch.status import FINISHED, IN_FLIGHT, Status
from headgate.durations import format_instant
from headgate.errors import Conflict


@dataclass(frozen=True, slots=True)
class Cancellation:
    """The items end as CANCELLED, whether they wait, run or are dead letters. An execution that runs loses its claim:
    nothing that it reports counts any more, and its engine cancels it."""

    reason: str | None = None
    action = Action.CANCELLED

    def applied(self, item: Item, now: datetime, *, is_followed: bool) -> Item:
        """The item after it.

        Raises:
            Conflict: it is finished, or in flight and its application alone knows whether it may be called off.
        """
        if item.status in FINISHED:
            raise Conflict(f"item {item.item_id!r} is {item.status} and can't be cancelled")
        if item.status in IN_FLIGHT and is_followed:
            raise Conflict(
                f"item {item.item_id!r} is {item.status} and can't be cancelled here: only its application knows "
                "whether it has begun"
            )
        return replace(item, status=Status.CANCELLED, completed_at=now, updated_at=now)

    def detail(self, before: Item) -> str | None:
        """For the audit."""
        if self.reason is not None:
            return self.reason
        return "while in flight" if before.status in IN_FLIGHT else before.last_error


@dataclass(frozen=True, slots=True)
class Rescheduling:
    """Items that wait get another time, priority or lane; what is None stays."""

    execute_at: datetime | None = None
    priority: int | None = None
    lane: str | None = None
    action = Action.RESCHEDULED

    def applied(self, item: Item, now: datetime, *, is_followed: bool) -> Item:
        """The item after it.

        Raises:
            Conflict: it does not wait, or its time is its application's.
        """
        if item.status is not Status.READY:
            raise Conflict(f"item {item.item_id!r} is {item.status} and can't be rescheduled; only READY items wait")
        if self.execute_at is not None:
            if is_followed or item.slotted:
                raise Conflict(
                    f"item {item.item_id!r} has a booked slot, or a time that belongs to its application, "
                    "and can't be rescheduled"
                )
            item = replace(item, execute_at=self.execute_at, due_at=max(self.execute_at, now))
        priority = item.priority if self.priority is None else self.priority
        return replace(item, priority=priority, lane=self.lane or item.lane, updated_at=now)

    def detail(self, before: Item) -> str | None:
        """For the audit."""
        parts = []
        if self.execute_at is not None:
            parts.append(f"executeAt {format_instant(before.execute_at)} -> {format_instant(self.execute_at)}")
        if self.priority is not None:
            parts.append(f"priority {before.priority} -> {self.priority}")
        if self.lane is not None:
            parts.append(f"lane {before.lane} -> {self.lane}")
        return ", ".join(parts)


ItemChange = Cancellation | Rescheduling


class Changed(NamedTuple):
    """What came of a change."""

    total: int
    in_flight: list[Claim]
    """Items whose executions are to be stopped."""
