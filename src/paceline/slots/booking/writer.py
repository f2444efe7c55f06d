"""One writer per process (group commit): requests under any sets of configs that arrive while a transaction is in
flight share the next one, in the order of their arrival.

A transaction is bounded by its requests, by the configs it locks, and by the time it takes. If a config's lock does not
become free, the requests that need it are set aside until it is; the others don't wait for it again.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from typing import NamedTuple, Protocol

from paceline import tracing
from paceline.errors import Conflict, LockTimeout, PacelineError, StaleVersion, StoreUnavailable
from paceline.slots import events
from paceline.slots.booking.packing import Booking, names_of
from paceline.slots.model import BookingGroup, SlotRequest
from paceline.slots.ports import LockHolder, SlotObserver

MAX_TRIES = 8
"""The maximum of attempts of a transaction that conflicts with another process's, for which each attempt waits."""
MAX_CONFIGS = 500
"""The maximum of configs that one transaction locks."""
WAIT_SECONDS = 7.0
"""How long requests wait for the lock of a config: less than a transaction's deadline."""
STUCK_SECONDS = 1.0
"""A lock whose transaction is younger than this is not stuck: it is another process's booking."""
LOOK_EVERY = 0.1
"""Seconds between two looks at locks that are stuck."""

TARGET_SECONDS = 0.25
"""How long a transaction should take: callers of a config wait for the one in front of them."""
LEAST = 50
"""The requests that a transaction may have however long it takes."""
FIRST_SPARSE = 1000
"""The requests of the first transaction whose requests are for different times."""

Position = tuple[int, int]
"""A group, and the number of its requests that are done."""
Outcomes = list[list[Booking]]
"""The outcomes of each group."""


class BookingStore(Protocol):
    """The part of a `SlotStore` that a writer uses."""

    async def book_groups(
        self, groups: Sequence[BookingGroup], *, now_ms: int | None = None, template_configs: int = 0
    ) -> Outcomes: ...

    async def lock_holders(self, names: Sequence[str]) -> dict[str, LockHolder]: ...


class _Call(NamedTuple):
    """A caller's groups, and the future of their outcomes."""

    groups: Sequence[BookingGroup]
    outcomes: asyncio.Future[Outcomes]
    expires: float
    """When it no longer waits for a lock, by the monotonic clock."""

    @property
    def size(self) -> int:
        return sum(len(group.requests) for group in self.groups)

    def needs(self, names: Mapping[str, LockHolder]) -> str | None:
        """One of these configs that it is charged to."""
        return next((name for group in self.groups for name in group.names if name in names), None)


