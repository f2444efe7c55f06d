"""An execution's call of its task's downstream: waited for before the body begins, and over when that has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from paceline.dispatch.model import Postponed
from paceline.downstream.call import Call
from paceline.downstream.downstream import Downstream

R = TypeVar("R")

LONGEST_CONFIRM = 1.0
"""Seconds. A permit that was too late, as after a freeze, is exchanged; if that takes longer, the item goes back: the
kill switch is not watched meanwhile."""


class DownstreamTurn:
    """The call of one execution, from its wait to its end. What the body knows of it, it says by `answered`, `refused`
    and `settle`, from a thread too."""

    def __init__(self, downstream: Downstream, *, at_pace: bool = True) -> None:
        self._downstream = downstream
        self._loop = asyncio.get_running_loop()
        self._at_pace = at_pace
        self._call = downstream.call(timeout=None)
        self._is_entered = False

    def answered(self) -> None:
        """The other side has answered: whatever the task raises from now on, the call has arrived."""
        if self._is_entered:
            self._loop.call_soon_threadsafe(self._call.answered)

    def refused(self) -> None:
        """The other side refused the call for its rate: nothing of the limits was spent."""
        self._call.refused()

    def settle(self, **costs: int) -> None:
        """Corrects what the limits were charged, when the task ends. A limit that is not named keeps its cost.

        Raises:
            InvalidInput: there is no such limit, or a cost that can't be one.
        """
        self._call.settle(**costs)

    async def enter(self) -> None:
        """Waits until the call may leave, as long as that takes. A call that was entered before is given back."""
        if not self._at_pace:
            return
        await self.leave()
        call = self._downstream.call(timeout=None)
        await call.enter()
        self._call, self._is_entered = call, True

    async def around(self, body: Callable[[], Awaitable[R]]) -> R:
        """Runs the body, which makes the call at once.

        Raises:
            Postponed: the permit was too late, and there was no other one: nothing ran.
        """
        if not self._at_pace:
            return await body()
        try:
            await self._confirm()
            result = await body()
        except BaseException as error:
            await self.leave(error)
            raise
        await self.leave()
        return result

    async def _confirm(self) -> None:
        call = self._entered()
        try:
            async with asyncio.timeout(LONGEST_CONFIRM):
                await call.confirm()
        except TimeoutError:
            raise Postponed(f"its call of {self._downstream.name!r} was too late") from None
        call.left()

    def _entered(self) -> Call:
        if not self._is_entered:
            raise RuntimeError("the call has not been entered")
        return self._call

    async def leave(self, error: BaseException | None = None) -> None:
        """Ends the call, if it was entered: one whose body never began is given back."""
        if self._is_entered:
            self._is_entered = False
            await self._call.leave(error)


def downstream_of(execute: object) -> Downstream | None:
    """The downstream that each execution calls; None if there is none."""
    downstream = getattr(execute, "downstream", None)
    return downstream if isinstance(downstream, Downstream) else None


def turn_of(execute: object, *, at_pace: bool = True) -> DownstreamTurn | None:
    """The turn of an execution; None if its work has no downstream."""
    downstream = downstream_of(execute)
    return None if downstream is None else DownstreamTurn(downstream, at_pace=at_pace)
