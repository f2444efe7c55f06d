"""The hard limit at the call: no sliding window may bring more calls to the downstream than its rate says.

There are as many permits as the limit (`permits`), shared by all processes through Redis or the database. Where a call
is counted is a choice:

- `answer`: when it arrives at the downstream, whatever the network does. That may be long after it left, so a permit is
  free again one window after its call was *answered*: the next call on it arrives more than a window after the last.
  The price is some of the downstream's capacity: with a latency of l seconds and a window of one second it gets
  `rate / (1 + l)`.
- `departure`: when it leaves. A permit is free again one window after its call *left*, so the rate is full at any
  latency; calls may bunch on their way by as much as the network's delay varies.

In both, a permit is held for the longest possible call, unless its process frees it earlier. So a process may freeze at
any moment, even between the last check and the first byte.

A caller gets its permit shortly before its call may leave. It prepares the request in that time, and waits for the
instant right before the first byte (`Permit.confirm`). A handshake, a slow store or a busy machine may delay a call. If
that takes longer than the permit allows, the permit is exchanged.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from math import ceil
from secrets import token_hex
from typing import Literal, NamedTuple

from paceline.downstream.permits import Grant, PermitPolicy
from paceline.downstream.ports import Permit, PermitStore
from paceline.downstream.store_clock import StoreClock
from paceline.downstream.wait_line import WaitLine
from paceline.errors import StoreError, StoreUnavailable

log = logging.getLogger(__name__)

LimitAt = Literal["answer", "departure"]
Note = Callable[[StoreError | None], None]

SECOND = 1.0
LATE = 3.0
"""Seconds by which a call may leave late, and so the longest latency of a store with which calls can be made. The hold
is that much longer, until the call has left or is answered."""
PREPARATION = 0.02
"""Seconds before its call may leave, a caller gets its permit: to build the request, and to open a connection."""
ASKING = 8
"""Concurrent permit requests per process. They share a transaction: one by one, a slow store would grant fewer permits
than there are."""
OUTAGE_PAUSE = 0.5
MOST_PERMITS = 10_000
"""Of one rate: its store reads and writes them as one value."""
SHORTEST_PAUSE = 0.001


def spread(limit: int, span: timedelta) -> tuple[int, float]:
    """The permits of a rate, and their window in seconds: those of the rate, or of a part of it that has no more than a
    store can keep. In all windows of the parts together, no more than the limit leave."""
    parts = -(-limit // MOST_PERMITS)
    return limit // parts, span.total_seconds() / parts


def permit_policy(number: int, burst: int, window: float = SECOND) -> PermitPolicy:
    """As many permits as the limit, evenly spaced over its window: each is held at least as long."""
    return PermitPolicy(number, round(window * 1e6 / number), min(burst, number))


def paced_policy(per_second: float, burst: int, window: float = SECOND) -> PermitPolicy:
    """The same for a rate that is no whole number."""
    number = max(1, ceil(per_second * window))
    return PermitPolicy(number, ceil(1e6 / per_second), min(burst, number))


def longest_hold(call_timeout: float, window: float = SECOND) -> float:
    """How long a call may count after the time of its permit: leaving late, the longest call, and one window."""
    return LATE + call_timeout + window


class _TimedPermit(NamedTuple):
    """A permit, and when its call may leave, by this process's clock."""

    holder: str
    leave_at: float
    """Not before …"""
    late_at: float
    """… and not after."""


