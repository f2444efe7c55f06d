"""The ports of dispatch: a store, an engine, and an observer."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from paceline.dispatch.changes import ChangeResult, ItemChange, Preview
from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.model import (
    AbandonedClaim,
    Attempt,
    AuditEntry,
    Batch,
    BatchCounts,
    BatchSummary,
    Change,
    Claim,
    Completion,
    EnqueueRequest,
    EnqueueResult,
    Item,
    ItemMove,
    ItemReport,
    Outlook,
    Progress,
    PruneResult,
    QueueHistory,
    QueueStats,
    SilentClaim,
)
from paceline.dispatch.periodic.periodic_tasks import PeriodicStore
from paceline.dispatch.search import BY_ID, ErrorGroup, ItemFilter, ItemOrder, LaneDepth
from paceline.dispatch.status import Status
from paceline.dispatch.turns import DEFAULT_LANE, DEFAULT_PRIORITY, UNLIMITED, Places
from paceline.dispatch.worker.heartbeats import WorkerStore
from paceline.dispatch.worker.loop_watch import HeartbeatStore


class QueueStore(Protocol):
    """Keeps the queue: first the methods of dispatching, then those of operators.

    Time is the store's own clock unless `now` is given. Every method is one atomic transaction, and a result that was
    returned survives a crash.
    """

    @property
    def workers(self) -> WorkerStore:
        """The heartbeats of workers."""
        ...

    @property
    def periodic(self) -> PeriodicStore:
        """The periodic tasks."""
        ...

    async def config(self, item_type: str) -> DispatchConfig | None:
        """The item type's settings as they are now."""
        ...

    async def outlooks(
        self, item_types: Sequence[str], *, finds_due: bool = True, now: datetime | None = None
    ) -> list[Outlook]:
        """Which of these item types have something to do, of those that have settings: one look for all of them, which
        costs the same whatever their backlogs are. Without `finds_due`, each may have items that are due now."""
        ...

    async def enqueue(
        self, requests: Sequence[EnqueueRequest], *, within: Any = None, now: datetime | None = None
    ) -> list[EnqueueResult]:
        """Queues each item with its context, once: one that exists is left alone. `within` is a transaction of the
        caller's, in the store's own terms; the items are then queued if and when that commits."""
        ...

    async def enqueue_group(
        self, head: EnqueueRequest, members: Sequence[EnqueueRequest], *, total: int = 0, within: Any = None
    ) -> list[EnqueueResult]:
        """Queues members and the head that names them, as `enqueue` does; the results are in this order. The head of a
        batch is its callback: it becomes due in the transaction in which the last of its `total` members ends.

        Raises:
            InvalidInput: an item of the head's id is another group's, by its `init_workflow_id`; nothing was queued.
        """
        ...

    async def claim(
        self,
        item_type: str,
        limit: int,
        look_ahead: timedelta,
        *,
        places: Places = UNLIMITED,
        begins: bool = False,
        now: datetime | None = None,
    ) -> Batch:
        """Claims up to `limit` items that are due before `look_ahead` from now, with their contexts, and ends before
        the contexts have more bytes than the store's bound. Lanes take turns; in a lane, they come by priority, then
        by time. With `begins`, those that are due now begin with the claim. No item is claimed twice. Concurrent claims
        do not wait for each other, unless `places` are limited: then no more items than that are in flight, over all
        processes."""
        ...

    async def take_locks(self, claims: Sequence[Claim], *, now: datetime | None = None) -> list[bool]:
        """Takes the locks of these claims, which all have one. False for an item whose lock another one holds: its
        claim is given back, and no claim finds it before it is the next in the line of its lock, by priority, time and
        id. A lock is given back with the outcome, or by an operator who moves the item."""
        ...

    async def stale(
        self, item_type: str, stale_after: timedelta, limit: int, *, now: datetime | None = None
    ) -> list[SilentClaim]:
        """Claims in flight without a heartbeat for `stale_after`, the oldest heartbeat first."""
        ...

    async def abandoned(
        self, item_types: Collection[str], silent_for: timedelta, *, now: datetime | None = None
    ) -> list[AbandonedClaim]:
        """Claims of these types in flight whose workers, in other processes, run what they claim, and are silent for
        `silent_for`; at most `MOST_ABANDONED` of them."""
        ...

    async def settle(
        self,
        changes: Sequence[Change],
        *,
        summary: BatchSummary | None = None,
        silent_for: timedelta | None = None,
        now: datetime | None = None,
    ) -> list[bool]:
        """Writes each change and its audit entry, if its claim still holds, and with `silent_for` only if the claim had
        no heartbeat for so long; False where it does not. A change to COMPLETED deletes the context. Of several changes
        to one item one is written."""
        ...

    async def touch(self, claims: Sequence[Claim], *, begins: bool = False, now: datetime | None = None) -> list[bool]:
        """Records a heartbeat of each claim, and with `begins` that the body of its execution begins; False where the
        claim is lost."""
        ...

    async def holds(self, claims: Sequence[Claim]) -> list[bool]:
        """Whether each claim still holds its item. Writes nothing."""
        ...

    async def decided(self, claim: Claim) -> bool:
        """An inquiry decided what became of the attempts in doubt: none is in doubt any more. False, and nothing is
        changed, if the claim is lost."""
        ...

    async def record_progress(
        self, progress: Sequence[tuple[Claim, Progress]], *, now: datetime | None = None
    ) -> list[bool]:
        """Records how far executions are; False where the claim is lost."""
        ...

    async def wait(self, item_types: Collection[str], timeout: float) -> list[str]:
        """Returns after `timeout` seconds, or sooner if items of one of these types may have become ready; then those
        types. A hint, no promise."""
        ...

    # -- operating -----------------------------------------------------------------------------------------------

    async def configure(self, config: DispatchConfig, *, now: datetime | None = None) -> None:
        """Makes `config` its item type's settings, effective from the next cycle on any node."""
        ...

    async def declare(
        self, config: DispatchConfig, *, only_new: bool = False, now: datetime | None = None
    ) -> DispatchConfig:
        """What the code says of an item type: each setting but the kill switch follows it until somebody changes that
        setting. With `only_new`, a type that has settings keeps them all. Returns the settings in force."""
        ...

    async def change(
        self, item_type: str, changes: Mapping[str, Any], *, create: bool = False, now: datetime | None = None
    ) -> DispatchConfig | None:
        """Changes some of an item type's settings, as `DispatchConfig.changed` does, and returns them all. A type that
        has none begins with the defaults if `create` is set; else the answer is None. Concurrent changes of other
        settings are not lost, least of all a kill switch."""
        ...

    async def configs(self) -> list[DispatchConfig]:
        """Every item type's settings, by name."""
        ...

    async def find(self, item_type: str, item_id: str) -> tuple[Item, str | None] | None:
        """The item and its context, as JSON text."""
        ...

    async def report(self, item_type: str, item_id: str) -> ItemReport:
        """What the item's execution reported: its progress and its result."""
        ...

    async def attempts(self, item_type: str, item_id: str) -> list[Attempt]:
        """The item's attempts that ended in no success, the first one first."""
        ...

    async def items(
        self,
        item_type: str,
        chosen: ItemFilter | None,
        limit: int,
        after: str | None,
        order: ItemOrder = BY_ID,
    ) -> list[Item]:
        """A page of the items that match, in this order, past the cursor `after`: an id, unless sorted by a time."""
        ...

    async def count(self, item_type: str, chosen: ItemFilter, at_most: int) -> int:
        """How many items match; `at_most`, if they are more."""
        ...

    async def progress_of(self, item_type: str, item_ids: Sequence[str]) -> dict[str, Progress]:
        """By item id: how far the executions that run now say they are."""
        ...

    async def batch(self, item_type: str, item_id: str) -> BatchCounts | None:
        """How many calls of the batch with this callback have ended; None if there is no such batch."""
        ...

    async def error_groups(self, item_type: str) -> list[ErrorGroup]:
        """Dead letters grouped by their errors, the largest group first."""
        ...

    async def lanes(self, item_type: str) -> list[LaneDepth]:
        """The unfinished items per lane, the longest lane first."""
        ...

    async def stats(self, item_type: str, *, now: datetime | None = None) -> QueueStats:
        """How many items have each status."""
        ...

    async def queue_history(
        self, item_type: str, last: timedelta, horizon: timedelta, *, now: datetime | None = None
    ) -> QueueHistory:
        """What happened to the items in this `last` time, per second, and what is due within the `horizon`."""
        ...

    async def redirect(
        self, item_type: str, item_ids: Sequence[str] | None, to: Status, *, now: datetime | None = None
    ) -> int:
        """Requeues (to READY) or discards (to CANCELLED) items; with None, all dead letters, in batches. A requeued
        item is as new: its time, its context and its slot stand, retries and error start afresh. `NotFound` or
        `Conflict` for an item that is not there or not in a status that allows it; then nothing is changed at all."""
        ...

    async def change_items(
        self,
        item_type: str,
        chosen: Sequence[str] | ItemFilter,
        change: ItemChange,
        *,
        now: datetime | None = None,
    ) -> ChangeResult:
        """Changes the items with these ids: all, or `NotFound` or `Conflict` and none. Or the items that match, in
        batches, but for those that can't be changed."""
        ...

    async def preview(
        self, item_type: str, chosen: ItemFilter, change: ItemChange, *, now: datetime | None = None
    ) -> Preview:
        """What `change_items` would do to the items that match. Changes nothing."""
        ...

    async def audit(self, item_type: str, item_id: str | None, limit: int, before: int | None) -> list[AuditEntry]:
        """Audit entries, newest first, older than the entry `before`."""
        ...

    async def prune(self, before: datetime) -> PruneResult:
        """Deletes items that finished, and audit entries written, before a time; in batches."""
        ...

    def beside(self) -> HeartbeatStore | None:
        """The same store with a connection of its own, for heartbeats from another event loop; None if there can be no
        other."""
        ...

    async def close(self) -> None:
        """Closes the store's connections."""
        ...


