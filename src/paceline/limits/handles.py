"""What a limiter hands out: a reservation to settle, held places to leave.

The form for threads is generated from this file: `scripts/generate_blocking.py`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from secrets import token_hex
from types import TracebackType
from typing import Any, Self

from paceline.errors import InvalidInput, NotFound, StoreError
from paceline.limits.model import Charge, Concurrency, Decision, Reason
from paceline.limits.ports import Hold, Settlement
from paceline.limits.reservations import check_actual
from paceline.limits.wait_queues import deadline_of, pause_until, timeout_denial

log = logging.getLogger("paceline.limits")

RENEWALS_PER_LIFE = 3
"""How often a place is renewed before it would expire: two renewals may fail."""
INTERRUPTIONS = asyncio.CancelledError  # async only
# blocking: INTERRUPTIONS = BaseException  # a signal handler may raise anything


async def decide_in_turn(
    limiter: Any, build: Callable[[], Awaitable[list[Charge]]], timeout: float | None, hold: Hold | None = None
) -> Decision:
    """The decision on the chain that `build` returns as soon as there is room, first come, first served; a denial after
    `timeout` seconds. With a hold, its costs are reserved."""
    chain = await build()
    deadline_us = deadline_of(timeout, limiter._clock.monotonic_us())
    queues, clock = limiter._wait_queues, limiter._clock
    turn = queues.turn(chain[0].key, tuple((charge.key, charge.rule.plan) for charge in chain))
    try:
        if not await queues.wait_turn(turn, deadline_us, clock):
            return timeout_denial(await limiter._decide(chain, spend=False))
        if not turn.was_first:
            chain = await build()  # plans may have changed meanwhile
        while True:
            if hold is None:
                decision: Decision = await limiter._acquire_with_lease(chain)
            else:
                decision = await limiter._decide(chain, hold=hold)
            if decision.allowed:
                return decision
            pause = pause_until(decision, chain, deadline_us, clock)
            if pause is None:
                return decision
            await queues.pause(turn, pause)
            chain = await build()
    finally:
        # First and not in `leave`: a signal handler may raise before the first line of a function.
        turn.left = True
        queues.leave(turn)


class AsyncReservation:
    """A cost reserved under an id. True if it was allowed.

        async with await limiter.reserve("user:1", "tokens", 500) as reservation:
            await reservation.settle(await call_model())

    One over several plans is settled by plan, where a plan that is not named keeps its cost:

        await reservation.settle({"tokens": 812})

    As a context manager it is cancelled when the block raises, and stays as reserved when it was not settled.
    """

    def __init__(
        self, id: str, decision: Decision, settle: Callable[[int | Mapping[str, int]], Awaitable[bool]]
    ) -> None:
        self._settle = settle
        self._open = decision.allowed and not decision.degraded
        self.id = id
        self.decision = decision

    def __bool__(self) -> bool:
        return self.decision.allowed

    async def settle(self, actual: int | Mapping[str, int]) -> bool:
        """Corrects the cost to `actual`: of every plan, or of those that are named. False if there was nothing to
        correct: settled before, denied, or decided by a failure policy. Raises what `AsyncLimiter.settle` does."""
        for cost in actual.values() if isinstance(actual, Mapping) else (actual,):
            check_actual(cost)
        if not self._open:
            return False
        applied = await self._settle(actual)
        self._open = False
        return applied

    async def cancel(self) -> bool:
        """Gives back all of the cost that still counts. The id can be reserved again."""
        return await self.settle(0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            # A cost that can't be given back stays spent; the block's own error is raised.
            with suppress(NotFound, StoreError):
                await self.cancel()


class AsyncHeldPlaces:
    """Places of concurrency limits, held while a block runs. Made by `hold`; it is entered once.

        async with limiter.hold("user:1", "exports") as decision: ...

    Work that is no block calls `enter`, and `leave` when it ends. Places are renewed only while this object is
    referenced: if it is forgotten, they expire.
    """

    def __init__(self, limiter: Any, build: Callable[[], Awaitable[list[Charge]]], timeout: float = 0.0) -> None:
        self._limiter = limiter
        self._build = build
        self._timeout = timeout
        self._id = token_hex(16)
        self._places: list[Charge] = []
        self._others: list[Charge] = []
        self._ttl_us = 0
        self._store: Any = None
        """Where the places are held; `None` if none are."""
        self._renewal: Any = None
        self._left = False
        self._process = 0

    async def enter(self) -> Decision:
        """Decides, and begins to hold the places if it was allowed. Raises what `hold` does."""
        limiter = self._limiter
        chain = await self._build()
        self._places = [charge for charge in chain if isinstance(charge.rule.spec, Concurrency)]
        self._others = [charge for charge in chain if charge not in self._places and not charge.rule.shadow]
        if not self._places:
            raise InvalidInput("plans", "none of them is a concurrency limit; use acquire")
        expire_us = [charge.rule.spec.life_us for charge in self._places]
        self._ttl_us = 2 * max(expire_us)
        hold = Hold(self._id, self._ttl_us, places=True)
        self._process = os.getpid()
        try:
            decision: Decision = limiter._health.observe(await self._decide(chain, hold))
            if decision.allowed and decision.reason in (Reason.OK, Reason.FALLBACK):
                self._store = limiter._store if decision.reason is Reason.OK else limiter._fallback
                every = min(expire_us) / 1_000_000 / RENEWALS_PER_LIFE
                self._renewal = limiter._renewals.start(self._renew, every)
                if self._left:  # in another thread, meanwhile
                    await self.leave()
        except INTERRUPTIONS:
            # The store may have admitted the call.
            self._store = self._store or limiter._store
            await self.leave()
            raise
        return decision

    async def leave(self) -> None:
        """Gives the places back. Leaving twice, or without places, is fine. A forked child leaves them to its parent,
        who has them."""
        self._left = True  # before the places are given back: see `_retake`
        store, self._store = self._store, None
        if store is None or self._process != os.getpid():
            return
        if self._renewal is not None:
            self._renewal.cancel()
        # async only: begin
        if not self._limiter._local:
            await self._limiter._shielded(None, self._give_back(store))
            return
        # async only: end
        await self._give_back(store)

    async def cancel(self) -> None:
        """Gives the places back, and what the other plans were charged: the work was never begun.

        Raises:
            StoreError: the charges could not be given back.
        """
        store = self._store
        await self.leave()
        if store is not None and self._others:
            await self._limiter._with_deadline(store, store.refund(self._others))

    async def __aenter__(self) -> Decision:
        return await self.enter()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.leave()

    async def _decide(self, chain: list[Charge], hold: Hold) -> Decision:
        if self._timeout:
            return await decide_in_turn(self._limiter, self._build, self._timeout, hold)
        decision: Decision = await self._limiter._decide(chain, hold=hold)
        return decision

    async def _give_back(self, store: Any) -> None:
        try:
            await self._limiter._with_deadline(store, store.settle(self._id, self._places, 0))
        except StoreError as error:
            log.info("a place of plan %r is free when it expires: %s", self._places[0].rule.owner, error)
        self._limiter._wait_queues.wake(self._places[0].key)

    async def _renew(self) -> None:
        """Renews the places. If they were lost, because the store lost its data or renewals failed for too long, it
        takes them again if there is room."""
        store = self._store
        if store is None:
            return
        try:
            renewal = store.renew(self._id, self._places, self._ttl_us)
            if await self._limiter._with_deadline(store, renewal) is Settlement.APPLIED or self._left:
                return
            # Shielded: a decision in flight must not be abandoned when the block ends.
            await self._limiter._shielded(None, self._retake(store))
        except StoreError as error:
            log.info("a place of plan %r was not renewed, which is tried again: %s", self._places[0].rule.owner, error)

    async def _retake(self, store: Any) -> None:
        try:
            retake = store.decide(self._places, hold=Hold(self._id, self._ttl_us, places=True))
            decision: Decision = await self._limiter._with_deadline(store, retake)
        finally:
            # If the block ended meanwhile, it may have left before the place was taken. If it ends after this line, it
            # leaves after.
            if self._left:
                await self._give_back(store)
        if not decision.allowed and not self._left:
            log.warning("a place of plan %r was lost while its call goes on: it had expired", decision.plan)
