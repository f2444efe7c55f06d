"""`DispatchQueue`: the operations of applications and operators on the queue."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, TypedDict, Unpack

from paceline import tracing
from paceline.batching import Batcher
from paceline.dispatch.changes import (
    Cancellation,
    ChangeResult,
    ItemChange,
    Preview,
    Redirection,
    Rescheduling,
    Resolution,
    change_named,
)
from paceline.dispatch.config import DispatchConfig, DispatchSettings, checked_type
from paceline.dispatch.encryption import encryption_of
from paceline.dispatch.model import (
    LARGEST_CONTEXT,
    Claim,
    EnqueueRequest,
    EnqueueResult,
    PruneResult,
)
from paceline.dispatch.portions import portions
from paceline.dispatch.ports import QueueStore
from paceline.dispatch.queue_views import QueueViews
from paceline.dispatch.search import (
    FilterOptions,
    ItemFilter,
    checked_filter,
    checked_ids,
)
from paceline.dispatch.status import Status
from paceline.dispatch.turns import checked_lane, checked_priority
from paceline.durations import parse_instant
from paceline.errors import ConfigurationError, InvalidInput, NotFound, PacelineError, SlotCancelled
from paceline.options import check_whole
from paceline.service_client import check_token, is_service
from paceline.slots.carriers import Carriers
from paceline.slots.model import AssignedSlot
from paceline.tracing import Origin, Span

StopExecutions = Callable[[Sequence[Claim]], Awaitable[None]]
"""Stops executions of cancelled items, for engines that do not check for cancellations."""


class QueueOptions(TypedDict, total=False):
    """The options of `DispatchQueue`."""

    largest_context: int
    batch: int


class OpenOptions(QueueOptions, total=False):
    """The options of `DispatchQueue.open`."""

    encryption_keys: Sequence[str] | None
    token: str | None


class DispatchQueue(QueueViews):
    """A durable queue of items, each to run once, at its time.

    Queueing is idempotent by item type and id. When a call returns, its change is committed. Concurrent single enqueues
    share transactions; any number of processes may work on one database.

    Raises:
        ConfigurationError: the store or an option can't be used.
    """

    def __init__(
        self,
        store: QueueStore,
        *,
        largest_context: int = LARGEST_CONTEXT,
        batch: int = 1000,
        stop_executions: StopExecutions | None = None,
    ) -> None:
        if store is None or isinstance(store, str | type):
            raise ConfigurationError("store", f"{store!r} is no queue store; open a URL with DispatchQueue.open(url)")
        check_whole("largest_context", largest_context, least=2)
        check_whole("batch", batch)
        super().__init__(store)
        self._stop_executions = stop_executions
        self._largest_context = largest_context
        self._writer: Batcher[EnqueueRequest, EnqueueResult] = Batcher(self._store_many, max_batch=batch)

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        url: str,
        *,
        encryption_keys: Sequence[str] | None = None,
        token: str | None = None,
        **options: Unpack[QueueOptions],
    ) -> AsyncIterator[DispatchQueue]:
        """A queue on the database at `url`, migrated and ready; closed when the block ends. With `encryption_keys`,
        each base64 of 32 bytes, contexts and results are encrypted at rest: the first key encrypts, all decrypt. A URL
        such as `https://paceline.internal` is a service's, which `token` lets in.

        Raises:
            ConfigurationError: the URL, a key or an option is wrong.
            StoreUnavailable: the store does not answer.
        """
        if is_service(url):
            from paceline.dispatch.remote import RemoteDispatchQueue

            if encryption_keys is not None:
                raise ConfigurationError("encryption_keys", "are the service's own; leave them out")
            async with RemoteDispatchQueue(url, token, **options) as remote:
                yield remote
            return
        check_token(token, url)
        # Imported here: stores import their drivers, and importing paceline must not.
        from paceline.dispatch.stores import queue_store

        store = await queue_store(url, encryption=encryption_of(encryption_keys))
        try:
            queue = cls(store, **options)
        except BaseException:  # an option is wrong
            await store.close()
            raise
        async with queue:
            yield queue

    @staticmethod
    def slot_carriers() -> Carriers:
        """The `carriers` for `SlotScheduler.open`: when slots are re-planned, the items of their events move with
        them."""
        from paceline.dispatch.stores import QueueCarrier

        return {None: QueueCarrier()}

    async def __aenter__(self) -> DispatchQueue:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Lets accepted items be written, then closes the store."""
        await self._writer.close()
        await self.store.close()

    # -- queueing ------------------------------------------------------------------------------------------------

    async def enqueue(
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
        request = EnqueueRequest.of(
            item_type,
            item_id,
            context,
            execute_at,
            slot=slot,
            init_workflow_id=init_workflow_id,
            lane=lane,
            priority=priority,
            while_waiting=while_waiting,
            lock=lock,
            largest_context=self._largest_context,
        )
        if item_type not in self._known:
            await self.check_known(item_type)
        return await self.enqueue_request(request, connection=connection)

    async def enqueue_request(self, request: EnqueueRequest, *, connection: Any = None) -> EnqueueResult:
        """Queues a checked request of an item type that is known, as `enqueue` does."""
        if (origin := tracing.origin()) is not None:
            return await self._traced(origin, request, connection)
        if connection is not None:
            return (await self.store.enqueue([request], within=connection))[0]
        return await self._writer.submit(request)

    async def _traced(self, origin: Origin, request: EnqueueRequest, connection: Any) -> EnqueueResult:
        span = enqueue_span(request.item_type, request.item_id, origin.traceparent)
        request = request._replace(traceparent=span.traceparent)
        try:
            if connection is not None:
                (queued,) = await self.store.enqueue([request], within=connection)
            else:
                queued = await self._writer.submit(request)
        except PacelineError as error:
            span.end(failed=type(error).__name__)
            raise
        span.end({"paceline.outcome": "existing" if queued.existing else "queued"})
        return queued

    async def enqueue_many(
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
        requests = [
            EnqueueRequest.of(
                item_type,
                item_id,
                context,
                execute_at,
                slotted=slotted,
                lane=lane,
                priority=priority,
                largest_context=self._largest_context,
            )
            for item_id, context, execute_at in _triples(items)
        ]
        await self.check_known(checked_type(item_type))
        results: list[EnqueueResult] = []
        for portion in portions(requests):
            results += await self.store.enqueue(portion, within=connection)
        return results

    async def enqueue_requests(
        self, requests: Sequence[EnqueueRequest], *, connection: Any = None
    ) -> Sequence[EnqueueResult]:
        """Queues checked requests of item types that are known; up to 5000 are written in one transaction."""
        results: list[EnqueueResult] = []
        for portion in portions(requests):
            results += await self.store.enqueue(portion, within=connection)
        return results

    async def enqueue_group(
        self, head: EnqueueRequest, members: Sequence[EnqueueRequest], *, connection: Any = None
    ) -> Sequence[EnqueueResult]:
        """Queues members and the head that names them: the head, and up to 5000 members, in one transaction, and then
        the others. The results are in this order, the head's last.

        Raises:
            InvalidInput: the key was used before, for other calls; nothing was queued.
        """
        first, *others = list(portions(members)) or [[]]
        *results, of_head = await self.store.enqueue_group(head, first, total=len(members), within=connection)
        for portion in others:
            results += await self.store.enqueue(portion, within=connection)
        return [*results, of_head]

    async def _store_many(self, requests: Sequence[EnqueueRequest]) -> Sequence[EnqueueResult | SlotCancelled]:
        results: list[EnqueueResult | SlotCancelled] = []
        for portion in portions(requests):
            results += await self._store_portion(portion)
        return results

    async def _store_portion(self, requests: Sequence[EnqueueRequest]) -> Sequence[EnqueueResult | SlotCancelled]:
        """The results of callers who share a transaction: a cancelled slot is the error of its own caller only."""
        try:
            return await self.store.enqueue(requests)
        except SlotCancelled as error:
            cancelled = set(error.items)
        refused = [(request.item_type, request.item_id) in cancelled for request in requests]
        others = [request for request, is_refused in zip(requests, refused, strict=True) if not is_refused]
        results = iter(await self._store_portion(others) if others else ())
        return [
            SlotCancelled([request.slot_id or request.item_id], [request[:2]]) if is_refused else next(results)
            for request, is_refused in zip(requests, refused, strict=True)
        ]

    # -- settings ------------------------------------------------------------------------------------------------

    async def configure(self, item_type: str, **settings: Unpack[DispatchSettings]) -> DispatchConfig:
        """Changes some of an item type's settings, in snake_case or camelCase; a new type begins with the defaults.

        Raises:
            ConfigurationError: there is no such setting, or its value is wrong.
        """
        config = await self.store.change(checked_type(item_type), settings, create=True)
        assert config is not None
        self._known.add(item_type)
        return config

    async def define(self, config: DispatchConfig) -> DispatchConfig:
        """Makes `config` an item type's first settings; a type that has settings keeps them."""
        existing = await self.store.declare(config, only_new=True)
        self._known.add(config.item_type)
        return existing

    async def declare(self, config: DispatchConfig) -> DispatchConfig:
        """What the code says of an item type, as a worker does at its start. Code gives defaults, and operators decide:
        a setting follows the code until somebody changes it, and again when it is set back. The kill switch is always
        an operator's. Returns the settings in force."""
        settings = await self.store.declare(config)
        self._known.add(config.item_type)
        return settings

    async def pause(self, item_type: str) -> DispatchConfig:
        """Turns the kill switch off: no item of this type starts until `resume`, and none is lost.

        Raises:
            NotFound: there is no such item type.
        """
        return await self._switched(item_type, enabled=False)

    async def resume(self, item_type: str) -> DispatchConfig:
        """Turns a paused type on again.

        Raises:
            NotFound: there is no such item type.
        """
        return await self._switched(item_type, enabled=True)

    async def _switched(self, item_type: str, *, enabled: bool) -> DispatchConfig:
        config = await self.store.change(checked_type(item_type), {"enabled": enabled})
        if config is None:
            raise NotFound("item type", item_type)
        return config

    # -- operating -----------------------------------------------------------------------------------------------

    async def requeue(
        self, item_type: str, item_ids: Iterable[str] | None = None, **matching: Unpack[FilterOptions]
    ) -> int:
        """Makes dead letters READY again, as new, and returns their number: those with these ids, all or none; or those
        that match, as in `cancel`; or, with neither, all dead letters of the type.

        Raises:
            Conflict: one of the ids is not a dead letter; nothing was changed.
            InvalidInput: a value is wrong, or both ids and a filter are given.
            NotFound: there is no such item type, or one of the items is not there.
        """
        return await self._redirect(item_type, item_ids, matching, Status.READY)

    async def discard(
        self, item_type: str, item_ids: Iterable[str] | None = None, **matching: Unpack[FilterOptions]
    ) -> int:
        """Cancels items that are READY or dead letters, and returns their number: those with these ids, all or none; or
        those that match, as in `cancel`; or, with neither, all dead letters of the type.

        Raises:
            Conflict: one of the ids is in flight or finished; nothing was changed.
            InvalidInput: a value is wrong, or both ids and a filter are given.
            NotFound: there is no such item type, or one of the items is not there.
        """
        return await self._redirect(item_type, item_ids, matching, Status.CANCELLED)

    async def cancel(
        self, item_type: str, item_ids: Iterable[str] | None = None, **matching: Unpack[FilterOptions]
    ) -> int:
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
        changed = await self._change(item_type, item_ids, matching, Cancellation())
        if changed.in_flight and self._stop_executions is not None:
            await self._stop_executions(changed.in_flight)
        return changed.total

    async def reschedule(
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
        if execute_at is None and priority is None and new_lane is None:
            raise InvalidInput("execute_at", "give a time, a priority or a lane")
        change = Rescheduling(
            None if execute_at is None else parse_instant(execute_at, "execute_at"),
            None if priority is None else checked_priority(priority),
            None if new_lane is None else checked_lane(new_lane),
        )
        return (await self._change(item_type, item_ids, matching, change)).total

    async def resolve(self, item_type: str, item_ids: Iterable[str], outcome: str, *, reason: str | None = None) -> int:
        """Says what became of items whose attempts are in doubt, and returns their number; all of these ids, or none.
        With `outcome="done"`, they are COMPLETED; with `refused`, dead letters with the reason; with `again`, READY.

        Items that are UNKNOWN can be resolved, those that wait for an inquiry, and dead letters whose hold is over.

        Raises:
            Conflict: nothing is in doubt about one of the items, it is being inquired, or its application decides its
                outcome; nothing was changed.
            InvalidInput: a value is wrong.
            NotFound: there is no such item type, or one of the items is not there.
        """
        resolution, ids = Resolution.of(outcome, reason), checked_ids(item_ids)
        await self.check_known(checked_type(item_type))
        return (await self.store.change_items(item_type, ids, resolution)).total

    async def _change(
        self, item_type: str, item_ids: Iterable[str] | None, matching: FilterOptions, change: ItemChange
    ) -> ChangeResult:
        chosen = checked_filter(**matching)
        if (item_ids is None) == (chosen == ItemFilter()):
            raise InvalidInput("ids", "give a list of ids, or what the items must match; one of the two")
        await self.check_known(checked_type(item_type))
        if item_ids is None:
            return await self.store.change_items(item_type, chosen, change)
        return await self.store.change_items(item_type, checked_ids(item_ids), change)

    async def preview(
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
        at = None if execute_at is None else parse_instant(execute_at, "executeAt")
        previewed, chosen = change_named(change, at), checked_filter(**matching)
        if chosen == ItemFilter():
            raise InvalidInput("filter", "give what the items must match")
        await self.check_known(checked_type(item_type))
        return await self.store.preview(item_type, chosen, previewed)

    async def prune(self, before: datetime | str) -> PruneResult:
        """Deletes items that finished, and audit entries written, before a time. Dead letters are kept.

        Raises:
            InvalidInput: the time is wrong.
        """
        return await self.store.prune(parse_instant(before, "before"))

    async def _redirect(
        self, item_type: str, item_ids: Iterable[str] | None, matching: FilterOptions, to: Status
    ) -> int:
        if matching:
            return (await self._change(item_type, item_ids, matching, Redirection(to))).total
        await self.check_known(checked_type(item_type))
        ids = None if item_ids is None else checked_ids(item_ids)
        return await self.store.redirect(item_type, ids, to)


def enqueue_span(item_type: str, item_id: str, parent: str) -> Span:
    """The span of queueing one item; the item stores its traceparent."""
    attributes = {"paceline.item_type": item_type, "paceline.item_id": item_id}
    return tracing.begin("queue.enqueue", attributes, parent=parent, kind="PRODUCER")


def _triples(items: Any) -> Iterator[tuple[str, Any, datetime | str | None]]:
    try:
        iterator = iter(items)
    except TypeError:
        raise InvalidInput("items", "must be a list of (item_id, context, execute_at)") from None
    for number, item in enumerate(iterator):
        try:
            if isinstance(item, str):
                raise TypeError
            item_id, context, execute_at = item
        except (TypeError, ValueError):
            raise InvalidInput(f"items[{number}]", "must be (item_id, context, execute_at)") from None
        yield item_id, context, execute_at