class Follower(Protocol):
    """An application's records that change together with its items. The queue's store calls it in the transaction in
    which an operator moves them, or they become dead letters or UNKNOWN; an SQL store passes its connection."""

    def refusals(self, within: Any, moves: Sequence[ItemMove]) -> dict[str, str]:
        """By item id: why an operator's move can't be made. Nothing is written."""
        ...

    def follow(self, within: Any, moves: Sequence[ItemMove], now: datetime) -> None:
        """Changes the application's records of these items. Raising rolls everything back."""
        ...


class StartRequest(NamedTuple):
    """An execution to start."""

    claim: Claim
    config: DispatchConfig
    """Names the workflow type and the task queue."""
    context_json: str
    """Checked: it parses."""
    start_delay: timedelta
    traceparent: str | None = None
    """The trace of the execution, if there is one."""
    claim_requested_at: float | None = None
    """When this process requested the claim, by `uptime`: no other process treats it as stale before `stale_after` from
    then. None for just now."""
    lane: str = DEFAULT_LANE
    priority: int = DEFAULT_PRIORITY
    has_begun: bool = False
    """That its body begins was written with the claim."""
    in_doubt: bool = False
    """An earlier attempt began, and nobody knows its effect: an inquiry comes before the body."""
    is_last_inquiry: bool = False
    """The item's hold is over: if this inquiry decides nothing, the item is a dead letter."""
    config_requested_at: float | None = None
    """When this process requested the config, by `uptime`; None if another one did."""

    @property
    def execution_id(self) -> str:
        return self.claim.execution_id


