"""The model of the queue: the request for an item, its claim, its changes, its audit trail."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple, cast

from paceline.dispatch.config import DispatchConfig, checked_type
from paceline.dispatch.status import Status, checked_step, origins
from paceline.dispatch.turns import DEFAULT_LANE, DEFAULT_PRIORITY, checked_lane, checked_priority
from paceline.durations import format_instant, parse_instant
from paceline.errors import Conflict, InvalidInput, PacelineError
from paceline.slots.model import LONGEST_ID, AssignedSlot, checked_id

CONTEXT_VERSION = 1
"""The form in which contexts are stored. Another one was written by a newer version of paceline."""
ENCRYPTED_VERSION = 2
"""The same, encrypted."""
LARGEST_CONTEXT = 2 * 1024 * 1024
"""Bytes of JSON; the default limit."""
CLAIM_BYTES = 32 * 1024 * 1024
"""Bytes of contexts that one claim takes; its first item is taken whatever its size. The in-process engine takes no
more items of a type while it has this much of it."""
LONGEST_ERROR = 2000
LARGEST_RESULT = 64 * 1024
"""Bytes of JSON of a task's result."""
LONGEST_PROGRESS = 500
LONGEST_NUMBER = 24
"""Characters behind the key in the id of a further item of it."""
LONGEST_TRACEBACK = 16_000
"""Characters; of a longer one, the end is kept."""
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_scan: Callable[[str, int], tuple[Any, int]] = cast(Any, json.JSONDecoder()).scan_once
LONGEST_WORKFLOW_ID = 400
IN_LINE_UNTIL = datetime(2198, 1, 1, tzinfo=UTC)
"""The time of an item that waits in the line of its lock."""
MOST_ABANDONED = 1000
"""Claims of silent workers that are recovered at a time."""


class EnqueueRequest(NamedTuple):
    """An item to be queued. Build it with `EnqueueRequest.of`, which validates."""

    item_type: str
    item_id: str
    context_json: str
    execute_at: datetime | None
    """When to run it; None or a past time mean now."""
    slotted: bool = False
    """Its time is a booked slot: it gets no jitter."""
    init_workflow_id: str | None = None
    traceparent: str | None = None
    """The trace its execution will be part of."""
    lane: str = DEFAULT_LANE
    priority: int = DEFAULT_PRIORITY
    slot_id: str | None = None
    """The event of the slot that it carries, if that is not the item's own id."""
    while_waiting: bool = False
    """The id is a key: an item of it that is READY is this one; else a new one is queued, also beside one that runs or
    has ended."""
    lock: str | None = None
    """The name of the lock that its execution holds."""

    @classmethod
    def of(
        cls,
        item_type: str,
        item_id: str,
        context: Any = None,
        execute_at: datetime | str | None = None,
        *,
        slot: AssignedSlot | None = None,
        slotted: bool = False,
        init_workflow_id: str | None = None,
        lane: str | None = None,
        priority: int | None = None,
        while_waiting: bool = False,
        lock: str | None = None,
        largest_context: int = LARGEST_CONTEXT,
    ) -> EnqueueRequest:
        """A checked request. A `slot` gives the time, unless `execute_at` says otherwise."""
        checked_type(item_type)
        checked_id(item_id, "item_id")
        slot_id = None
        if slot is not None:
            slot_id = slot.event_id if slot.owner is None and slot.event_id != item_id else None
            execute_at = slot.scheduled_time if execute_at is None else execute_at
        moment = None if execute_at is None else parse_instant(execute_at, "execute_at")
        if slot is not None:
            slotted = moment == slot.scheduled_time
        if init_workflow_id is not None:
            good = isinstance(init_workflow_id, str) and 0 < len(init_workflow_id) <= LONGEST_WORKFLOW_ID
            if not good or not init_workflow_id.isprintable():
                raise InvalidInput(
                    "init_workflow_id", f"must be a text of 1 to {LONGEST_WORKFLOW_ID} printable characters"
                )
        text = context_json(context, largest_context)
        place = checked_lane(lane), checked_priority(priority)
        if while_waiting and len(item_id) > LONGEST_ID - LONGEST_NUMBER:
            raise InvalidInput(
                "item_id", f"has {len(item_id)} characters; here at most {LONGEST_ID - LONGEST_NUMBER} are allowed"
            )
        kind = bool(slotted), init_workflow_id, None
        return cls(item_type, item_id, text, moment, *kind, *place, slot_id, while_waiting, checked_lock(lock))


