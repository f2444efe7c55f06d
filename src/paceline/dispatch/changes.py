"""Changes to items from outside of their executions: cancel, requeue, discard, expire, resolve, or set another time,
priority or lane. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from paceline.dispatch.model import Action, Claim, Item, shortened
from paceline.dispatch.status import FINISHED, IN_FLIGHT, Status, may
from paceline.durations import format_instant
from paceline.errors import Conflict, InvalidInput

LONGEST_REASON = 1000
"""Characters."""


@dataclass(frozen=True, slots=True)
class Cancellation:
    """The items end as CANCELLED, whether they wait, run or are dead letters. A running execution loses its claim: its
    reports are ignored, and its engine cancels it."""

    reason: str | None = None
    action = Action.CANCELLED
    to = Status.CANCELLED

    def applied(self, item: Item, now: datetime, *, is_followed: bool) -> Item:
        """The item after it.

        Raises:
            Conflict: it is finished, or in flight and only its application can decide whether to cancel it.
        """
        if item.status in FINISHED:
            raise Conflict(f"item {item.item_id!r} is {item.status} and can't be cancelled")
        if item.status in IN_FLIGHT and is_followed:
            raise Conflict(
                f"item {item.item_id!r} is {item.status} and can't be cancelled here: only its application knows "
                "whether it has begun"
            )
        last_attempt = item.attempt if item.status in IN_FLIGHT else item.last_attempt
        return replace(item, status=Status.CANCELLED, completed_at=now, updated_at=now, last_attempt=last_attempt)

    def detail(self, before: Item) -> str | None:
        """For the audit."""
        if self.reason is not None:
            return self.reason
        return "while in flight" if before.status in IN_FLIGHT else before.last_error


@dataclass(frozen=True, slots=True)
class Rescheduling:
    """Waiting items get another time, priority or lane; None leaves a field as it is."""

    execute_at: datetime | None = None
    priority: int | None = None
    lane: str | None = None
    action = Action.RESCHEDULED
    to = None

    def applied(self, item: Item, now: datetime, *, is_followed: bool) -> Item:
        """The item after it.

        Raises:
            Conflict: it is not waiting, or its application sets its time.
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


@dataclass(frozen=True, slots=True)
class Redirection:
    """Dead letters are requeued (to READY), as new; or items that wait or are dead letters are discarded (to
    CANCELLED)."""

    to: Status

    @property
    def action(self) -> Action:
        return Action.REQUEUED if self.to is Status.READY else Action.DISCARDED

    def applied(self, item: Item, now: datetime, *, is_followed: bool) -> Item:
        """The item after it.

        Raises:
            Conflict: its status does not allow this.
        """
        checked_redirection(item.status, self.to, item.item_id)
        return redirected(item, self.to, now)

    def detail(self, before: Item) -> str | None:
        """For the audit."""
        return before.last_error


@dataclass(frozen=True, slots=True)
class Expiry:
    """Items that are too late become dead letters: those that wait, and those in flight whose execution has not begun,
    which then does not begin."""

    reason: str
    action = Action.DEAD_LETTERED
    to = Status.DEAD_LETTER

    def applied(self, item: Item, now: datetime, *, is_followed: bool) -> Item:
        """The item after it.

        Raises:
            Conflict: it has begun, or has ended.
        """
        if item.status is not Status.READY and not (item.status in IN_FLIGHT and item.begun_at is None):
            raise Conflict(f"item {item.item_id!r} is {item.status}, and does not wait any more")
        return replace(item, status=self.to, last_error=shortened(self.reason), updated_at=now)

    def detail(self, before: Item) -> str:
        """For the audit."""
        return shortened(self.reason)