class Start(StrEnum):
    """The result of a start."""

    STARTED = "STARTED"
    ALREADY_STARTED = "ALREADY_STARTED"
    """An execution with this id runs, or ran and ended well. As good as started."""
    EXHAUSTED = "EXHAUSTED"
    """The engine has no capacity, or can't be reached. The claim is released, no retry is counted, the cycle backs
    off."""
    FAILED = "FAILED"
    """Not started; worth a retry."""
    POISONED = "POISONED"
    """This item can never be started (too large for the engine, say); it is dead-lettered alone."""


class StartOutcome(NamedTuple):
    start: Start
    detail: str = ""


STARTED = StartOutcome(Start.STARTED)


class Execution(StrEnum):
    """The state of an execution at its engine."""

    RUNNING = "RUNNING"
    """Runs, or waits for its start delay."""
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    """It ended, and said that it failed."""
    LOST = "LOST"
    """It was terminated, or timed out: it ended and said nothing."""
    NOT_FOUND = "NOT_FOUND"
    """The engine knows of none: it was never started, or is lost."""
    UNKNOWN = "UNKNOWN"
    """The engine does not answer now. Nothing is concluded from it."""


class ExecutionState(NamedTuple):
    execution: Execution
    detail: str = ""
    completion: Completion | None = None
    """The result of a completed execution, if the engine kept it."""


