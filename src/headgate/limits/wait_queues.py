"""Fair waiting: callers that wait for the same key and plans form one queue, and only the first calls the store.

So the store gets the calls of a single waiter. A waiter that was served wakes exactly one other.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Generic, TypeVar

from headgate.clock import Clock
from headgate.errors import InvalidInput
from headgate.limits.model import Decision, Reason

MAX_PAUSE_SECONDS = 5.0
"""The longest pause between two attempts: a refund, a reset or a raised plan makes room early."""
FOREVER = 1e9
"""A timeout of more seconds means no timeout: threads can't wait much longer."""

Event = TypeVar("Event", threading.Event, asyncio.Event)


class _Queues(Generic[Event]):
    """Queues of events, by what is waited for. The first of a queue is set. An empty queue is removed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: dict[Hashable, deque[Event]] = {}

    @contextmanager
    def _queued(self, name: Hashable, turn: Event) -> Iterator[None]:
        with self._lock:
            queue = self._queues.setdefault(name, deque())
            queue.append(turn)
            if queue[0] is turn:
                turn.set()
        try:
            yield
        finally:
            with self._lock:
                queue.remove(turn)
                if queue:
                    queue[0].set()
                else:
                    del self._queues[name]


class WaitQueues(_Queues[threading.Event]):
    """Queues of waiting threads."""

    @contextmanager
    def wait_turn(self, name: Hashable, deadline_us: int | None, clock: Clock) -> Iterator[bool]:
        """Waits to be first in the queue, or until the deadline. Yields whether it is first. On exit the next is."""
        turn = threading.Event()
        with self._queued(name, turn):
            yield turn.wait(seconds_until(deadline_us, clock))


class AsyncWaitQueues(_Queues[asyncio.Event]):
    """Queues of waiting tasks of one event loop."""

    @asynccontextmanager
    async def wait_turn(self, name: Hashable, deadline_us: int | None, clock: Clock) -> AsyncIterator[bool]:
        """Waits to be first in the queue, or until the deadline. Yields whether it is first. On exit the next is."""
        turn = asyncio.Event()
        with self._queued(name, turn):
            if not turn.is_set():
                # Not `wait_for`: until Python 3.12 it swallows a cancellation that comes with the turn.
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds_until(deadline_us, clock)):
                        await turn.wait()
            yield turn.is_set()


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


def beyond_deadline(denial: Decision, deadline_us: int | None, clock: Clock) -> bool:
    """Whether there will be no room before the deadline."""
    return deadline_us is not None and clock.monotonic_us() + denial.retry_after_us > deadline_us


def timeout_denial(decision: Decision) -> Decision:
    """The denial of a caller that timed out in the queue: others were first, even if there is room by now."""
    return decision.but(allowed=False, reason=Reason.DENIED)
