"""`FirstOf`: several downstreams that can do the same, in order of preference."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from paceline.downstream.call import Call, CallBlock, Taken
from paceline.downstream.client_calls import DEFAULT_TIMEOUT
from paceline.downstream.downstream import Downstream
from paceline.errors import ConfigurationError
from paceline.options import check_seconds

PATIENCE_SECONDS = 0.25


class FirstOf:
    """Calls go to the first downstream that lets them leave; to a later one only if the earlier ones did not within
    `patience` seconds each: their rates are used up, they are paused, or their breakers are open.

        mail = FirstOf(relay, backup)
        async with mail.call() as call:
            await providers[call.downstream.name].send(message)

    A call that has left is never repeated by another one.

    Raises:
        ConfigurationError: there are fewer than two, or the patience can't be used.
    """

    def __init__(self, *downstreams: Downstream, patience: float = PATIENCE_SECONDS) -> None:
        if len(downstreams) < 2:
            raise ConfigurationError("downstreams", "give at least two")
        check_seconds("patience", patience)
        self._downstreams = downstreams
        self._patience = patience

    @property
    def name(self) -> str:
        """Their names."""
        return ", ".join(downstream.name for downstream in self._downstreams)

    @property
    def call_timeout(self) -> float:
        """The longest that a call may take."""
        return max(downstream.call_timeout for downstream in self._downstreams)

    @property
    def is_open(self) -> bool:
        """Whether a call may leave at once, to the most preferred one."""
        return self._downstreams[0].is_open

    def call(self, *, timeout: float | None = DEFAULT_TIMEOUT) -> FirstCall:
        """One call, made inside an `async with` block. Raises what `Downstream.call` raises, when it is entered: what
        the most preferred one raised, if none let it leave within `timeout` seconds."""
        return FirstCall([downstream.call(timeout=timeout) for downstream in self._downstreams], self._patience)

    async def close(self) -> None:
        """Closes all of them."""
        for downstream in self._downstreams:
            await downstream.close()


class FirstCall(CallBlock):
    """A call to one of several downstreams: a `Call`, once it is entered."""

    def __init__(self, calls: list[Call], patience: float) -> None:
        self._calls = calls
        self._patience = patience
        self._chosen = calls[0]

    @property
    def downstream(self) -> Downstream:
        """The one that it goes to."""
        return self._chosen.downstream

    @property
    def taken(self) -> Taken:
        """What the call has taken."""
        return self._chosen.taken

    async def enter(self) -> None:
        """Waits for the first that lets it leave."""
        left, entering = list(self._calls), dict[asyncio.Task[None], Call]()
        failures: list[BaseException] = []
        entered: Call | None = None
        try:
            while entered is None:
                if left:
                    call = left.pop(0)
                    entering[asyncio.create_task(call.enter())] = call
                elif not entering:
                    raise failures[0]
                timeout = self._patience if left else None
                done, _ = await asyncio.wait(entering, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in entering if task in done]:
                    if (failure := task.exception()) is not None:
                        failures.append(failure)
                        del entering[task]
                    elif entered is None:
                        entered = entering.pop(task)
        finally:
            await _leave_all(entering)
        self._chosen = entered

    async def confirm(self) -> None:
        """Returns when the call may leave; it must leave at once."""
        await self._chosen.confirm()

    def left(self) -> None:
        """The request was sent."""
        self._chosen.left()

    def answered(self) -> None:
        """The other side has answered."""
        self._chosen.answered()

    def refused(self) -> None:
        """The other side refused the call for its rate."""
        self._chosen.refused()

    def settle(self, **costs: int) -> None:
        """Corrects what the limits were charged, when the block ends."""
        self._chosen.settle(**costs)

    async def responded(self, status: int, header: Callable[[str], str | None]) -> None:
        """The head of the response is there."""
        await self._chosen.responded(status, header)

    async def leave(self, error: BaseException | None = None) -> None:
        """Settles it, by how it ended."""
        await self._chosen.leave(error)


async def _leave_all(entering: dict[asyncio.Task[None], Call]) -> None:
    """Gives back what the others have, or are about to get."""
    for task in entering:
        task.cancel()
    if entering:
        await asyncio.wait(entering)
    for task, call in entering.items():
        if not task.cancelled() and task.exception() is None:
            await call.leave()
