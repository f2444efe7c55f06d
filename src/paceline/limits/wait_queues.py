"""Fair waiting: callers that wait for the same keys and plans form one queue, and only the first calls the store.

So the store gets the calls of a single waiter. A waiter that was served wakes exactly one other.

A signal handler may raise anywhere (Ctrl-C, a worker's time limit), so a caller may leave without waking the next one.
Therefore it sets `left` first, which is no call and can't be interrupted, and waiters look again from time to time.
Threads use no `threading.Event`: its lock is taken by a Python function, which may raise with the lock held.

A forked child starts with empty queues: the threads that wait are the parent's.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Generic, TypeAlias, TypeVar

from paceline.clock import Clock
from paceline.errors import InvalidInput
from paceline.forks import reset_in_children
from paceline.limits.model import Charge, Concurrency, Decision, Reason
from paceline.locks import Lock

MAX_PAUSE_SECONDS = 5.0
"""The longest pause between two attempts: a refund, a reset or a raised plan makes room early."""
PLACE_PAUSE_SECONDS = 0.2
"""The longest pause between two attempts at a place: another process may leave its own at any time."""
FOREVER = 1e9
"""A timeout of more seconds means no timeout: threads can't wait much longer."""

Cells: TypeAlias = tuple[tuple[str, str], ...]
"""Each key and plan of a chain."""


class Turn:
    """A thread's place in a queue."""

    __slots__ = ("_asleep", "cells", "key", "left", "was_first")

    def __init__(self, key: str, cells: Cells) -> None:
        self.key, self.cells = key, cells
        self.left = False
        """Whether its caller no longer waits. Set it before `leave` is called."""
        self.was_first = False
        """Whether it was the first when it came."""
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def wake(self) -> None:
        with suppress(RuntimeError):  # it was woken before
            self._asleep.release()

    def sleep(self, seconds: float) -> None:
        """Returns when it is woken, or was since the last sleep; or after so many seconds."""
        self._asleep.acquire(timeout=seconds)


class AsyncTurn:
    """A task's place in a queue."""

    __slots__ = ("_awake", "cells", "key", "left", "was_first")

    def __init__(self, key: str, cells: Cells) -> None:
        self.key, self.cells = key, cells
        self.left = self.was_first = False
        self._awake = asyncio.Event()

    def wake(self) -> None:
        self._awake.set()

    async def sleep(self) -> None:
        """Returns when it is woken, or was since the last sleep."""
        await self._awake.wait()
        self._awake.clear()


AnyTurn = TypeVar("AnyTurn", Turn, AsyncTurn)


