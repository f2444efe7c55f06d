"""The circuit breaker of calls to the downstream: one state for all processes, kept by a `BreakerStore`.

It opens at once when the connection is misconfigured, and after some consecutive failures (`BreakerPolicy`). While
open, it lets one probe through, from one process, with exponential backoff. A successful probe closes it. Calls wait
meanwhile; in the mode `pause` the kill switch is turned off as well, and an operator decides when to continue.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Literal

from paceline.circuit_breaker import BreakerPolicy
from paceline.downstream.ports import BreakerStatus, BreakerStore, DownstreamObserver, NullDownstreamObserver
from paceline.errors import StoreError

log = logging.getLogger(__name__)

BreakerMode = Literal["wait", "pause", "off"]

FRESH_SECONDS = 0.5
"""How old the shared state may be when a call is made."""


def next_pause(policy: BreakerPolicy, last: float | None) -> float:
    """Seconds until the next probe, given the pause before the last one."""
    return policy.first_pause if last is None else min(2 * last, policy.longest_pause)


class DownstreamBreaker:
    """Call `admit` before each call, and `record_success` or `record_failure` after it."""

    def __init__(
        self,
        store: BreakerStore,
        policy: BreakerPolicy | None = None,
        *,
        call_timeout: float,
        throw_switch: Callable[[str], Awaitable[object]] | None = None,
        observer: DownstreamObserver | None = None,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._policy = policy or BreakerPolicy()
        self._call_timeout = call_timeout
        self._throw_switch = throw_switch
        self._observer = observer or NullDownstreamObserver()
        self._pause = pause
        self._monotonic = monotonic
        self._failures = 0
        self._status: BreakerStatus | None = None
        self._read_at = float("-inf")
        self._reading = asyncio.Lock()

    async def admit(self) -> bool:
        """Returns when a call may be made: True if it is the probe.

        Raises:
            StoreError: The state can't be read.
        """
        while (status := await self.status()) is not None:
            if status.probe_in <= 0 and await self._store.claim_probe(self._call_timeout):
                return True
            await self._pause(min(max(status.probe_in, 0.05), FRESH_SECONDS))
        return False

    async def is_open(self) -> bool:
        """Whether calls have to wait.

        Raises:
            StoreError: The state can't be read.
        """
        return await self.status() is not None

    @property
    def was_closed(self) -> bool:
        """Whether the last look found it closed."""
        return self._status is None

    async def status(self) -> BreakerStatus | None:
        """The shared state, at most `FRESH_SECONDS` old; None if closed."""
        async with self._reading:
            requested_at = self._monotonic()
            if requested_at - self._read_at >= FRESH_SECONDS or self._status is not None:
                self._status, self._read_at = await self._store.read(), requested_at
                self._observer.breaker_moved(self._status is not None)
        return self._status

    async def record_success(self, probe: bool) -> None:
        """Records a response, whatever the verdict. Only a probe closes the breaker: other calls may have begun before
        it opened."""
        self._failures = 0
        if probe:
            await self._store.close()
            self._status = None
            self._observer.breaker_moved(False)
            log.warning("the downstream answers again; the breaker is closed")

    async def record_failure(self, reason: str, probe: bool, *, at_once: bool = False) -> None:
        """Records a failed call; with `at_once`, the breaker opens immediately."""
        self._failures += 1
        if not (probe or at_once or self._failures >= self._policy.failures):
            return
        status = await self._store.read()
        if status is not None and not probe:
            return
        pause = next_pause(self._policy, None if status is None else status.pause)
        self._failures = 0
        await self._store.open(reason, pause)
        self._read_at = float("-inf")
        self._observer.breaker_moved(True)
        log.error("the downstream's breaker is open, next probe in %g s: %s", pause, reason)
        if self._throw_switch is not None:
            try:
                await self._throw_switch(reason)
            except StoreError as error:
                log.error("the kill switch could not be thrown: %s", error)
