# Generated from dispatch/queue.py by scripts/generate_blocking.py. Do not edit.
"""`BlockingDispatchQueue`: the same calls for threads, without an event loop."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any, Unpack

from paceline.background import listed
from paceline.dispatch.background_queue import BackgroundQueue
from paceline.dispatch.changes import (
    Preview,
)
from paceline.dispatch.config import DispatchConfig, DispatchSettings
from paceline.dispatch.model import (
    AuditEntry,
    EnqueueResult,
    Item,
    ItemDetail,
    Progress,
    PruneResult,
    QueueStats,
)
from paceline.dispatch.search import (
    ErrorGroup,
    FilterOptions,
    LaneDepth,
)
from paceline.dispatch.status import Status
from paceline.dispatch.worker.heartbeats import Worker
from paceline.slots.model import AssignedSlot


class BlockingDispatchQueue(BackgroundQueue):
    """A `DispatchQueue` for scripts and WSGI applications: each call returns when it is done.

        with BlockingDispatchQueue("sqlite:///work.db") as queue:
            queue.configure("INVOICE")
            queue.enqueue("INVOICE", "inv-1", context={"total": "12.00"})

    Any number of threads may call it. Their calls share transactions. A forked process opens its own connections.
    """

    def enqueue(
        self,
        item_type: str,
        item_id: str,
        *,
        context: Any = None,
        execute_at: datetime | str | None = None,
        slot: AssignedSlot | None = None,
        init_workflow_id: str | None = None,
        lane: str | None = None,
        priority: int | None = None,
        while_waiting: bool = False,
        lock: str | None = None,
        connection: Any = None,
    ) -> EnqueueResult:
        """Queues one item to run at `execute_at`, or at its booked `slot`; without either, now.

        `lane` is a tenant, say: lanes of one type take turns, so that one tenant's million items do not starve
        another's ten. In its lane, an item of `priority` 0 comes first and of 9 last; the default is 5.

        With `while_waiting`, `item_id` is a key: an item of this key that waits is this one; if none does, a new one is
        queued, also while one runs. The result has its id.

        With `lock`, such as `invoice:7`, its execution runs while no other item of this lock does, of any type; they
        wait in line, by priority and time.

        With `connection`, in a transaction of yours, the item is queued if and when that commits. It is a SQLAlchemy
        `Session`, `AsyncSession`, `Connection` or `AsyncConnection`, a psycopg `Connection` or `AsyncConnection`, a
        `sqlite3` connection, or Django's `connection`, to the queue's own database.

        Called inside a trace, the item's execution is part of that trace, whenever and wherever it runs.

        Raises:
            InvalidInput: the id, the context, the time, the lane, the priority, the lock or the connection is wrong.
            NotFound: there is no such item type.
            SlotCancelled: the slot was cancelled meanwhile; nothing was queued. Assign a new one.
            StoreUnavailable: the store does not answer; the item may have been queued.
        """
        return self._run_within(
            connection,
            item_type,
            lambda queue: queue.enqueue(
                item_type,
                item_id,
                context=context,
                execute_at=execute_at,
                slot=slot,
                init_workflow_id=init_workflow_id,
                lane=lane,
                priority=priority,
                while_waiting=while_waiting,
                lock=lock,
                connection=connection,
            ),
        )

    def enqueue_many(
        self,
        item_type: str,
        items: Iterable[tuple[str, Any, datetime | str | None]],
        *,
        slotted: bool = False,
        lane: str | None = None,
        priority: int | None = None,
        connection: Any = None,
    ) -> list[EnqueueResult]:
        """Queues items given as `(item_id, context, execute_at)`. All are checked before any is written; up to 5000
        are written in one transaction; with `connection`, as in `enqueue`, all in yours. With `slotted`, their times
        are booked slots. Each item's execution starts its own trace: a trace of thousands would be unreadable.

        Raises:
            InvalidInput: an item is wrong; nothing was written.
            NotFound: there is no such item type.
            SlotCancelled: slots of items were cancelled meanwhile; of the 5000 with such an item, none was written.
        """
        items = listed(items)
        return self._run_within(
            connection,
            item_type,
            lambda queue: queue.enqueue_many(
                item_type, items, slotted=slotted, lane=lane, priority=priority, connection=connection
            ),
        )

    def configure(self, item_type: str, **settings: Unpack[DispatchSettings]) -> DispatchConfig:
        """Changes some of an item type's settings, in snake_case or camelCase; a new type begins with the defaults.

        Raises:
            ConfigurationError: there is no such setting, or its value is wrong.
        """
        return self._run(lambda queue: queue.configure(item_type, **settings))

    def define(self, config: DispatchConfig) -> DispatchConfig:
        """Makes `config` an item type's first settings; a type that has settings keeps them."""
        return self._run(lambda queue: queue.define(config))

    def declare(self, config: DispatchConfig) -> DispatchConfig:
        """What the code says of an item type, as a worker does at its start. Code gives defaults, and operators decide:
        a setting follows the code until somebody changes it, and again when it is set back. The kill switch is always
        an operator's. Returns the settings in force.
        """
        return self._run(lambda queue: queue.declare(config))

    def pause(self, item_type: str) -> DispatchConfig:
        """Turns the kill switch off: no item of this type starts until `resume`, and none is lost.

        Raises:
            NotFound: there is no such item type.
        """
        return self._run(lambda queue: queue.pause(item_type))

    def resume(self, item_type: str) -> DispatchConfig:
        """Turns a paused type on again.

        Raises:
            NotFound: there is no such item type.
        """
        return self._run(lambda queue: queue.resume(item_type))

    def requeue(self, item_type: str, item_ids: Iterable[str] | None = None, **matching: Unpack[FilterOptions]) -> int:
        """Makes dead letters READY again, as new, and returns their number: those with these ids, all or none; or those
        that match, as in `cancel`; or, with neither, all dead letters of the type.

        Raises:
            Conflict: one of the ids is not a dead letter; nothing was changed.
            InvalidInput: a value is wrong, or both ids and a filter are given.
            NotFound: there is no such item type, or one of the items is not there.
        """
        item_ids = listed(item_ids)
        return self._run(lambda queue: queue.requeue(item_type, item_ids, **matching))

    def discard(self, item_type: str, item_ids: Iterable[str] | None = None, **matching: Unpack[FilterOptions]) -> int:
        """Cancels items that are READY or dead letters, and returns their number: those with these ids, all or none; or
        those that match, as in `cancel`; or, with neither, all dead letters of the type.

        Raises:
            Conflict: one of the ids is in flight or finished; nothing was changed.
            InvalidInput: a value is wrong, or both ids and a filter are given.
            NotFound: there is no such item type, or one of the items is not there.
        """
        item_ids = listed(item_ids)
        return self._run(lambda queue: queue.discard(item_type, item_ids, **matching))

    def cancel(self, item_type: str, item_ids: Iterable[str] | None = None, **matching: Unpack[FilterOptions]) -> int:
        """Cancels items that wait, run or are dead letters, and returns their number: those with these ids, all or
        none; or cancellable ones that match `status`, `prefix`, `lane`, `error`, `since` and `until` (see `list`).

        An item is CANCELLED at once, and later reports of its execution are ignored. A running execution is cancelled
        within a second: an `async def` gets `CancelledError`, a workflow on Temporal a cancellation. A plain `def`
        can't be cancelled; it runs to its end.

        Raises:
            Conflict: one of the ids is finished, or is in flight and its application must call it off; nothing was
                changed.
            InvalidInput: a value is wrong, or neither ids nor a filter are given.
            NotFound: there is no such item type, or one of the items is not there.
        """
        item_ids = listed(item_ids)
        return self._run(lambda queue: queue.cancel(item_type, item_ids, **matching))

    def reschedule(
        self,
        item_type: str,
        item_ids: Iterable[str] | None = None,
        *,
        execute_at: datetime | str | None = None,
        priority: int | None = None,
        new_lane: str | None = None,
        **matching: Unpack[FilterOptions],
    ) -> int:
        """Gives READY items another time, priority or lane, and returns their number: those with these ids, all or
        none; or those that match, as in `cancel`.

        Raises:
            Conflict: one of the ids does not wait, or its time is a booked slot; nothing was changed.
            InvalidInput: a value is wrong, or neither ids nor a filter are given.
            NotFound: there is no such item type, or one of the items is not there.
        """
        item_ids = listed(item_ids)
        return self._run(
            lambda queue: queue.reschedule(
                item_type, item_ids, execute_at=execute_at, priority=priority, new_lane=new_lane, **matching
            )
        )

    def resolve(self, item_type: str, item_ids: Iterable[str], outcome: str, *, reason: str | None = None) -> int:
        """Says what became of items whose attempts are in doubt, and returns their number; all of these ids, or none.
        With `outcome="done"`, they are COMPLETED; with `refused`, dead letters with the reason; with `again`, READY.

        Items that are UNKNOWN can be resolved, those that wait for an inquiry, and dead letters whose hold is over.

        Raises:
            Conflict: nothing is in doubt about one of the items, it is being inquired, or its application decides its
                outcome; nothing was changed.
            InvalidInput: a value is wrong.
            NotFound: there is no such item type, or one of the items is not there.
        """
        item_ids = listed(item_ids)
        return self._run(lambda queue: queue.resolve(item_type, item_ids, outcome, reason=reason))

    def preview(
        self,
        item_type: str,
        change: str,
        *,
        execute_at: datetime | str | None = None,
        **matching: Unpack[FilterOptions],
    ) -> Preview:
        """The number of items that match, and of those that `change` would change: `requeue`, `discard`, `cancel` or
        `reschedule`. With `execute_at`, it reschedules to another time, which excludes items with a booked slot;
        without it, to another priority or lane. Nothing is changed.

        Raises:
            InvalidInput: a value is wrong, or no filter is given.
            NotFound: there is no such item type.
        """
        return self._run(lambda queue: queue.preview(item_type, change, execute_at=execute_at, **matching))

    def prune(self, before: datetime | str) -> PruneResult:
        """Deletes items that finished, and audit entries written, before a time. Dead letters are kept.

        Raises:
            InvalidInput: the time is wrong.
        """
        return self._run(lambda queue: queue.prune(before))

    def config(self, item_type: str) -> DispatchConfig:
        """The item type's settings.

        Raises:
            NotFound: there is no such item type.
        """
        return self._run(lambda queue: queue.config(item_type))

    def configs(self) -> list[DispatchConfig]:
        """Every item type's settings."""
        return self._run(lambda queue: queue.configs())

    def stats(self, item_type: str, *, now: datetime | None = None) -> QueueStats:
        """How many items have each status, and how late the oldest due one is.

        Raises:
            NotFound: there is no such item type.
        """
        return self._run(lambda queue: queue.stats(item_type, now=now))

    def workers(self, *, now: datetime | None = None) -> tuple[Sequence[Worker], Sequence[str]]:
        """The workers of all item types, and the item types without live workers."""
        return self._run(lambda queue: queue.workers(now=now))

    def list(
        self,
        item_type: str,
        status: Status | str | None = None,
        *,
        prefix: str | None = None,
        lane: str | None = None,
        error: str | None = None,
        since: datetime | str | None = None,
        until: datetime | str | None = None,
        error_group: str | None = None,
        limit: int = 100,
        after: str | None = None,
        sort: str | None = None,
    ) -> list[Item]:
        """A page of items in order of their ids; `after` is the last id of the page before. `prefix` is what their ids
        begin with, `error` what their last errors hold, with `*` for any characters; their times are not before
        `since`, and before `until`. `error_group` is the name of a group as `error_groups` has it.

        `sort` is `id`, `executeAt` or `updatedAt`, with `-` before it for the last first. Sorted by a time, `after` is
        `ItemOrder.of(sort).cursor(item)` of the last item.

        Raises:
            InvalidInput: the status, the limit, an id, a time, the lane, the error or the order is wrong.
            NotFound: there is no such item type.
        """
        return self._run(
            lambda queue: queue.list(
                item_type,
                status,
                prefix=prefix,
                lane=lane,
                error=error,
                since=since,
                until=until,
                error_group=error_group,
                limit=limit,
                after=after,
                sort=sort,
            )
        )

    def count(self, item_type: str, **matching: Unpack[FilterOptions]) -> int:
        """How many items match, as in `list`; 100,001 if they are more than 100,000.

        Raises:
            InvalidInput: a value is wrong.
            NotFound: there is no such item type.
        """
        return self._run(lambda queue: queue.count(item_type, **matching))

    def unserved(self, served: Collection[str] = ()) -> dict[str, int]:
        """By item type: the number of READY items that no live worker serves, apart from the types in `served`."""
        return self._run(lambda queue: queue.unserved(served))

    def error_groups(self, item_type: str) -> Sequence[ErrorGroup]:
        """Dead letters grouped by their errors, the largest group first. What differs between the errors of a group,
        such as numbers and ids, is `*` in its name; `list(item_type, "DEAD_LETTER", error_group=name)` lists a group.

        Raises:
            NotFound: there is no such item type.
        """
        return self._run(lambda queue: queue.error_groups(item_type))

    def lanes(self, item_type: str) -> Sequence[LaneDepth]:
        """The unfinished items per lane, the longest lane first.

        Raises:
            NotFound: there is no such item type.
        """
        return self._run(lambda queue: queue.lanes(item_type))

    def progress_of(self, item_type: str, item_ids: Iterable[str]) -> dict[str, Progress]:
        """By item id: the progress of running executions; those without a report are left out.

        Raises:
            InvalidInput: an id is wrong.
        """
        item_ids = listed(item_ids)
        return self._run(lambda queue: queue.progress_of(item_type, item_ids))

    def find(self, item_type: str, item_id: str) -> Item:
        """One item in its present state.

        Raises:
            NotFound: there is no such item.
        """
        return self._run(lambda queue: queue.find(item_type, item_id))

    def show(self, item_type: str, item_id: str) -> ItemDetail:
        """One item with its context and its audit.

        Raises:
            NotFound: there is no such item.
        """
        return self._run(lambda queue: queue.show(item_type, item_id))

    def audit(
        self, item_type: str, *, item_id: str | None = None, limit: int = 100, before: int | None = None
    ) -> Sequence[AuditEntry]:
        """Audit entries, newest first; `before` is the last `audit_id` of the page before.

        Raises:
            InvalidInput: the id, the limit or `before` is wrong.
            NotFound: there is no such item type.
        """
        return self._run(lambda queue: queue.audit(item_type, item_id=item_id, limit=limit, before=before))

    def check_known(self, item_type: str) -> None:
        """Raises `NotFound` unless there is this item type."""
        return self._run(lambda queue: queue.check_known(item_type))