class WorkflowEngine(Protocol):
    """Runs executions. Starts are idempotent: two starts of the same item are one execution.

    It reports outcomes to an `OutcomeSink`; `describe` finds those that it could not report.
    """

    async def start(self, requests: Sequence[StartRequest]) -> list[StartOutcome]:
        """Starts all of them concurrently and returns each outcome, in order. Never raises because of one item."""
        ...

    async def describe(self, claims: Sequence[Claim]) -> list[ExecutionState]:
        """The state of each claim's execution, in order, in as few calls as the engine allows. One that runs under an
        older epoch is RUNNING too."""
        ...

    async def stop(self, claims: Sequence[Claim], *, running: bool = False) -> None:
        """Ends executions of these items that wait for their start delay, as far as the engine can; with `running`,
        also cancels those that run. Never raises: an execution that begins nevertheless finds its item cancelled."""
        ...

    def room(self, config: DispatchConfig) -> int | None:
        """How many more items of this type it would take now; None for any number."""
        ...

    def reserved(self, config: DispatchConfig, limit: int) -> AbstractContextManager[int]:
        """Inside the block, so many items of this type, at most `limit`, would begin without any further wait, if they
        are due. What was claimed for these places is started right after the block."""
        ...

    def looks_ahead(self, item_type: str) -> bool:
        """Whether it would take items before their time now."""
        ...

    def inquires(self, item_type: str) -> bool:
        """Whether it can inquire what became of an attempt in doubt, before the next one. If not, such an item is
        held."""
        ...

    async def close(self) -> None:
        """Stops taking work. Stale recovery finds what it leaves behind."""
        ...


