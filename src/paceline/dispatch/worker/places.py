"""`Places`: how many executions this process can run. Each takes a place before it waits for anything else.

Waiters take turns: item type by item type and lane by lane, and in a lane by priority, then in order of arrival.
"""

from __future__ import annotations

import asyncio
import heapq
import inspect
from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

from paceline.dispatch.worker.threads import is_coroutine_function, run_on_thread

R = TypeVar("R")

DEFAULT_CONCURRENCY = 100
DEFAULT_THREADS = 8
ABANDONED_SECONDS = 0.25
"""How long all threads are held by abandoned functions before a process gives up: one may be about to return."""

Group = tuple[str, str]
"""An item type and a lane."""


class _Waiter(NamedTuple):
    priority: int
    number: int
    turn: asyncio.Future[None]
    needs_permit: bool


class Places:
    """The places of one process: `concurrency` in all, of which `threads` are for plain functions.

    Executions that need a permit keep their place while they wait for it. So that they leave places to others, only
    `most_at_permit(item_type)` of a type may wait there, and at most half of the places.
    """

    def __init__(
        self,
        concurrency: int = DEFAULT_CONCURRENCY,
        threads: int = DEFAULT_THREADS,
        *,
        most_at_permit: Callable[[str], int] = lambda _: 1,
    ) -> None:
        self.concurrency = concurrency
        self.threads = threads
        self.abandoned: Counter[str] = Counter()
        """By item type: threads whose functions run although nobody waits for them any more."""
        self._all_abandoned = asyncio.Event()
        self._free = concurrency
        self._free_threads = threads
        self._most_at_permit = most_at_permit
        self._at_permit: Counter[str] = Counter()
        self._number = 0
        self._waiting: tuple[OrderedDict[Group, list[_Waiter]], OrderedDict[Group, list[_Waiter]]]
        self._waiting = OrderedDict(), OrderedDict()
        """Groups with waiters, the next in turn first: those that need no thread, and those that need one."""
        self._threads_first = False

    def free(self, *, on_thread: bool = False) -> int:
        """How many places could be taken now."""
        return min(self._free, self._free_threads) if on_thread else self._free

    def free_at_permit(self, item_type: str, *, on_thread: bool = False) -> int:
        """How many places executions of a type that need permits could take now."""
        return min(self._room_at_permit(item_type, on_thread), self.free(on_thread=on_thread))

    async def exhausted(self) -> str:
        """Returns when all threads are held by functions that nobody waits for any more, with a message that says so:
        this process can run no more plain functions."""
        while not self._all_abandoned.is_set():
            await self._all_abandoned.wait()
            await asyncio.sleep(ABANDONED_SECONDS)
        types = sorted(+self.abandoned)
        return (
            f"all {self.threads} threads are held by functions of {', '.join(types)} that ran beyond their "
            "time-outs: this worker gives back what has not begun, and ends"
        )

    async def acquire(
        self, item_type: str, lane: str, priority: int, *, on_thread: bool = False, needs_permit: bool = False
    ) -> Place:
        """Takes a place in its turn; `Place.release` frees it. With `needs_permit`, call `Place.admitted` when the
        permit is there."""
        groups = self._waiting[on_thread]
        is_free = self._free > 0 and (not on_thread or self._free_threads > 0) and not groups
        if is_free and not (needs_permit and self._room_at_permit(item_type, on_thread) <= 0):
            self._take(item_type, on_thread, needs_permit)
            return Place(self, item_type, on_thread, needs_permit)
        self._number += 1
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = _Waiter(priority, self._number, turn, needs_permit)
        heapq.heappush(groups.setdefault((item_type, lane), []), waiter)
        self._wake()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                # Cancelled just after it got the place: the next waiter gets it.
                Place(self, item_type, on_thread, needs_permit).release()
            raise
        return Place(self, item_type, on_thread, needs_permit)

    def _take(self, item_type: str, on_thread: bool, needs_permit: bool) -> None:
        self._free -= 1
        self._free_threads -= on_thread
        self._at_permit[item_type] += needs_permit

    def _room_at_permit(self, item_type: str, on_thread: bool) -> int:
        half = max(1, (self.threads if on_thread else self.concurrency) // 2)
        return min(self._most_at_permit(item_type), half) - self._at_permit[item_type]

    def abandon(self, item_type: str, threads: int) -> None:
        """So many more threads run functions that nobody waits for, or fewer."""
        self.abandoned[item_type] += threads
        if self.abandoned.total() >= self.threads:
            self._all_abandoned.set()
        else:
            self._all_abandoned.clear()

    def give_back(self, item_type: str, *, on_thread: bool, at_permit: bool) -> None:
        """Frees a place: the next waiters get it."""
        self._free += 1
        self._free_threads += on_thread
        self.leave_permit(item_type, at_permit=at_permit)

    def leave_permit(self, item_type: str, *, at_permit: bool = True) -> None:
        """An execution of the type no longer waits for its permit."""
        self._at_permit[item_type] -= at_permit
        if self._waiting[0] or self._waiting[1]:
            self._wake()

    def _wake(self) -> None:
        while self._free > 0:
            self._threads_first = not self._threads_first
            if not (self._wake_one(self._threads_first) or self._wake_one(not self._threads_first)):
                return

    def _wake_one(self, on_thread: bool) -> bool:
        """Gives a place to the next waiter in turn that can take one; False if there is none."""
        groups = self._waiting[on_thread]
        if on_thread and self._free_threads <= 0:
            return False
        for group in list(groups):
            waiters = groups[group]
            while waiters and waiters[0].turn.done():
                heapq.heappop(waiters)
            if not waiters:
                del groups[group]
                continue
            needs_permit = waiters[0].needs_permit
            if needs_permit and self._room_at_permit(group[0], on_thread) <= 0:
                continue
            turn = heapq.heappop(waiters).turn
            if waiters:
                groups.move_to_end(group)
            else:
                del groups[group]
            self._take(group[0], on_thread, needs_permit)
            turn.set_result(None)
            return True
        return False


class Place:
    """A place that one execution holds, with a thread if it needs one."""

    __slots__ = ("_at_permit", "_holders", "_item_type", "_places", "on_thread")

    def __init__(self, places: Places, item_type: str, on_thread: bool, at_permit: bool) -> None:
        self._places = places
        self._item_type = item_type
        self._at_permit = at_permit
        self._holders = 1
        self.on_thread = on_thread

    def admitted(self) -> None:
        """Its execution has its permit."""
        if self._at_permit:
            self._at_permit = False
            self._places.leave_permit(self._item_type)

    async def run(self, function: Callable[[], R], *, timeout: float | None = None) -> R:
        """What `function` returns or raises, on this place's thread. A thread can't be cancelled: a caller that stops
        waiting leaves the function running, and it keeps the place until it returns.

        Raises:
            RuntimeError: it raised `SystemExit`, `StopIteration` or what else can't leave its thread.
            TimeoutError: it ran longer than `timeout` seconds; it keeps running.
        """
        self._holders += 1
        is_over = is_abandoned = False

        def over() -> None:
            nonlocal is_over
            is_over = True
            if is_abandoned:
                self._places.abandon(self._item_type, -1)
            self.release()

        try:
            return await run_on_thread(function, timeout=timeout, over=over)
        finally:
            if not is_over:
                is_abandoned = True
                self._places.abandon(self._item_type, 1)

    def release(self) -> None:
        """Frees the place, when its function has returned too."""
        self._holders -= 1
        if not self._holders:
            self._places.give_back(self._item_type, on_thread=self.on_thread, at_permit=self._at_permit)


async def execute_on(place: Place, execute: Callable[..., Any], *args: Any) -> Any:
    """Executes an item; a plain `def` runs on the place's thread, so that it can't hold up the event loop."""
    if not place.on_thread or is_coroutine_function(execute):
        return await execute(*args)
    result = await place.run(partial(execute, *args))
    return await result if inspect.isawaitable(result) else result