class SlotWriter:
    """Books groups of requests, one transaction at a time."""

    def __init__(
        self, store: BookingStore, observer: SlotObserver, *, max_batch: int, bulk_batch: int, template_configs: int
    ) -> None:
        self._store = store
        self._observer = observer
        self._max_batch = max_batch
        self._template_configs = template_configs
        self._paces = Paces(bulk_batch)
        self._waiting: deque[_Call] = deque()
        """Calls for the next transactions."""
        self._aside: list[_Call] = []
        """Calls that wait for a lock."""
        self._stuck: dict[str, LockHolder] = {}
        """The configs whose locks are stuck."""
        self._task: asyncio.Task[None] | None = None
        self._aside_task: asyncio.Task[None] | None = None
        self._closed = False

    def submit(self, groups: Sequence[BookingGroup]) -> asyncio.Future[Outcomes]:
        """The outcomes of groups, which are accepted at once and booked in one transaction. If the caller is cancelled,
        they are booked nevertheless.

        Raises:
            RuntimeError: the writer is closed.
        """
        if self._closed:
            raise RuntimeError("closed: no further work is taken")
        call = _Call(groups, asyncio.get_running_loop().create_future(), time.monotonic() + WAIT_SECONDS)
        if self._stuck and call.needs(self._stuck):
            self._aside.append(call)
        else:
            self._waiting.append(call)
            self._begin()
        return call.outcomes

    async def book(self, groups: Sequence[BookingGroup]) -> Outcomes:
        """The outcomes of groups of any size, in several transactions, each short enough that other callers wait less
        than a second for it."""
        outcomes: Outcomes = [[] for _ in groups]
        at = (0, 0)
        while at[0] < len(groups):
            portion, following = self._paces.next(groups, at, MAX_CONFIGS)
            for index, bookings in enumerate(await self.submit(portion), at[0]):
                outcomes[index] += bookings
            at = following
        return outcomes

    async def close(self) -> None:
        """Takes no further work and returns when all accepted work is done."""
        self._closed = True
        while tasks := [task for task in (self._task, self._aside_task) if task is not None and not task.done()]:
            await asyncio.wait(tasks)

    def _begin(self) -> None:
        if self._task is None or self._task.done():
            self._task = self._spawned(self._drain, self._waiting)

    def _spawned(self, work: Callable[[], Awaitable[None]], calls: Sequence[_Call]) -> asyncio.Task[None]:
        async def run() -> None:
            try:
                await work()
            except BaseException:  # cancelled: callers must not wait for ever
                for call in calls:
                    call.outcomes.cancel()
                raise

        # In its own context: a transaction is not part of its first caller's trace.
        return asyncio.get_running_loop().create_task(run(), context=Context())

    async def _drain(self) -> None:
        while self._waiting:
            calls = self._next_calls()
            try:
                await self._carry(calls)
            except BaseException as error:
                for call in calls:
                    if isinstance(error, Exception) and not call.outcomes.done():
                        call.outcomes.set_exception(error)
                    call.outcomes.cancel()
                if not isinstance(error, Exception):
                    raise

    def _next_calls(self) -> list[_Call]:
        """The calls of the next transaction; the first one fits by itself."""
        limit = min(self._max_batch, self._paces.size)
        calls = [self._waiting.popleft()]
        size, names = calls[0].size, {name for group in calls[0].groups for name in group.names}
        while self._waiting:
            call = self._waiting[0]
            size += call.size
            for group in call.groups:
                names.update(group.names)
            if size > limit or len(names) > MAX_CONFIGS:
                break
            calls.append(self._waiting.popleft())
        return calls

    async def _carry(self, calls: Sequence[_Call]) -> None:
        """Books the calls in one transaction; where a call's error may be its own, in one each."""
        groups = _merged(calls)
        started = time.perf_counter()
        try:
            outcomes = await self._committed(groups)
        except LockTimeout as error:
            await self._set_aside(calls, error)
            return
        except PacelineError as error:
            if len(calls) > 1 and not isinstance(error, StoreUnavailable):
                for call in calls:
                    await self._carry([call])
                return
            self._fail(calls, error)
            return
        seconds = time.perf_counter() - started
        self._paces.learn(groups, seconds)
        self._report(groups, outcomes, seconds)
        index = at = 0
        for call in calls:
            own: Outcomes = []
            for _, requests, _ in call.groups:
                count = len(requests)
                while at + count > len(outcomes[index]):
                    index, at = index + 1, 0
                own.append(outcomes[index][at : at + count])
                at += count
            if not call.outcomes.done():
                call.outcomes.set_result(own)

    async def _committed(self, groups: Sequence[BookingGroup]) -> Outcomes:
        """Retries a transaction that conflicts with another writer."""
        name = groups[0].names[0]
        for attempt in itertools.count(1):
            try:
                return await self._store.book_groups(groups, template_configs=self._template_configs)
            except Conflict as conflict:
                if isinstance(conflict, StaleVersion):
                    raise
                self._observer.contended(name)
                events.log_contention(name)
                if attempt == MAX_TRIES:
                    raise
        raise AssertionError("unreachable")

    def _fail(self, calls: Sequence[_Call], error: PacelineError) -> None:
        for call in calls:
            for names, requests, _ in call.groups:
                self._observer.failed(names[0], len(requests), error)
                if tracing.is_on():
                    events.trace_bookings(", ".join(names), requests, error)
            if not call.outcomes.done():
                call.outcomes.set_exception(error)

    def _report(self, groups: Sequence[BookingGroup], outcomes: Outcomes, seconds: float) -> None:
        by_names: dict[tuple[str, ...], tuple[list[SlotRequest], list[Booking]]] = {}
        for (names, requests, _), bookings in zip(groups, outcomes, strict=True):
            all_requests, all_bookings = by_names.setdefault(names, ([], []))
            all_requests += requests
            all_bookings += bookings
        for names, (requests, bookings) in by_names.items():
            label = ", ".join(names)
            self._observer.booked(names[0], bookings, seconds)
            events.log_bookings(label, requests, bookings)
            if tracing.is_on():
                events.trace_bookings(label, requests, bookings)

    async def _set_aside(self, calls: Sequence[_Call], error: LockTimeout) -> None:
        """Sets those calls aside that need a config whose lock is stuck. The others come next."""
        with suppress(PacelineError):
            self._stuck |= await self._stuck_among(names_of([group for call in calls for group in call.groups]))
        for name, holder in self._stuck.items():
            events.log_stuck(name, holder)
        now = time.monotonic()
        waiting = [*calls, *self._waiting]
        self._waiting.clear()
        for call in waiting:
            if call.needs(self._stuck) is not None:
                self._aside.append(call)
            elif call.expires > now:
                self._waiting.append(call)
            else:
                self._fail([call], error)
        if self._aside and (self._aside_task is None or self._aside_task.done()):
            self._aside_task = self._spawned(self._watch_locks, self._aside)

    async def _stuck_among(self, names: Sequence[str]) -> dict[str, LockHolder]:
        holders = await self._store.lock_holders(names)
        return {name: holder for name, holder in holders.items() if holder.held_seconds >= STUCK_SECONDS}

    async def _watch_locks(self) -> None:
        """Lets calls that were set aside continue when their locks are free. No connection waits meanwhile."""
        while self._aside:
            await asyncio.sleep(LOOK_EVERY)
            with suppress(PacelineError):  # unavailable: what was known still holds, until the calls expire
                self._stuck = await self._stuck_among(sorted(self._stuck))
            now = time.monotonic()
            calls, free = list(self._aside), []
            self._aside.clear()
            for call in calls:
                name = call.needs(self._stuck)
                if name is None:
                    free.append(call)
                elif call.expires > now:
                    self._aside.append(call)
                else:
                    self._fail([call], _locked(name, self._stuck[name]))
            self._waiting.extendleft(reversed(free))
            if free:
                self._begin()
        self._stuck = {}


