"""What an execution waits for last: its call of its task's downstream, and of those that limit its item type's starts.
They are waited for before the body begins, and over when that has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import TypeAlias, TypeVar

from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.model import Postponed
from paceline.dispatch.start_limits import StartLimits
from paceline.downstream.call import Call
from paceline.downstream.downstream import Downstream
from paceline.downstream.first_of import FirstCall, FirstOf
from paceline.errors import PacelineError, RateLimitExceeded, StoreError

R = TypeVar("R")

Callee: TypeAlias = Downstream | FirstOf
Limits = Callable[[], Awaitable[Sequence[Downstream]]]

LONGEST_CONFIRM = 1.0
"""Seconds. A permit that was too late, as after a freeze, is exchanged; if that takes longer, the item goes back: the
kill switch is not watched meanwhile."""
MOMENT = 1.0
"""Seconds for which what has its turn waits for the others. A permit is good for three."""
FOLLOW_SECONDS = 0.25
"""How often the limits are looked at during a wait: a changed rate holds within a second."""
START_SECONDS = 0.01
"""Within which a body begins, on a thread too. What counts departures counts from then on."""


async def _unlimited() -> Sequence[Downstream]:
    return ()


class DownstreamTurn:
    """The calls of one execution, from their wait to their end. What the body knows of the call of its task's own
    downstream, it says by `answered`, `refused` and `settle`, from a thread too."""

    def __init__(
        self,
        downstream: Callee | None,
        limits: Limits = _unlimited,
        *,
        at_pace: bool = True,
        longest_confirm: float = LONGEST_CONFIRM,
        moment: float = MOMENT,
    ) -> None:
        self._downstream = downstream
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._at_pace = at_pace
        self._longest_confirm = longest_confirm
        self._moment = moment
        self._calls: dict[Callee, Call | FirstCall] = {}
        self._call: Call | FirstCall | None = None if downstream is None else downstream.call(timeout=None)
        self._is_entered = False
        self._beginning: asyncio.TimerHandle | None = None

    @property
    def has_downstream(self) -> bool:
        """Whether its task has a downstream."""
        return self._downstream is not None

    @property
    def downstream(self) -> Downstream:
        """The one that the task's own call goes to."""
        return self._own().downstream

    def answered(self) -> None:
        """The other side has answered: whatever the task raises from now on, the call has arrived."""
        if self._is_entered:
            self._loop.call_soon_threadsafe(self._own().answered)

    async def responded(self, status: int, header: Callable[[str], str | None]) -> None:
        """The other side has answered, as a client of HTTP sees it: all processes obey the pause that it asks for, and
        the breaker counts a 5xx without one as a failure."""
        if self._is_entered:
            await self._own().responded(status, header)

    def refused(self) -> None:
        """The other side refused the call for its rate: nothing of the limits was spent."""
        self._own().refused()

    def settle(self, **costs: int) -> None:
        """Corrects what the limits were charged, when the task ends. A limit that is not named keeps its cost.

        Raises:
            InvalidInput: there is no such limit, or a cost that can't be one.
        """
        self._own().settle(**costs)

    def _own(self) -> Call | FirstCall:
        if self._call is None:
            raise RuntimeError("the task has no downstream")
        return self._call

    # -- the wait ------------------------------------------------------------------------------------------------

    async def enter(self) -> None:
        """Waits until all calls may leave at once, as long as that takes. What was entered before is given back.

        Raises:
            NotFound: the item type's admission plan does not exist.
            ConfigurationError: it is no limit of a rate.
            StoreError: the limits can't be read.
        """
        if not self._at_pace:
            return
        await self.leave()
        while not self._is_entered:
            limits = await self._limits()
            await self._enter_under(limits)
        if self._downstream is not None:
            self._call = self._calls[self._downstream]

    async def _enter_under(self, limits: Sequence[Downstream]) -> None:
        """Enters the calls. Returns before that if other limits hold."""
        own = () if self._downstream is None else (self._downstream,)
        following: list[asyncio.Task[None]] = []
        waiting = asyncio.timeout(None)

        async def follow() -> None:
            await self._changed(limits)
            waiting.reschedule(self._loop.time())

        # Most calls are entered at once: only a wait follows the limits.
        looking = self._loop.call_later(FOLLOW_SECONDS, lambda: following.append(self._loop.create_task(follow())))
        try:
            async with waiting:
                try:
                    await self._enter_all([*limits, *own])
                finally:
                    looking.cancel()
                    for task in following:
                        task.cancel()
        except TimeoutError:
            if not waiting.expired():
                raise
        finally:
            await asyncio.gather(*following, return_exceptions=True)

    async def _changed(self, limits: Sequence[Downstream]) -> None:
        """Returns when other limits hold, or can't be used: `enter` says what is wrong with them."""
        while True:
            try:
                if [*await self._limits()] != [*limits]:
                    return
            except StoreError:
                pass  # what held before still does
            except PacelineError:
                return
            await asyncio.sleep(FOLLOW_SECONDS)

    async def _enter_all(self, downstreams: Sequence[Callee]) -> None:
        """Enters a call of each. None ages while another is waited for: the one that takes longest is waited for with
        nothing in hand."""
        order = [*downstreams]
        while True:
            calls: dict[Callee, Call | FirstCall] = {}
            try:
                for downstream in order:
                    call: Call | FirstCall = downstream.call(timeout=self._moment if calls else None)
                    await call.enter()
                    calls[downstream] = call
            except BaseException as error:
                for call in calls.values():
                    await call.leave()
                if not calls or not isinstance(error, RateLimitExceeded | StoreError):
                    raise
                slowest = order[len(calls)]
                order = [slowest, *(each for each in order if each is not slowest)]
            else:
                self._calls, self._is_entered = calls, True
                break
        try:
            # A permit comes shortly before its time. What is recorded as the beginning must not be earlier than that.
            await self._all_in_time()
        except BaseException:
            await self.leave()
            raise

    # -- the body ------------------------------------------------------------------------------------------------

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
        if not self._is_entered:
            raise RuntimeError("the call has not been entered")
        try:
            async with asyncio.timeout(self._longest_confirm):
                await self._all_in_time()
        except TimeoutError:
            names = " and ".join(repr(each.name) for each in self._calls)
            raise Postponed(f"its call of {names} was too late") from None
        for call in self._calls.values():
            await call.confirm()  # which returns at once
        self._beginning = self._loop.call_later(START_SECONDS, self._begun)

    async def _all_in_time(self) -> None:
        """Returns when every call may leave now. One that had to be exchanged took time."""
        while True:
            asked_at = monotonic()
            for call in self._calls.values():
                if call.taken.permit is not None:
                    await call.taken.permit.confirm()
            if len(self._calls) < 2 or monotonic() - asked_at < START_SECONDS:
                return

    def _begun(self) -> None:
        """The body has begun: what counts its departure counts from now on."""
        if self._beginning is not None:
            self._beginning.cancel()
            self._beginning = None
            for call in self._calls.values():
                call.left()

    async def leave(self, error: BaseException | None = None) -> None:
        """Ends the calls, if they were entered: one whose body never began is given back. `error` leaves the outcome
        of the task's own call unknown."""
        self._begun()
        calls, self._calls, self._is_entered = self._calls, {}, False
        for downstream, call in calls.items():
            await call.leave(error if downstream is self._downstream else None)