class ResolvedAs(StrEnum):
    """What became of an attempt in doubt."""

    DONE = "done"
    """It was executed: the item is COMPLETED."""
    REFUSED = "refused"
    """It was refused: the item is a dead letter with the reason."""
    AGAIN = "again"
    """It was never executed: the item is READY."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """Somebody knows what became of the attempts in doubt: a receipt, or an operator who asked."""

    outcome: ResolvedAs
    reason: str | None = None
    action = Action.RESOLVED

    @classmethod
    def of(cls, outcome: str, reason: str | None = None) -> Resolution:
        """A checked one.

        Raises:
            InvalidInput: the outcome or the reason is wrong.
        """
        if outcome not in tuple(ResolvedAs):
            raise InvalidInput("outcome", f"{outcome!r:.80} is unknown; use done, refused or again")
        if reason is not None and (not isinstance(reason, str) or not 0 < len(reason) <= LONGEST_REASON):
            raise InvalidInput("reason", f"must be a text of 1 to {LONGEST_REASON} characters")
        return cls(ResolvedAs(outcome), None if reason is None else shortened(reason))

    @property
    def to(self) -> Status:
        ends = {ResolvedAs.DONE: Status.COMPLETED, ResolvedAs.REFUSED: Status.DEAD_LETTER}
        return ends.get(self.outcome, Status.READY)

    def applied(self, item: Item, now: datetime, *, is_followed: bool) -> Item:
        """The item after it.

        Raises:
            Conflict: nothing is in doubt about it, it is being inquired just now, or its application decides.
        """
        if item.status in IN_FLIGHT:
            raise Conflict(f"item {item.item_id!r} is {item.status}: it runs, or is inquired; try again later")
        if item.unknown_since is None or item.status in FINISHED:
            raise Conflict(f"item {item.item_id!r} is {item.status}, and none of its attempts is in doubt")
        if is_followed:
            raise Conflict(f"item {item.item_id!r} belongs to an application, which decides its outcome")
        resolved = replace(item, status=self.to, unknown_since=None, updated_at=now)
        if self.outcome is ResolvedAs.DONE:
            # The attempt that was counted as a retry is the one that succeeded.
            return replace(resolved, completed_at=now, retry_count=max(0, item.retry_count - 1))
        if self.outcome is ResolvedAs.REFUSED:
            return replace(resolved, last_error=self.reason or "refused", last_attempt=item.retry_count)
        return replace(resolved, due_at=max(item.execute_at, now))

    def detail(self, before: Item) -> str:
        """For the audit."""
        return self.outcome if self.reason is None else f"{self.outcome}: {self.reason}"


def checked_redirection(before: Status, to: Status, item_id: str, *, in_flight: bool = False) -> None:
    """Raises `Conflict` unless an operator may requeue (to READY) or discard (to CANCELLED) an item in this status.
    With `in_flight`, the caller knows that a claimed or dispatched item has not begun."""
    if before is Status.UNKNOWN:
        raise Conflict(f"item {item_id!r} is UNKNOWN: it may have been executed; resolve it as done, refused or again")
    if (before in IN_FLIGHT and not in_flight) or not may(before, to):
        verb = "requeued" if to is Status.READY else "discarded"
        raise Conflict(f"item {item_id!r} is {before} and can't be {verb}")


def redirected(item: Item, to: Status, now: datetime) -> Item:
    """The item after an operator requeued or discarded it. A requeued item is as new, except for its claim's epoch:
    holders of an older claim stay fenced off."""
    if to is Status.CANCELLED:
        return replace(item, status=to, completed_at=now, updated_at=now)
    return replace(
        item,
        status=to,
        due_at=max(item.execute_at, now),
        batch_id=None,
        exec_workflow_id=None,
        claimed_at=None,
        seen_at=None,
        dispatched_at=None,
        completed_at=None,
        retry_count=0,
        last_attempt=None,
        last_error=None,
        begun_at=None,
        worker=None,
        code_version=None,
        unknown_since=None,
        updated_at=now,
    )


ItemChange = Cancellation | Rescheduling | Redirection | Expiry | Resolution
CHANGES: dict[str, ItemChange] = {
    "requeue": Redirection(Status.READY),
    "discard": Redirection(Status.CANCELLED),
    "cancel": Cancellation(),
    "reschedule": Rescheduling(),
}
"""By its name: a change whose effect can be previewed."""


def change_named(name: str, execute_at: datetime | None = None) -> ItemChange:
    """The change of this name; a rescheduling to another time, or to another priority or lane only.

    Raises:
        InvalidInput: there is no such change, or it takes no time.
    """
    if name not in CHANGES:
        raise InvalidInput("change", f"must be one of {', '.join(CHANGES)}")
    if execute_at is None:
        return CHANGES[name]
    if name != "reschedule":
        raise InvalidInput("executeAt", "is for change=reschedule only; leave it out")
    return Rescheduling(execute_at)


class Preview(NamedTuple):
    """The effect of a change on all items that match."""

    matching: int
    changing: int
    """Those of them that can be changed."""
    is_whole: bool = True
    """False if more items match than were examined."""


class ChangeResult(NamedTuple):
    """The result of a change."""

    total: int
    in_flight: list[Claim]
    """Items whose executions are to be stopped."""