def _locked(name: str, holder: LockHolder) -> LockTimeout:
    return LockTimeout(f"the config {name!r} is locked by {holder}; nothing was booked")


def _merged(calls: Sequence[_Call]) -> list[BookingGroup]:
    """The groups of all calls, adjacent ones under the same configs as one."""
    merged: list[BookingGroup] = []
    names: tuple[str, ...] = ()
    owner: str | None = None
    together: list[SlotRequest] | None = None
    for call in calls:
        for group in call.groups:
            if not merged or group.names != names or group.owner != owner:
                merged.append(group)
                names, together, owner = group.names, None, group.owner
                continue
            if together is None:
                together = list(merged[-1].requests)
                merged[-1] = BookingGroup(names, together, owner)
            together += group.requests
    return merged


class Pace:
    """The size of the next transaction, learnt from what the last ones took."""

    def __init__(self, first: int, max_size: int) -> None:
        self.size = min(first, max_size)
        self._max_size = max_size

    def learn(self, count: int, seconds: float) -> None:
        """Learns that a transaction of `count` requests took that long. A small, quick one is ignored."""
        if seconds > TARGET_SECONDS:
            self.size = max(min(LEAST, self._max_size), int(count * TARGET_SECONDS / seconds))
        elif count >= self.size:
            self.size = min(
                self._max_size, 2 * self.size, max(self.size, int(count * TARGET_SECONDS / max(seconds, 1e-6)))
            )


class Paces:
    """The pace of crowded and of sparse requests: those for one time share a few windows, those for different times
    each cost reads and writes."""

    def __init__(self, max_size: int) -> None:
        self._crowded = Pace(max_size, max_size)
        self._sparse = Pace(FIRST_SPARSE, max_size)

    @property
    def size(self) -> int:
        """The most requests that one transaction should have, whatever they are."""
        return min(self._crowded.size, self._sparse.size)

    def next(
        self, groups: Sequence[BookingGroup], at: Position, max_configs: int
    ) -> tuple[list[BookingGroup], Position]:
        """The groups of the next transaction, from a position on, the last one maybe in part; and where to continue."""
        portion = _portion(groups, at, self._crowded.size, max_configs)
        if sum(len(group.requests) for group in portion) > self._sparse.size and _are_sparse(portion):
            portion = _portion(groups, at, self._sparse.size, max_configs)
        last = at[0] + len(portion) - 1
        done = len(portion[-1].requests) + (at[1] if len(portion) == 1 else 0)
        return portion, (last, done) if done < len(groups[last].requests) else (last + 1, 0)

    def learn(self, groups: Sequence[BookingGroup], seconds: float) -> None:
        """Learns that a transaction of these groups took that long."""
        pace = self._sparse if _are_sparse(groups) else self._crowded
        pace.learn(sum(len(group.requests) for group in groups), seconds)


def _portion(groups: Sequence[BookingGroup], at: Position, size: int, max_configs: int) -> list[BookingGroup]:
    """Up to `size` requests from a position on, under up to `max_configs` configs; at least one group."""
    portion: list[BookingGroup] = []
    names: set[str] = set()
    first = at[1]
    for group in groups[at[0] :]:
        names.update(group.names)
        if size <= 0 or (portion and len(names) > max_configs):
            break
        requests = group.requests[first : first + size] if first or len(group.requests) > size else group.requests
        portion.append(group._replace(requests=requests))
        size -= len(requests)
        first = 0
    return portion


def _are_sparse(groups: Sequence[BookingGroup]) -> bool:
    """Whether most requests are for different times, or under different configs."""
    total = sum(len(group.requests) for group in groups)
    times = [len(requests) if len(requests) < 2 else len({at for _, at in requests}) for _, requests, _ in groups]
    return 2 * sum(times) > total