def checked_lock(lock: object) -> str | None:
    """The name of a lock: 1 to 255 printable characters; None for no lock.

    Raises:
        InvalidInput: it is no such name.
    """
    if lock is None:
        return None
    if not isinstance(lock, str) or not 0 < len(lock) <= LONGEST_ID or not lock.isprintable() or lock.strip() != lock:
        raise InvalidInput("lock", f"must be a text of 1 to {LONGEST_ID} printable characters, without spaces around")
    return lock


def waiting_id(key: str) -> str:
    """The id of a further item of a key: unique, in the order of time."""
    return f"{key}#{time.time_ns() // 1000:x}{os.urandom(3).hex()}"


class EnqueueResult(NamedTuple):
    """The result of an enqueue."""

    item_type: str
    item_id: str
    existing: bool
    """True when the item was queued before this call, whatever became of it since; it was left as it is."""


class Claim(NamedTuple):
    """The right to change one item. The epoch grows with every claim of the item: an older one can change nothing."""

    item_type: str
    item_id: str
    epoch: int
    retries: int
    """How many retries the item had used when it was claimed; true as long as the epoch is."""
    lock: str | None = None
    """The lock that its execution holds."""

    @property
    def execution_id(self) -> str:
        """The id under which engines run the item: always the same, so that none runs it twice at once."""
        return f"exec-{self.item_type}-{self.item_id}"


class ClaimedItem(NamedTuple):
    """A claim with all that is needed to start it."""

    claim: Claim
    execute_at: datetime
    slotted: bool
    context_json: str | None
    traceparent: str | None = None
    context_version: int = CONTEXT_VERSION
    lane: str = DEFAULT_LANE
    priority: int = DEFAULT_PRIORITY
    has_begun: bool = False
    """Its body begins at once: that is written with the claim."""
    unknown_since: datetime | None = None
    """When an earlier attempt began whose effect nobody knows; None if there is none."""


class SilentClaim(NamedTuple):
    """A claim in flight without a heartbeat; or that of an item whose hold is over, which is UNKNOWN."""

    claim: Claim
    status: Status
    has_begun: bool
    """The body of its execution began."""


class AbandonedClaim(NamedTuple):
    """A claim in flight whose worker is silent, and did not renew it either."""

    silent: SilentClaim
    process: str
    """The name of the worker's process, …"""
    machine: str | None
    """… and where it can be seen."""
    silent_for: timedelta


class Outlook(NamedTuple):
    """What one look at an item type found, by the store's clock."""

    config: DispatchConfig
    moment: datetime
    """The time of the look."""
    next_due: datetime | None
    """When the first of its waiting items is due."""
    silent_since: datetime | None
    """The oldest heartbeat of its claims in flight."""
    hold_ends: datetime | None
    """The first end of a hold."""
    requested_at: float | None = None
    """When this process looked, by `uptime`; set by the cycle."""

    @property
    def needs_recovery(self) -> bool:
        """Whether a claim is stale, or a hold is over."""
        stale = self.silent_since is not None and self.silent_since <= self.moment - self.config.stale_after
        return stale or (self.hold_ends is not None and self.hold_ends <= self.moment)

    def is_due(self, look_ahead: timedelta) -> bool:
        """Whether an item is due within `look_ahead`."""
        return self.next_due is not None and self.next_due <= self.moment + look_ahead


class Batch(NamedTuple):
    """Items claimed together, by the store's clock."""

    batch_id: str
    claimed_at: datetime
    items: list[ClaimedItem]
    claim_requested_at: float | None = None
    """When this process requested them, by `uptime`; set by the cycle."""
    is_cut: bool = False
    """A bound, on items or bytes, ended it: more may be due."""