class _Queues(Generic[AnyTurn]):
    """Queues of turns, by the first key and all cells of what they wait for. An empty queue is removed."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._queues: dict[str, dict[Cells, deque[AnyTurn]]] = {}
        reset_in_children(self)

    def reset_after_fork(self) -> None:
        """Forgets everything, in a forked child. The lock may have been held by a thread that was not forked."""
        self._lock = Lock()
        self._queues = {}

    def wake(self, key: str) -> None:
        """Wakes the first of each queue for `key`: there may be room."""
        if key in self._queues:
            with self._lock:
                for queue in self._queues.get(key, {}).values():
                    if queue:
                        queue[0].wake()

    def leave(self, turn: AnyTurn) -> None:
        """Removes a turn. If it was the first, the next one is woken. Set `turn.left` before."""
        with self._lock:
            queues = self._queues.get(turn.key, {})
            queue = queues.get(turn.cells)
            if queue is None:
                return
            first = queue[0] if queue else None
            with suppress(ValueError):
                queue.remove(turn)
            _remove_left(queue)
            if not queue:
                del queues[turn.cells]
                if not queues:
                    del self._queues[turn.key]
            elif queue[0] is not first:
                queue[0].wake()

    def _join(self, turn: AnyTurn) -> None:
        with self._lock:
            queue = self._queues.setdefault(turn.key, {}).setdefault(turn.cells, deque())
            turn.was_first = not queue
            queue.append(turn)

    def _is_first(self, turn: AnyTurn) -> bool:
        with self._lock:
            queue = self._queues.get(turn.key, {}).get(turn.cells)
            if queue is None:
                return True  # this process was forked while its caller waited
            _remove_left(queue)
            return queue[0] is turn


class WaitQueues(_Queues[Turn]):
    """Queues of waiting threads."""

    def __init__(self, pause: Callable[[float], object] = time.sleep) -> None:
        super().__init__()
        self._pause = pause

    def turn(self, key: str, cells: Cells) -> Turn:
        return Turn(key, cells)

    def wait_turn(self, turn: Turn, deadline_us: int | None, clock: Clock) -> bool:
        """Waits to be first in the queue, or until the deadline. Returns whether it is first. Call `leave` after it."""
        seconds = seconds_until(deadline_us, clock)
        ends = None if seconds is None else time.monotonic() + seconds
        self._join(turn)
        while not (turn.was_first or self._is_first(turn)):
            left = MAX_PAUSE_SECONDS if ends is None else min(ends - time.monotonic(), MAX_PAUSE_SECONDS)
            if left <= 0:
                return False
            turn.sleep(left)
        return True

    def pause(self, turn: Turn, seconds: float) -> None:
        """Pauses; less long if `turn` is woken. A `pause` other than `time.sleep` is not cut short."""
        if self._pause is time.sleep:
            turn.sleep(seconds)
        else:
            self._pause(seconds)


class AsyncWaitQueues(_Queues[AsyncTurn]):
    """Queues of waiting tasks of one event loop."""

    def __init__(self, pause: Callable[[float], Awaitable[object]] = asyncio.sleep) -> None:
        super().__init__()
        self._pause = pause

    def turn(self, key: str, cells: Cells) -> AsyncTurn:
        return AsyncTurn(key, cells)

    async def wait_turn(self, turn: AsyncTurn, deadline_us: int | None, clock: Clock) -> bool:
        """Waits to be first in the queue, or until the deadline. Returns whether it is first. Call `leave` after it."""
        self._join(turn)
        if turn.was_first or self._is_first(turn):
            return True
        # Not `wait_for`: until Python 3.12 it swallows a cancellation that comes with the turn.
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds_until(deadline_us, clock)):
                while not self._is_first(turn):
                    await turn.sleep()
        return self._is_first(turn)

    async def pause(self, turn: AsyncTurn, seconds: float) -> None:
        """Pauses; less long if `turn` is woken. A `pause` other than `asyncio.sleep` is not cut short."""
        if self._pause is asyncio.sleep:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await turn.sleep()
        else:
            await self._pause(seconds)


def seconds_until(deadline_us: int | None, clock: Clock) -> float | None:
    """Seconds left; `None` if there is no deadline."""
    return None if deadline_us is None else max(deadline_us - clock.monotonic_us(), 0) / 1_000_000


def deadline_of(timeout: float | None, now_us: int) -> int | None:
    """When a wait ends; `None` if it does not.

    Raises:
        InvalidInput: `timeout` is not a number of seconds of at least 0.
    """
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
        raise InvalidInput("timeout", f"{timeout!r} is not a number of seconds of at least 0")
    return None if timeout > FOREVER else now_us + round(timeout * 1_000_000)


def room_after_us(denial: Decision, chain: Sequence[Charge]) -> int:
    """How long there will surely be no room. A place may be given back at any time, long before it expires."""
    places = {charge.rule.plan for charge in chain if isinstance(charge.rule.spec, Concurrency)}
    if not places or denial.reason is Reason.FAIL_CLOSED:
        return denial.retry_after_us
    others = (state for state in denial.states if not (state.allowed or state.shadow or state.plan in places))
    return max((state.retry_after_us for state in others), default=0)


def pause_until(denial: Decision, chain: Sequence[Charge], deadline_us: int | None, clock: Clock) -> float | None:
    """Seconds until the next attempt; `None` if there will be no room before the deadline, or ever."""
    if denial.reason is Reason.EXCEEDS_CAPACITY:
        return None
    now_us, room_us = clock.monotonic_us(), room_after_us(denial, chain)
    if deadline_us is not None and now_us + max(room_us, 1) > deadline_us:
        return None
    if room_us:
        return min(room_us / 1_000_000, MAX_PAUSE_SECONDS)
    left = PLACE_PAUSE_SECONDS if deadline_us is None else (deadline_us - now_us) / 1_000_000
    return min(denial.retry_after, PLACE_PAUSE_SECONDS, left)


def timeout_denial(decision: Decision) -> Decision:
    """The denial of a caller that timed out in the queue: others were first, even if there is room by now."""
    return decision.but(allowed=False, reason=Reason.DENIED)


def _remove_left(queue: deque[AnyTurn]) -> None:
    while queue and queue[0].left:
        queue.popleft()