async def at_turn(turn: DownstreamTurn | None, execute: object, body: Callable[[], Awaitable[R]]) -> R:
    """Runs the body, a call of `execute`, at its turn. A task takes its turn itself, right before its function."""
    if turn is None or getattr(execute, "takes_turn", False):
        return await body()
    return await turn.around(body)


def downstream_of(execute: object) -> Callee | None:
    """The downstream that each execution calls; None if there is none."""
    downstream = getattr(execute, "downstream", None)
    return downstream if isinstance(downstream, Downstream | FirstOf) else None


def needs_turn(execute: object, config: DispatchConfig, limits: StartLimits | None) -> bool:
    """Whether executions wait for a turn."""
    is_limited = limits is not None and (config.rate is not None or config.admission_plan is not None)
    return is_limited or downstream_of(execute) is not None


def is_open(execute: object, config: DispatchConfig) -> bool:
    """Whether nothing but a downstream limits executions, and that lets calls leave at once."""
    downstream = downstream_of(execute)
    is_limited = config.rate is not None or config.admission_plan is not None
    return downstream is not None and downstream.is_open and not is_limited


def turn_of(
    execute: object,
    config: DispatchConfig,
    limits: StartLimits | None = None,
    settings: Callable[[str], Awaitable[DispatchConfig]] | None = None,
    *,
    at_pace: bool = True,
) -> DownstreamTurn | None:
    """The turn of an execution, under these settings of its item type; None if it waits for none. What limits its start
    follows `settings`, if they are given."""
    if not needs_turn(execute, config, limits):
        return None

    async def now() -> Sequence[Downstream]:
        if limits is None:
            return ()
        return await limits.of(config if settings is None else await settings(config.item_type))

    return DownstreamTurn(downstream_of(execute), now, at_pace=at_pace)