class GiveUp(PacelineError):
    """Raised by an execution: a retry can't help. The item is a dead letter at once, with this reason.

    `verdict` is a word for the item type's follower (`paceline.dispatch.ports.Follower`), if it has one.
    """

    def __init__(self, reason: str, verdict: str | None = None) -> None:
        super().__init__(reason)
        self.verdict = verdict


class Postponed(PacelineError):
    """Raised by an execution that could not do its work now, through no fault of the item. The item goes back and no
    retry is counted; with `pause` it is not due again before that."""

    def __init__(self, reason: str, pause: timedelta | None = None) -> None:
        super().__init__(reason)
        self.pause = pause


class Writing(NamedTuple):
    """What an execution writes in the transaction that completes its item."""

    write: Callable[[Any, Sequence[Any]], object]
    """Gets the store's connection, and the records of all items that are completed in the transaction."""
    record: Any
    even_if_lost: bool = False
    """Also if the claim was lost meanwhile, so that the item is not completed by this execution."""


class WritingRefused(PacelineError):
    """What an execution writes with its completion raised an error: nothing of the transaction was written."""


class Completion(NamedTuple):
    """Returned by an execution that keeps a result."""

    result_json: str | None
    detail: str | None = None
    """For the audit: why there is no result, say."""
    writings: tuple[Writing, ...] = ()


class Progress(NamedTuple):
    """The progress that an execution reports. Build it with `Progress.of`, which validates."""

    fraction: float
    text: str

    @classmethod
    def of(cls, fraction: float, text: str = "") -> Progress:
        number = isinstance(fraction, int | float) and not isinstance(fraction, bool)
        if not number or not 0 <= fraction <= 1:
            raise InvalidInput("fraction", "must be a number from 0 to 1")
        if not isinstance(text, str):
            raise InvalidInput("text", "must be a text")
        return cls(float(fraction), shortened(text)[:LONGEST_PROGRESS] if text else "")


class ItemReport(NamedTuple):
    """What an item's execution reported about itself."""

    progress: Progress | None
    """Of the latest claim."""
    result_json: str | None


class Action(StrEnum):
    """The action of an audit entry."""

    CLAIMED = "CLAIMED"
    DISPATCHED = "DISPATCHED"
    ADOPTED = "ADOPTED"
    """Its execution was running although the start was never recorded."""
    RELEASED = "RELEASED"
    """Given back unrun, without counting a retry."""
    START_FAILED = "START_FAILED"
    STALE_RECOVERED = "STALE_RECOVERED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    DEAD_LETTERED = "DEAD_LETTERED"
    REQUEUED = "REQUEUED"
    DISCARDED = "DISCARDED"
    CANCELLED = "CANCELLED"
    RESCHEDULED = "RESCHEDULED"
    """Given another time, priority or lane while it waited."""
    UNKNOWN = "UNKNOWN"
    """An attempt ended, and nobody knows its effect."""
    RESOLVED = "RESOLVED"
    """Somebody knew the effect of an attempt that was in doubt."""
    CONFIGURED = "CONFIGURED"
    BATCH_COMPLETE = "BATCH_COMPLETE"


class AttemptOutcome(StrEnum):
    """How an attempt ended that had no success."""

    FAILED = "failed"
    """It raised."""
    REFUSED = "refused"
    """It reported that a retry can't help."""
    UNKNOWN = "unknown"
    """It began, and nobody knows its effect: its process ended without an outcome, it ran beyond its timeout, or it
    raised `OutcomeUnknown`."""


class AttemptEnd(NamedTuple):
    """The end of an attempt, for its record."""

    outcome: AttemptOutcome
    traceback: str | None = None


class Attempt(NamedTuple):
    """An attempt that ended in no success."""

    number: int
    """Counted from 1; a requeued item begins at 1 again."""
    began_at: datetime | None
    """None if its engine does not report it."""
    ended_at: datetime
    outcome: AttemptOutcome
    error: str | None
    traceback: str | None
    worker: str | None
    """The host and the process."""
    code_version: str | None


