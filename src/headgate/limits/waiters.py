"""Waiting fairly: who waits for the same thing stands in one line, and only the first in line asks.

However many wait, the store hears of one, and whoever was served wakes exactly one other.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

from headgate.clock import Clock
from headgate.errors import InvalidInput
from headgate.limits.model import Decision, Reason

LONGEST_NAP = 5.0
"""Seconds until the first in line looks again at the latest: a refund, a reset or a raised plan makes room early."""
FOREVER = 1e9
"""Seconds beyond which a timeout is none; what threads can wait for ends not far above."""


class Lines:
    """Lines of threads, by what they wait for; a line that is empty is gone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: dict[Hashable, deque[threading.Event]] = {}

    @contextmanager
    def stand(self, name: Hashable, deadline_us: int | None, clock: Clock) -> Iterator[bool]:
        """Stands in line until first, or until the deadline; says whether it is first. Leaving lets the next one on."""
        turn = threading.Event()
        with self._lock:
            line = self._lines.setdefault(name, deque())
            line.append(turn)
            if line[0] is turn:
                turn.set()
        try:
            yield turn.wait(seconds_until(deadline_us, clock))
        finally:
            with self._lock:
                line.remove(turn)
                if line:
                    line[0].set()
                else:
                    del self._lines[name]


class AsyncLines:
    """Lines of tasks of one event loop."""

    def __init__(self) -> None:
        self._lines: dict[Hashable, deque[asyncio.Event]] = {}

    @asynccontextmanager
    async def stand(self, name: Hashable, deadline_us: int | None, clock: Clock) -> AsyncIterator[bool]:
        """Stands in line until first, or until the deadline; says whether it is first. Leaving lets the next one on."""
        turn = asyncio.Event()
        line = self._lines.setdefault(name, deque())
        line.append(turn)
        if line[0] is turn:
            turn.set()
        try:
            if not turn.is_set():
                # Not `wait_for`: until Python 3.12 it swallows a cancellation that comes with the turn.
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds_until(deadline_us, clock)):
                        await turn.wait()
            yield turn.is_set()
        finally:
            line.remove(turn)
            if line:
                line[0].set()
            else:
                del self._lines[name]


def seconds_until(deadline_us: int | None, clock: Clock) -> float | None:
    """Seconds left; `None` if there is no deadline."""
    return None if deadline_us is None else max(deadline_us - clock.monotonic_us(), 0) / 1_000_000


def deadline_of(timeout: float | None, now_us: int) -> int | None:
    """The instant a wait ends; `None` if it does not."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
        raise InvalidInput("timeout", f"{timeout!r} is not a number of seconds of at least 0")
    return None if timeout > FOREVER else now_us + round(timeout * 1_000_000)


def out_of_reach(denial: Decision, deadline_us: int | None, clock: Clock) -> bool:
    """Whether there will be no room before the deadline."""
    return deadline_us is not None and clock.monotonic_us() + denial.retry_after_us > deadline_us


def out_of_time(decision: Decision) -> Decision:
    """What to tell somebody whose time ran out in line: others were first, even if there is room by now."""
    return decision.but(allowed=False, reason=Reason.DENIED)
