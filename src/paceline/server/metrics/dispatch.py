"""Dispatch, counted: the metric names of the contract."""

from __future__ import annotations

from typing import ClassVar
from weakref import WeakKeyDictionary

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from paceline.dispatch.model import QueueStats
from paceline.dispatch.status import Status

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class DispatchMetrics:
    """A `DispatchObserver` that counts into a Prometheus registry."""

    _known: ClassVar[WeakKeyDictionary[CollectorRegistry, DispatchMetrics]] = WeakKeyDictionary()

    @classmethod
    def of(cls, registry: CollectorRegistry) -> DispatchMetrics:
        """Those of a registry: the roles of one process count together."""
        known = cls._known.get(registry)
        if known is None:
            known = cls._known[registry] = cls(registry)
        return known

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, meaning: str) -> Counter:
            made = Counter(name, meaning, ["item_type"], registry=registry)
            self._counters.append(made)
            return made

        self._counters: list[Counter] = []

        self._claimed = counter("dispatch_batch_claimed", "Items claimed, in all batches.")
        self._started = counter("dispatch_workflow_started", "Executions started.")
        self._start_failures = counter("dispatch_workflow_start_failures", "Starts that failed or were refused.")
        self._recovered = counter("dispatch_stale_recovered", "Stale claims given back.")
        self._dead = counter("dispatch_dead_letter", "Items that became dead letters.")
        self._unread = counter(
            "dispatch_switch_unread",
            "Times that the kill switch could not be read, or not within 0.8 s, so that nothing could begin.",
        )
        self._blocked = Counter(
            "dispatch_event_loop_blocked_seconds",
            "Seconds for which a task blocked the event loop of this process, two or more at a time.",
            registry=registry,
        )
        self._completed = counter("dispatch_workflow_completed", "Executions that ended well.")
        self._failed = counter("dispatch_workflow_failed", "Executions that failed.")
        self._cycles = Histogram(
            "dispatch_cycle_duration_seconds",
            "One dispatch cycle, all five steps.",
            ["item_type"],
            registry=registry,
            buckets=_SECONDS,
        )
        self._executions = Histogram(
            "dispatch_execution_duration_seconds",
            "How long executions in this process took, whether they ended well or badly.",
            ["item_type"],
            registry=registry,
            buckets=(*_SECONDS, 60, 300),
        )
        self._depth = Gauge(
            "dispatch_queue_depth",
            "Items in the queue, by status.",
            ["item_type", "status"],
            registry=registry,
            # Every process measures the same queue: the newest measurement is the right one.
            multiprocess_mode="mostrecent",
        )
        self._overdue = Gauge(
            "dispatch_oldest_due_seconds",
            "How long the item that waits longest has been due without having begun, whoever holds it; 0 if none "
            "is due.",
            ["item_type"],
            registry=registry,
            multiprocess_mode="mostrecent",
        )

        self._late, self._held = (
            Gauge(name, meaning, ["item_type"], registry=registry, multiprocess_mode="mostrecent")
            for name, meaning in (
                ("dispatch_late_items", "Items that are due and have not begun, also those that a worker holds."),
                ("dispatch_held_items", "Items that a worker has claimed and that have not begun."),
            )
        )
        self._abandoned = Gauge(
            "dispatch_threads_abandoned",
            "Threads of this process that run functions whose timeouts are over.",
            ["item_type"],
            registry=registry,
            multiprocess_mode="livesum",
        )
        self._workers = Gauge(
            "dispatch_workers",
            "Live workers of an item type; 0 if none claims its items, or none executes them.",
            ["item_type"],
            registry=registry,
            multiprocess_mode="mostrecent",
        )

    def known(self, item_type: str) -> None:
        # `rate()` sees no increase in a counter that starts above zero: the first dead letter would fire no alert.
        for counter in self._counters:
            counter.labels(item_type)

    def claimed(self, item_type: str, items: int) -> None:
        self._claimed.labels(item_type).inc(items)

    def started(self, item_type: str, items: int) -> None:
        self._started.labels(item_type).inc(items)

    def start_failed(self, item_type: str, items: int) -> None:
        self._start_failures.labels(item_type).inc(items)

    def recovered(self, item_type: str, items: int) -> None:
        self._recovered.labels(item_type).inc(items)

    def finished(self, item_type: str, completed: int, failed: int) -> None:
        self._completed.labels(item_type).inc(completed)
        self._failed.labels(item_type).inc(failed)

    def executed(self, item_type: str, seconds: float) -> None:
        self._executions.labels(item_type).observe(seconds)

    def dead_lettered(self, item_type: str, items: int) -> None:
        self._dead.labels(item_type).inc(items)

    def switch_unread(self, item_type: str) -> None:
        self._unread.labels(item_type).inc()

    def blocked(self, task: str, seconds: float) -> None:
        self._blocked.inc(seconds)

    def abandoned(self, item_type: str, threads: int) -> None:
        self._abandoned.labels(item_type).set(threads)

    def cycled(self, item_type: str, seconds: float) -> None:
        self._cycles.labels(item_type).observe(seconds)

    def measured(self, stats: QueueStats) -> None:
        self.known(stats.item_type)
        for status in Status:
            self._depth.labels(stats.item_type, status.value).set(stats.depth.get(status, 0))
        self._workers.labels(stats.item_type).set(stats.workers if stats.attended else 0)
        self._late.labels(stats.item_type).set(stats.late)
        self._held.labels(stats.item_type).set(stats.held)
        age = stats.late_by
        self._overdue.labels(stats.item_type).set(0 if age is None else age.total_seconds())