class PermitRateGate:
    """A `RateGate` over permits that all processes share. Callers of one process get them in order."""

    def __init__(
        self,
        permits: PermitStore,
        *,
        call_timeout: float,
        limit_at: LimitAt = "answer",
        window: float = SECOND,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._permits = permits
        self._at_answer = limit_at == "answer"
        self._hold = longest_hold(call_timeout, window)
        self._window_us = round(window * 1e6)
        self._line = WaitLine(ASKING, pause)
        self._clock = StoreClock()
        self._pause = pause
        self._monotonic = monotonic
        self._freeing: set[asyncio.Task[None]] = set()

    async def acquire(self, note: Note | None = None) -> Permit:
        """As the port says. `note` hears of each error of the store, and None when it answers."""
        return _SharedPermit(self, await self.take(token_hex(6), note))

    def pace(self, policy: PermitPolicy) -> None:
        """Later permits are taken by another policy."""
        self._permits.policy = policy

    async def close(self) -> None:
        """Returns when the permits of all answered calls are freed."""
        await asyncio.gather(*self._freeing)

    async def take(self, holder: str, note: Note | None = None) -> _TimedPermit:
        """A permit, shortly before its call may leave."""
        return await self._taken(holder, note or _ignore, self._line)

    async def exchange(self, permit: _TimedPermit) -> _TimedPermit:
        """Another one for a call that was too late for its own: it has waited in the line already."""
        return await self._taken(permit.holder, _ignore, WaitLine(1, self._pause))

    async def _taken(self, holder: str, note: Note, line: WaitLine) -> _TimedPermit:
        grant = await self._granted(holder, note, line)
        leave_us = grant.now_us + grant.delay_us
        permit = _TimedPermit(holder, self._clock.latest(leave_us), self._clock.earliest(leave_us) + LATE)
        try:
            await self._until(permit.leave_at - PREPARATION)
        except BaseException:
            self.give_back(holder)
            raise
        return permit

    async def in_time(self, permit: _TimedPermit) -> bool:
        """Returns when the call may leave; False if it is too late for that."""
        await self._until(permit.leave_at)
        return self._monotonic() <= permit.late_at

    async def _until(self, moment: float) -> None:
        delay = moment - self._monotonic()
        if delay > 0:
            await self._pause(delay)

    async def _granted(self, holder: str, note: Note, line: WaitLine) -> Grant:
        number = line.join()
        await line.turn(number)
        while True:
            try:
                grant, wait = await self._asked(holder, note)
            except BaseException:
                line.leave()
                raise
            if grant is not None:
                line.leave()
                return grant
            await line.again(number, wait)

    async def _asked(self, holder: str, note: Note) -> tuple[Grant | None, float]:
        """A permit, or how long there is none."""
        requested_at = self._monotonic()
        try:
            grant = await self._permits.take(holder, self._hold)
        except StoreUnavailable as error:
            # Fail closed: too many calls are worse than late ones.
            log.warning("calls to the downstream wait: %s", error)
            note(error)
            return None, OUTAGE_PAUSE
        except asyncio.CancelledError:
            self.give_back(holder)
            raise
        self._clock.record(grant.now_us, requested_at=requested_at, answered_at=self._monotonic())
        note(None)
        return (None, max(grant.wait_us / 1e6, SHORTEST_PAUSE)) if grant.wait_us else (grant, 0.0)

    def left(self, holder: str) -> None:
        if not self._at_answer:
            self._free_after_window(holder)

    def answered(self, holder: str) -> None:
        if self._at_answer:
            self._free_after_window(holder)

    def give_back(self, holder: str) -> None:
        self._free_at(holder, 0)
        self._line.open()

    def _free_after_window(self, holder: str) -> None:
        self._free_at(holder, self._clock.store_us(self._monotonic()) + self._window_us)

    def _free_at(self, holder: str, at_us: int) -> None:
        task = asyncio.get_running_loop().create_task(self._free(holder, at_us))
        self._freeing.add(task)
        task.add_done_callback(self._freeing.discard)

    async def _free(self, holder: str, at_us: int) -> None:
        with suppress(StoreError):  # it is free after its hold, then
            await self._permits.free(holder, at_us)


def _ignore(_: StoreError | None) -> None: ...


class _SharedPermit:
    """The `Permit` of a `PermitRateGate`."""

    def __init__(self, gate: PermitRateGate, permit: _TimedPermit) -> None:
        self._gate = gate
        self._permit = permit

    async def confirm(self) -> None:
        while not await self._gate.in_time(self._permit):
            self._permit = await self._gate.exchange(self._permit)

    def left(self) -> None:
        self._gate.left(self._permit.holder)

    def release(self) -> None:
        self._gate.answered(self._permit.holder)

    def give_back(self) -> None:
        self._gate.give_back(self._permit.holder)