class Change(NamedTuple):
    """One item's next step, decided; a store writes it if the claim still holds and the status allows it."""

    claim: Claim
    path: tuple[Status, ...]
    """The statuses passed through; it rests in the last."""
    action: Action
    retries: int
    error: str | None = None
    """Replaces the item's last error; None keeps it."""
    pause: timedelta | None = None
    """Not due again before this long from now; None keeps its time."""
    batch_id: str | None = None
    detail: str | None = None
    seen: Status | None = None
    """The status the decision is based on: a concurrent change voids it. None for any status."""
    verdict: str | None = None
    """What the execution gave up with (`GiveUp.verdict`), for the item type's follower."""
    result_json: str | None = None
    """What a completed execution returned, if it is kept."""
    start: Change | None = None
    """The record of the execution's start, if this is the outcome and the start is not written yet. If the item is
    CLAIMED, both are written, one after the other; if it is DISPATCHED already, this change alone."""
    last_attempt: int | None = None
    """The number of the execution that ended, if it ends the item and counts no retry; None keeps the item's."""

    attempt: AttemptEnd | None = None
    """How the attempt ended, if it began and had no success."""
    in_doubt: bool = False
    """The item's effect is in doubt from here on, until an inquiry or somebody resolves it."""
    writings: tuple[Writing, ...] = ()
    """What the execution writes in the same transaction."""

    @property
    def status(self) -> Status:
        return self.path[-1]

    @property
    def origins(self) -> tuple[Status, ...]:
        """The statuses the item may leave by this change; `Conflict` if the table knows no such step."""
        if self.seen is Status.UNKNOWN:
            checked_step(self.seen, self.path[0])
            return (self.seen,)
        allowed = origins(self.path)
        if self.seen is None:
            return allowed
        if self.seen not in allowed:
            raise Conflict(f"an item that is {self.seen} can't become {self.path[0]}")
        return (self.seen,)


class BatchCounts(NamedTuple):
    """How many calls of a batch have ended."""

    total: int
    succeeded: int
    failed: int
    cancelled: int

    @property
    def left(self) -> int:
        return self.total - self.succeeded - self.failed - self.cancelled


class ItemMove(NamedTuple):
    """An item that moves in this transaction, for the follower of its type."""

    item_id: str
    before: Status
    """Its status before an operator's change; for an outcome, DISPATCHED."""
    after: Status
    error: str | None
    """Why, if it is a dead letter."""
    verdict: str | None = None


class BatchSummary(NamedTuple):
    """The results of a batch, for the audit."""

    item_type: str
    batch_id: str
    detail: str


class AuditEntry(NamedTuple):
    """One line of the insert-only audit."""

    audit_id: int
    item_type: str
    item_id: str | None
    batch_id: str | None
    action: str
    status_before: str | None
    status_after: str | None
    detail: str | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Item:
    """A queued item in its present state."""

    item_type: str
    item_id: str
    status: Status
    execute_at: datetime
    due_at: datetime
    """The time by which it is claimed: `execute_at`, or later while it waits for a retry; claims look ahead by the
    config's `look_ahead`."""
    slotted: bool
    init_workflow_id: str | None
    batch_id: str | None
    exec_workflow_id: str | None
    claim_epoch: int
    claimed_at: datetime | None
    seen_at: datetime | None
    """The last heartbeat of its claim."""
    dispatched_at: datetime | None
    completed_at: datetime | None
    retry_count: int
    last_error: str | None
    created_at: datetime
    updated_at: datetime
    traceparent: str | None = None
    """The trace it was queued in, for looking it up."""
    lane: str = DEFAULT_LANE
    """Lanes of one type take turns, so that none starves another."""
    priority: int = DEFAULT_PRIORITY
    """Within its lane: 0 first, 9 last."""
    slot_id: str | None = None
    """The event of the slot that it carries, if that is not the item's own id."""
    last_attempt: int | None = None
    """The number of the execution that ended it without counting a retry: that gave up, or was cancelled."""
    begun_at: datetime | None = None
    """When the body of its latest claim began; None before that."""
    worker: str | None = None
    """The host and the process of its latest claim."""
    code_version: str | None = None
    """The version that its latest claim's process runs."""
    unknown_since: datetime | None = None
    """When an attempt began whose effect is still not known; None if there is none."""
    lock: str | None = None
    """The name of the lock that its execution holds."""

    @property
    def waits_for_lock(self) -> bool:
        """Whether it waits in the line of its lock, behind the item that holds it."""
        return self.lock is not None and self.status is Status.READY and self.due_at == IN_LINE_UNTIL

    @property
    def attempt(self) -> int:
        """How many executions began, the running one included; those that were given back don't count."""
        if self.status in (Status.CLAIMED, Status.DISPATCHED, Status.COMPLETED):
            return self.retry_count + 1
        if self.status in (Status.DEAD_LETTER, Status.CANCELLED):
            return max(self.retry_count, self.last_attempt or 0)
        return self.retry_count


