"""Slots, counted: the metric names of the contract."""

from __future__ import annotations

import asyncio
import time
from collections import Counter as Tally
from collections.abc import Awaitable, Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram

from paceline.errors import PacelineError, SlotsExhausted, StoreUnavailable
from paceline.slots.booking.packing import Booking, proves_config
from paceline.slots.model import AssignedSlot, PolicyVersion

MAX_NAMES = 50
"""Each config has dozens of series: beyond this many names, the rest share theirs."""
MAX_SIZES = 100_000
"""The window sizes that are kept, by config and version."""
OTHER = "(other)"
EXHAUSTED = "exhausted"
DEPTH_SAMPLE = 100
"""Bookings of one transaction whose depth is observed: a sample, so that metrics do not slow down bulk work."""
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class SlotMetrics:
    """A `SlotObserver` that counts into a Prometheus registry. Configs that follow a template are counted together,
    under its name: their own names are users' data, and there may be any number of them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._durations = Histogram(
            "rate_limiter_slot_assignment_duration_seconds",
            "From the call to its slot: waiting for a transaction, booking, commit.",
            ["config"],
            registry=registry,
            buckets=_SECONDS,
        )
        self._transactions = Histogram(
            "rate_limiter_slot_transaction_duration_seconds",
            "One booking transaction, whatever it carried.",
            ["config"],
            registry=registry,
            buckets=_SECONDS,
        )
        self._batches = Histogram(
            "rate_limiter_slot_batch_size",
            "Requests carried by one booking transaction.",
            ["config"],
            registry=registry,
            buckets=(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000),
        )
        self._depths = Histogram(
            "rate_limiter_window_lookahead_depth",
            "Windows between the requested one and the booked one; sampled in large batches.",
            ["config"],
            registry=registry,
            buckets=(0, 1, 2, 5, 10, 50, 100, 500, 1000, 5000, 10_000, 100_000),
        )
        self._assigned = Counter("rate_limiter_slots_assigned", "Slots newly booked.", ["config"], registry=registry)
        self._existing = Counter(
            "rate_limiter_slots_existing", "Requests whose event had its slot already.", ["config"], registry=registry
        )
        self._failures = Counter(
            "rate_limiter_slot_assignment_failures",
            "Requests that got no slot: exhausted, NotFound (a config that does not exist), or the store's error.",
            ["config", "reason"],
            registry=registry,
        )
        self._contention = Counter(
            "rate_limiter_window_contention",
            "Transactions tried again because another writer was in the way.",
            ["config"],
            registry=registry,
        )
        self._hits = Counter("rate_limiter_config_cache_hits", "Policies read from memory.", registry=registry)
        self._misses = Counter("rate_limiter_config_cache_misses", "Policies read from the store.", registry=registry)
        self._names: set[str] = set()
        # Looking a child up by its label costs more than counting, and this one counts every call.
        self._duration_children: dict[str, Histogram] = {}
        self._sizes: dict[tuple[str, int], int] = {}
        self._history: Callable[[str], Awaitable[Sequence[PolicyVersion]]] | None = None
        self._learning: dict[str, asyncio.Task[None]] = {}
        self._series_of: Callable[[str], str | None] = lambda name: name

    def count_by(self, series_of: Callable[[str], str | None]) -> None:
        """Sets the source of the names that configs are counted under: `SlotStore.series_of`."""
        self._series_of = series_of

    def learn_sizes_from(self, history: Callable[[str], Awaitable[Sequence[PolicyVersion]]]) -> None:
        """Sets the source of the window sizes of a config's versions, the unit of a depth."""
        self._history = history

    def remember(self, versions: Sequence[PolicyVersion]) -> None:
        """Keeps the window sizes of these versions."""
        if len(self._sizes) + len(versions) > MAX_SIZES:
            self._sizes.clear()
        for version in versions[:MAX_SIZES]:
            self._known(version.name)
            self._sizes[version.name, version.version] = version.policy.size_ms

    def booked(self, name: str, bookings: Sequence[Booking], seconds: float) -> None:
        # An unknown name must not use up a label: the number of typos is unbounded.
        label = self._label(name) if proves_config(name, bookings) else OTHER
        self._transactions.labels(label).observe(seconds)
        self._batches.labels(label).observe(len(bookings))
        outcomes = Tally(_outcome(booking) for booking in bookings)
        for outcome, count in outcomes.items():
            if outcome == "assigned":
                self._assigned.labels(label).inc(count)
            elif outcome == "existing":
                self._existing.labels(label).inc(count)
            else:
                self._failures.labels(label, outcome).inc(count)
        depths = self._depths.labels(label)
        now_ms = time.time_ns() // 1_000_000
        for booking in bookings[:: -(-len(bookings) // DEPTH_SAMPLE) or 1]:
            if isinstance(booking, AssignedSlot) and not booking.existing:
                # A config has the version of the template that it follows.
                size = self._sizes.get((label, booking.config_version))
                if size is None:
                    self._learn(label)
                    return
                requested = max(booking.requested_ms, now_ms)
                depths.observe(max(0, booking.window_start_ms // size - requested // size))

    def assigned(self, name: str, seconds: float) -> None:
        label = self._label(name)
        child = self._duration_children.get(label)
        if child is None:
            child = self._duration_children[label] = self._durations.labels(label)
        child.observe(seconds)

    def failed(self, name: str, requests: int, error: PacelineError) -> None:
        self._failures.labels(self._label(name), type(error).__name__).inc(requests)

    def contended(self, name: str) -> None:
        self._contention.labels(self._label(name)).inc()

    def policy_looked_up(self, name: str, *, cached: bool) -> None:
        (self._hits if cached else self._misses).inc()

    def _label(self, name: str) -> str:
        series = self._series_of(name)
        if series is None:  # not booked yet, or no config at all
            return name if name in self._names else OTHER
        return self._known(series)

    def _known(self, name: str) -> str:
        if name in self._names:
            return name
        if len(self._names) >= MAX_NAMES:
            return OTHER
        self._names.add(name)
        # `rate()` sees no increase in a counter that starts above zero: the first refusal would fire no alert.
        self._failures.labels(name, EXHAUSTED)
        self._failures.labels(name, StoreUnavailable.__name__)
        return name

    def _learn(self, name: str) -> None:
        """Reads the sizes in the background; until then, depths are not observed."""
        if self._history is None or name in self._learning or name == OTHER:
            return

        async def learn(history: Callable[[str], Awaitable[Sequence[PolicyVersion]]]) -> None:
            try:
                self.remember(await history(name))
            except PacelineError:
                pass  # Not logged: a store outage is reported elsewhere.
            finally:
                self._learning.pop(name, None)

        self._learning[name] = asyncio.get_running_loop().create_task(learn(self._history))


def _outcome(booking: Booking) -> str:
    if isinstance(booking, AssignedSlot):
        return "existing" if booking.existing else "assigned"
    return EXHAUSTED if isinstance(booking, SlotsExhausted) else type(booking).__name__
