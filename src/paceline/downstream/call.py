"""One call to a downstream: from its wait to its settlement."""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from types import TracebackType
from typing import TYPE_CHECKING, Self

from paceline.downstream.ports import Permit
from paceline.downstream.verdicts import any_cause
from paceline.errors import InvalidInput, NotFound, RateLimitExceeded, StoreError, StoreUnavailable
from paceline.limits.handles import AsyncHeldPlaces, AsyncReservation
from paceline.limits.model import Decision, Reason
from paceline.limits.reservations import Link
from paceline.options import is_whole

if TYPE_CHECKING:
    from paceline.downstream.downstream import Downstream

log = logging.getLogger(__name__)

CLIENT_ERRORS = 400
TOO_MANY_REQUESTS = 429
SERVER_ERRORS = 500


class Taken:
    """What a call has taken: all of it, or what is given back."""

    def __init__(self, permit: Permit | None = None) -> None:
        self.permit = permit
        self.places: AsyncHeldPlaces | None = None
        self.reservation: AsyncReservation | None = None
        self.debts: dict[str, int] = {}
        """By plan, what the reservation pays for earlier calls."""

    async def give_back(self) -> None:
        """No call is made."""
        if self.permit is not None:
            self.permit.give_back()
        if self.places is not None:
            await self.places.cancel()
        if self.reservation is not None:
            with suppress(StoreError, NotFound):  # it stays charged
                await self.reservation.cancel()


class CallBlock(ABC):
    """A call as an `async with` block: it leaves at once, and is over when the block ends."""

    @abstractmethod
    async def enter(self) -> None:
        """Waits for its turn."""

    @abstractmethod
    async def confirm(self) -> None:
        """Returns when the call may leave; it must leave at once."""

    @abstractmethod
    def left(self) -> None:
        """The request was sent."""

    @abstractmethod
    async def leave(self, error: BaseException | None = None) -> None:
        """Settles it, by how it ended."""

    async def __aenter__(self) -> Self:
        await self.enter()
        try:
            await self.confirm()
            self.left()
        except BaseException as error:
            await self.leave(error)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.leave(error)