class OutcomeSink(Protocol):
    """Where an engine reports outcomes. Each call returns when it is committed: True, or False if the claim was lost
    meanwhile and nothing was changed. `StoreError` means: not committed; retry."""

    async def completed(self, claim: Claim, completion: Completion | None = None) -> bool:
        """The execution succeeded."""
        ...

    async def failed(
        self, claim: Claim, error: str, pause: timedelta | None = None, traceback: str | None = None
    ) -> bool:
        """The execution failed: it is retried after `pause`, or else the config's backoff, or dead-lettered at the
        maximum."""
        ...

    async def progress(self, claim: Claim, progress: Progress) -> bool:
        """The execution reported its progress."""
        ...

    async def gave_up(self, claim: Claim, reason: str, verdict: str | None, traceback: str | None = None) -> bool:
        """The execution raised `GiveUp`: the item is a dead letter at once."""
        ...

    async def unknown(
        self,
        claim: Claim,
        error: str,
        pause: timedelta | None = None,
        traceback: str | None = None,
        *,
        is_over: bool = False,
    ) -> bool:
        """The execution began, and nobody knows its effect. The item type's `on_unknown` decides what follows; if that
        is a retry, it comes after `pause`, or else the config's backoff. With `is_over`, the last inquiry decided
        nothing: the item is a dead letter."""
        ...

    async def lost(self, claim: Claim, error: str) -> bool:
        """The execution ended and said nothing: if its body had begun, its effect is unknown; else it goes back, and no
        retry is counted."""
        ...

    async def decided(self, claim: Claim) -> bool:
        """An inquiry decided what became of the attempts in doubt."""
        ...

    async def released(self, claim: Claim, reason: str, pause: timedelta | None = None) -> bool:
        """The execution did not begin, or ended through no fault of the item: the item goes back, no retry is counted.
        With `pause` it is not due again before that."""
        ...

    def executed(self, item_type: str, seconds: float) -> None:
        """An execution ended after `seconds`, in success or failure. For metrics."""
        ...

    async def alive(self, claims: Sequence[Claim]) -> list[bool]:
        """A heartbeat of running executions; False where the claim is lost."""
        ...

    async def begins(self, claim: Claim) -> bool:
        """The body of the execution is about to begin: from here on its attempt counts, whatever becomes of this
        process. False if the claim is lost."""
        ...

    async def holds(self, claims: Sequence[Claim]) -> list[bool]:
        """Whether each claim still holds its item: an operator may have cancelled it."""
        ...

    async def config(self, item_type: str) -> DispatchConfig:
        """The item type's settings, at most half an interval or a second old. `NotFound` if there is no such type."""
        ...

    async def enabled(self, item_type: str) -> bool:
        """Whether executions of this type may begin, by the kill switch; less than a second old. If the store can't be
        read, `StoreError`, and none may begin."""
        ...

    def learn(self, config: DispatchConfig, requested_at: float) -> None:
        """Takes over settings, with the kill switch, that were requested at `requested_at` by `uptime`."""
        ...

    def was_on(self, item_type: str) -> bool:
        """Whether the kill switch is known to have been on less than a second ago. Reads no store."""
        ...


class DispatchObserver(Protocol):
    """Observes dispatch, for metrics. Called on the event loop: must be quick and must not raise."""

    def claimed(self, item_type: str, items: int) -> None:
        """A batch was claimed."""
        return

    def started(self, item_type: str, items: int) -> None:
        """Executions were started."""
        return

    def start_failed(self, item_type: str, items: int) -> None:
        """Starts failed or were refused."""
        return

    def recovered(self, item_type: str, items: int) -> None:
        """Stale claims were given back."""
        return

    def finished(self, item_type: str, completed: int, failed: int) -> None:
        """Outcomes of executions were recorded."""
        return

    def executed(self, item_type: str, seconds: float) -> None:
        """An execution in this process ended after `seconds`, in success or failure."""
        return

    def dead_lettered(self, item_type: str, items: int) -> None:
        """Items ran out of retries, or could never run."""
        return

    def switch_unread(self, item_type: str) -> None:
        """The kill switch could not be read, or so slowly that the result was stale: nothing begins."""
        return

    def blocked(self, task: str, seconds: float) -> None:
        """A task had blocked the event loop for `seconds`. Called on a thread."""
        return

    def abandoned(self, item_type: str, threads: int) -> None:
        """So many threads of this process run functions of the type whose timeouts are over."""
        return

    def cycled(self, item_type: str, seconds: float) -> None:
        """A cycle ended."""
        return

    def measured(self, stats: QueueStats) -> None:
        """The queue was measured."""
        return

    def known(self, item_type: str) -> None:
        """There is this item type, though nothing may have happened yet."""
        return


class NullObserver(DispatchObserver):
    """Observes nothing."""
