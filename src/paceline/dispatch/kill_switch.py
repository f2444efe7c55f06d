"""The kill switch, watched while an execution waits."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

from paceline.clock import uptime
from paceline.dispatch.model import Postponed
from paceline.dispatch.ports import OutcomeSink
from paceline.errors import StoreError, StoreUnavailable

T = TypeVar("T")

SWITCH_SECONDS = 0.2
"""How often the kill switch is checked during a wait."""
FRESH_SECONDS = 0.5
"""How old the switch's state may be when a call leaves."""
ANSWER_SECONDS = 5.0
OFF = "the kill switch is off"


class KillSwitch:
    """The kill switch of one item type, checked by executions that wait after they began.

        await switch.watch(gate.acquire())   # ends as soon as the switch is off
        await switch.check()                 # right before the call leaves

    A call that `check` admits leaves within `FRESH_SECONDS` of a time at which the switch was on. While the store can't
    be read, no call is admitted; `unread` is called each time.
    """

    def __init__(
        self,
        read: Callable[[], Awaitable[bool]],
        *,
        unread: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = uptime,
    ) -> None:
        self._read = read
        self._unread = unread
        self._clock = clock
        self._on_at = float("-inf")
        self._reading: asyncio.Task[bool] | None = None
        self._waits: dict[asyncio.Timeout, None] = {}
        """In the order in which they came."""
        self._watching: asyncio.Task[None] | None = None

    @property
    def is_fresh(self) -> bool:
        """Whether the switch was on a moment ago: a call may leave."""
        return self._clock() - self._on_at < FRESH_SECONDS

    async def check(self) -> None:
        """Returns if the switch is on.

        Raises:
            Postponed: It is off.
            StoreError: It can't be read.
        """
        # Repeated if the read was so slow that its result is stale.
        while not self.is_fresh:
            try:
                if not await self._is_on():
                    raise Postponed(OFF)
            except StoreError:
                self._unread()
                raise
            if not self.is_fresh:
                self._unread()

    async def watch(self, waiting: Awaitable[T]) -> T:
        """Awaits `waiting`, and ends it as soon as the switch is off.

        Raises:
            Postponed: It is off.
        """
        try:
            async with asyncio.timeout(None) as timeout:
                self._waits[timeout] = None
                if self._watching is None:
                    self._watching = asyncio.create_task(self._watch())
                # Awaited here: a separate task would end some loop iterations before the call begins.
                return await waiting
        except TimeoutError:
            if not timeout.expired():
                raise
            raise Postponed(OFF) from None
        finally:
            self._waits.pop(timeout, None)

    async def _watch(self) -> None:
        try:
            while self._waits:
                await asyncio.sleep(SWITCH_SECONDS)
                # A read failure ends no wait: `check` will stop the call.
                with contextlib.suppress(Exception):
                    if not await self._is_on():
                        for timeout in [*self._waits]:
                            _end(timeout)
                        return
        finally:
            self._watching = None

    async def _is_on(self) -> bool:
        if self._reading is None:
            self._reading = asyncio.create_task(self._read_once())
        return await asyncio.shield(self._reading)

    async def _read_once(self) -> bool:
        requested_at = self._clock()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                is_on = await self._read()
        except TimeoutError:
            raise StoreUnavailable("the kill switch could not be read in time") from None
        finally:
            self._reading = None
        self._on_at = requested_at if is_on else float("-inf")
        return is_on


async def admitted(
    admission: Awaitable[object], sink: OutcomeSink, item_type: str, every: float = SWITCH_SECONDS
) -> bool:
    """Waits for the admission of one call; False as soon as the kill switch is off, `StoreError` if its
    state is unknown. The switch is watched meanwhile, not read afterwards: an admitted call must leave at once, or a
    slow read would let calls bunch. If the switch could not be read lately, the admission is lost."""
    switch = asyncio.ensure_future(_switched_off(sink, item_type, every))
    try:
        async with asyncio.timeout(None) as timeout:
            switch.add_done_callback(lambda _: _end(timeout))
            # Awaited here, for the same reason as in `KillSwitch.watch`.
            await admission
        if not sink.was_on(item_type):
            raise StoreUnavailable("the kill switch could not be read in time")
        return True
    except TimeoutError:
        if not timeout.expired():
            raise
        switch.result()
        return False
    finally:
        switch.cancel()


async def _switched_off(sink: OutcomeSink, item_type: str, every: float) -> None:
    """Returns when the kill switch is off."""
    while True:
        await asyncio.sleep(every)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                if not await sink.enabled(item_type):
                    return
        except TimeoutError:
            raise StoreUnavailable("the kill switch could not be read in time") from None


def _end(timeout: asyncio.Timeout) -> None:
    with contextlib.suppress(RuntimeError):  # it is over already
        timeout.reschedule(asyncio.get_running_loop().time())