class Call(CallBlock):
    """A call to a downstream. Made by `Downstream.call`; it is entered once.

    As a block it leaves at once. A client that opens a connection first enters it by `enter`, awaits `confirm` right
    before the first byte, reports the head of the response by `responded`, and ends it by `leave`.
    """

    def __init__(
        self, downstream: Downstream, key: str, links: Sequence[Link], places: Sequence[Link], timeout: float | None
    ):
        self.key = key
        self.links = links
        """The limits that it reserves …"""
        self.places = places
        """… and those of which it holds a place."""
        self.taken = Taken()
        self.is_probe = False
        self.obstacle: StoreError | None = None
        """Why nothing could be decided, the last time."""
        self._downstream = downstream
        self._timeout = timeout
        self._deadline = inf
        self._actual: dict[str, int] = {}
        self._is_refused = False
        self._has_left = False
        self._is_answered = False
        self._is_throttled = False
        self._began = self._left_at = self._answered_at = 0.0
        self._trouble: str | None = None
        """Why the response counts as a failure for the breaker."""

    @property
    def downstream(self) -> Downstream:
        """Where it goes."""
        return self._downstream

    def settle(self, **costs: int) -> None:
        """Corrects what the limits were charged, when the block ends. A limit that is not named keeps its cost.

        Raises:
            InvalidInput: there is no such limit, or a cost that can't be one.
        """
        limits = self._downstream._limits
        for limit, cost in costs.items():
            if limit not in limits:
                raise InvalidInput("costs", f"downstream {self._downstream.name!r} has no limit {limit!r}")
            if not is_whole(cost) or cost < 0:
                raise InvalidInput(limit, f"{cost!r} is not a whole number of at least 0")
            self._actual[limits[limit].plan.name] = limits[limit].units(cost)

    def refused(self) -> None:
        """The other side refused the call for its rate: nothing of the limits was spent."""
        self._is_refused = self._is_throttled = True

    def answered(self) -> None:
        """The other side has answered: whatever happens in the block from now on, the call has arrived."""
        if not self._is_answered:
            self._is_answered = True
            self._answered_at = time.monotonic()
            if self.taken.permit is not None:
                self.taken.permit.release()

    async def responded(self, status: int, header: Callable[[str], str | None]) -> None:
        """The head of the response is there. All processes obey the pause that it asks for; the breaker counts a 5xx
        without one as a failure. The limits stay charged, also by a 429: many providers count refused calls, too."""
        self.answered()
        try:
            pause = await self._downstream.learn(self.key, status, header)
        except StoreError as error:
            # Nothing leaves while the store is away, so no call ignores the pause meanwhile.
            log.warning("what %s said of its limits could not be shared: %s", self._downstream.name, error)
            pause = 0.0
        self._is_throttled = status == TOO_MANY_REQUESTS or (pause > 0 and status >= CLIENT_ERRORS)
        if status >= SERVER_ERRORS and not pause:
            self._trouble = f"answered {status}"

    async def confirm(self) -> None:
        """Returns when the call may leave; it must leave at once."""
        if self.taken.permit is not None:
            await self.taken.permit.confirm()
        self._has_left = True
        self._left_at = time.monotonic()

    def left(self) -> None:
        """The request was sent. A rate that is counted at the departure counts from now on."""
        if self.taken.permit is not None:
            self.taken.permit.left()

    def note(self, obstacle: StoreError | None) -> None:
        """Keeps in mind why nothing can be decided; None if something was."""
        self.obstacle = obstacle

    def seconds_left(self) -> float:
        """Seconds until it gives up waiting."""
        return max(self._deadline - time.monotonic(), 0.0)

    async def enter(self) -> None:
        """Waits for its turn, without `confirm`.

        Raises:
            CostExceedsCapacity: a limit can never admit its cost.
            RateLimitExceeded: it could not leave within its timeout.
            StoreUnavailable: it could not, because the store could not be reached.
        """
        self._began = time.monotonic()
        if self._timeout is not None:
            self._deadline = self._began + self._timeout
        downstream = self._downstream
        downstream.waiting += 1
        downstream._observations.begin()
        try:
            async with asyncio.timeout(self._timeout):
                await downstream._admit(self)
        except TimeoutError:
            if self.obstacle is not None:
                raise StoreUnavailable(
                    f"no call to {downstream.name!r} leaves while its store can't be reached: {self.obstacle}"
                ) from self.obstacle
            raise RateLimitExceeded(Decision.of(False, 0, 0, 0, 0, downstream.name, Reason.DENIED)) from None
        finally:
            downstream.waiting -= 1
        downstream.running += 1

    async def leave(self, error: BaseException | None = None) -> None:
        """Settles it, by how it ended."""
        downstream = self._downstream
        downstream.running -= 1
        unknown = self._is_unknown(error)
        if not self._has_left:
            await downstream._give_back(self, self.taken)
            return
        if not unknown:
            self.answered()
        if self.taken.places is not None:
            await self.taken.places.leave()
        downstream._observations.add(
            waited_us=round((self._left_at - self._began) * 1e6),
            latency_us=round((self._answered_at - self._left_at) * 1e6),
            throttled=self._is_throttled,
            failed=self._trouble is not None,
            unknown=unknown,
        )
        await self._settle()
        await self._tell_breaker(error if unknown else None)

    async def _settle(self) -> None:
        """Corrects the reserved costs by the actual ones."""
        if self.taken.reservation is None or not (self._actual or self._is_refused):
            return
        actual = {plan: 0 for _, plan, _ in self.links} if self._is_refused else self._actual
        await self._downstream._settle(self.links, self.taken, actual)

    def _is_unknown(self, error: BaseException | None) -> bool:
        """Whether the call may still arrive. Only an error that has the response with it proves that it has."""
        return error is not None and not self._is_answered and getattr(error, "response", None) is None

    async def _tell_breaker(self, unanswered: BaseException | None) -> None:
        breaker = self._downstream._breaker
        if breaker is None or isinstance(unanswered, asyncio.CancelledError):
            return
        reason = self._trouble
        if unanswered is not None and any_cause(unanswered, (OSError, TimeoutError, EOFError)):
            reason = str(unanswered) or type(unanswered).__name__
        with suppress(StoreError):
            if reason is not None:
                await breaker.record_failure(reason, self.is_probe)
            else:
                await breaker.record_success(self.is_probe)
