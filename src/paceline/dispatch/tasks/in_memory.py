"""`InMemory`: a queue for tests, which runs items at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from paceline.dispatch.current_task import is_inside_task
from paceline.dispatch.model import IN_LINE_UNTIL, EnqueueRequest, EnqueueResult, Item, read_json
from paceline.dispatch.queue import DispatchQueue
from paceline.dispatch.registry import Domain, Registry
from paceline.dispatch.search import LONGEST_PAGE, ItemFilter
from paceline.dispatch.status import Status
from paceline.dispatch.tasks.task import Task, TaskCall
from paceline.dispatch.worker.cycle import DispatchCycle
from paceline.dispatch.worker.engine import LocalEngine
from paceline.dispatch.worker.outcome_reporter import OutcomeReporter
from paceline.durations import parse_instant

MAX_EXECUTIONS = 1000
"""A test of a task that snoozes for ever fails after this many executions."""


class InMemory:
    """The same store, decisions and engine as a worker's, without waiting."""

    def __init__(self, queue: DispatchQueue, engine: LocalEngine, *, runs: bool) -> None:
        self.queue = queue
        self._engine = engine
        self._runs = runs
        self._cycle = DispatchCycle(queue.store, engine)
        self._pending: set[str] = set()
        """Item types that may have READY items."""
        self._running = asyncio.Lock()
        self._enqueued: list[EnqueueRequest] = []

    @classmethod
    @asynccontextmanager
    async def open(cls, domains: Iterable[Domain], *, runs: bool = True) -> AsyncIterator[InMemory]:
        """A queue in memory until the block ends."""
        registry = Registry(*domains)
        async with DispatchQueue.open("memory://") as queue:
            for domain in registry:
                # Without a guard, and not at a downstream's pace: a test need not wait for a rate.
                await queue.configure(domain.item_type, **_settings(domain))
            outcomes = OutcomeReporter(queue.store)
            engine = LocalEngine(registry, outcomes, at_pace=False)
            try:
                yield cls(queue, engine, runs=runs)
            finally:
                await engine.close()
                await outcomes.close()

    def enqueued(self, task: Task[..., Any]) -> list[dict[str, Any]]:
        """The arguments, as JSON, of each call of the task that was queued in the block, in order."""
        return [
            {name: value for name, value in read_json(request.context_json).items() if name in task.arguments.names}
            for request in self._enqueued
            if request.item_type == task.item_type
        ]

    def assert_enqueued(self, task: Task[..., Any] | TaskCall, *args: Any, **kwargs: Any) -> None:
        """Fails unless a call of the task was queued in the block, whether or not it ran: with these arguments, if any
        are given. A `TaskCall` is compared with its options too.

            queue.assert_enqueued(send_invoice, "inv-1")
            queue.assert_enqueued(send_invoice.options(lane="acme").call("inv-1"))

        Raises:
            AssertionError: no such call was queued; the message has those that were.
            InvalidInput: an argument is wrong.
        """
        call: TaskCall | None = None
        if isinstance(task, TaskCall):
            call, task = task, task.task
        elif args or kwargs:
            call = task.call(*args, **kwargs)
        requests = [request for request in self._enqueued if request.item_type == task.item_type]
        if any(call is None or _is_of(request, call) for request in requests):
            return
        expected = f"no call of {task.item_type}"
        if call is not None:
            options = {name: value for name, value in call.options._asdict().items() if value is not None}
            expected += f" with {task.arguments.dump(call.args, call.kwargs)}" + (f" and {options}" if options else "")
        raise AssertionError(f"{expected} was queued; queued were {self.enqueued(task)}")

    async def enqueue_requests(self, requests: Sequence[EnqueueRequest]) -> Sequence[EnqueueResult]:
        """Queues items and runs all queued items. Items that a task queues run after that task."""
        return await self._queued(requests, await self.queue.enqueue_requests(requests))

    async def enqueue_group(self, head: EnqueueRequest, members: Sequence[EnqueueRequest]) -> None:
        """Queues a group and runs all queued items, as `enqueue_requests` does."""
        await self._queued([*members, head], await self.queue.enqueue_group(head, members))

    async def _queued(
        self, requests: Sequence[EnqueueRequest], results: Sequence[EnqueueResult]
    ) -> Sequence[EnqueueResult]:
        new = [request for request, queued in zip(requests, results, strict=True) if not queued.existing]
        self._enqueued += new
        self._pending.update(request.item_type for request in new)
        if self._runs and not is_inside_task():
            await self.run()
        return results

    async def run(self) -> None:
        """Runs all queued items to their ends, and those that they queue.

        Raises:
            RuntimeError: an item was executed too often without coming to an end.
        """
        async with self._running:  # a caller returns when its own items have ended too
            while waiting := await self._waiting():
                first = min(waiting, key=lambda item_type: min(item.due_at for item in waiting[item_type]))
                await self._run_some(first, waiting[first])

    async def _waiting(self) -> dict[str, list[Item]]:
        """READY items, by type; of each type no more than a page."""
        waiting: dict[str, list[Item]] = {}
        for item_type in sorted(self._pending):
            items = await self.queue.store.items(item_type, ItemFilter(status=Status.READY), LONGEST_PAGE, None)
            if due := [item for item in items if item.due_at < IN_LINE_UNTIL]:
                waiting[item_type] = due
            elif not items:
                self._pending.discard(item_type)
        return waiting

    async def _run_some(self, item_type: str, waiting: Sequence[Item]) -> None:
        config = await self.queue.config(item_type)
        # A snooze counts from the real time, which may be long before the item's time.
        moment = max(max(item.due_at, item.execute_at) for item in waiting)
        batch = await self._cycle.claim(config, LONGEST_PAGE, now=moment)
        for item in batch.items:
            if item.claim.epoch > MAX_EXECUTIONS:
                raise RuntimeError(
                    f"{item_type} {item.claim.item_id} has not come to an end after {MAX_EXECUTIONS} executions"
                )
        await self._cycle.record(config, batch, await self._cycle.start(config, batch))
        self._pending.add(item_type)
        await self._engine.drained()


def _is_of(request: EnqueueRequest, call: TaskCall) -> bool:
    """Whether the item is one of such a call."""
    options, context = call.options, read_json(request.context_json)
    return (
        call.task.arguments.dump(call.args, call.kwargs)
        == {name: value for name, value in context.items() if name in call.task.arguments.names}
        and (options.key is None or options.key == request.item_id)
        and (options.at is None or parse_instant(options.at, "at") == request.execute_at)
        and (options.lane is None or options.lane == request.lane)
        and (options.priority is None or options.priority == request.priority)
    )


def _settings(domain: Domain) -> Any:
    config = domain.config
    return {
        "max_dispatch_retries": config.max_dispatch_retries,
        "jitter_window_ms": 0,
        "dispatch_interval_secs": 1,
        "on_unknown": config.on_unknown,
        "hold_for_secs": config.hold_for_secs,
    }