@dataclass(frozen=True, slots=True)
class QueueStats:
    """One item type's queue at a glance."""

    item_type: str
    depth: Mapping[Status, int]
    late_by: timedelta | None
    """How long the item that waits longest has been due without having begun, whoever holds it; None if none is due."""
    late: int = 0
    """Items that are due and have not begun: they wait, or a worker holds them."""
    held: int = 0
    """Items that a worker has claimed and that have not begun."""
    running: int = 0
    """Executions that have begun and not ended."""
    workers: int = 0
    """Live workers of the item type."""
    attended: bool = False
    """Whether live workers claim its items, and execute them."""


class QueueHistory(NamedTuple):
    """What happened to one item type's items of late, and when those that wait are due. Times are whole seconds since
    1970, except for `instants`."""

    until: datetime
    """When it was read, by the store's clock."""
    arrived: Mapping[int, int]
    """Items that were queued."""
    begun: Mapping[int, int]
    """Executions that began."""
    instants: Mapping[int, int]
    """The last 100,000 instants at which executions began, in microseconds since 1970."""
    done: Mapping[int, int]
    """Items that were completed."""
    failed: Mapping[int, int]
    """Attempts that ended without success."""
    dead: Mapping[int, int]
    """Items that became dead letters and are still."""
    withdrawn: Mapping[int, int]
    """Items that were cancelled."""
    due: Mapping[int, int]
    """Items that wait, by the time that they are due: within the horizon, and not before `until`."""


class PruneResult(NamedTuple):
    """What retention removed."""

    items: int
    audit: int


def context_json(context: Any, largest: int = LARGEST_CONTEXT) -> str:
    """The context as JSON text, or `InvalidInput`."""
    try:
        text = _encode(context)
        size = len(text) if text.isascii() else len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput("context", f"is not JSON: {error}"[:200]) from None
    if size > largest:
        raise InvalidInput("context", f"has {size} bytes of JSON; at most {largest} are allowed")
    return text


def read_json(text: str) -> Any:
    """The value of a JSON text; as `json.loads`, which spends more time on surrounding white space than on a short
    text.

    Raises:
        ValueError: it is not JSON.
        RecursionError: it is nested too deeply.
    """
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        return json.loads(text)
    return value if end == len(text) else json.loads(text)


def shortened(error: str) -> str:
    """An error text that fits its column in every database, Oracle's bytes included, without control characters."""
    text = "".join(char if char.isprintable() else " " for char in error[:LONGEST_ERROR])
    return text.encode("utf-8", "replace")[:LONGEST_ERROR].decode("utf-8", "ignore") or "unknown error"


def _instant(moment: datetime | None) -> str | None:
    return None if moment is None else format_instant(moment)


class ItemDetail(NamedTuple):
    """All that is known of one item."""

    item: Item
    context: Any
    """None once the item is finished."""
    audit: list[AuditEntry]
    """Oldest first."""
    progress: Progress | None = None
    """The progress that its execution reported."""
    result: Any = None
    """What its execution returned, if that is kept."""
    attempts: Sequence[Attempt] = ()
    """Those that ended in no success, the first one first."""
