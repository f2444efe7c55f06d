"""`AsyncLimiter`: may this run now? For event loops; `Limiter` is the same for threads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from inspect import isawaitable, iscoroutinefunction
from time import perf_counter
from types import TracebackType
from typing import Any, Self, TypeVar
from uuid import uuid4

from headgate.circuit_breaker import BreakerPolicy
from headgate.clock import Clock
from headgate.errors import RateLimitExceeded, StoreError, StoreUnavailable
from headgate.limits.active_plans import PlansInForce
from headgate.limits.local_lease import LeasePolicy, Purse, Purses, less
from headgate.limits.model import Charge, Decision, OnError, Plan
from headgate.limits.plan_book import check_key
from headgate.limits.plan_loader import in_thread, stay
from headgate.limits.ports import AdmissionObserver, AsyncLimitStore, AsyncPlanRegistry, Hold, PlanRegistry
from headgate.limits.reservations import (
    DEFAULT_TTL,
    AsyncReservation,
    held_first,
    held_us,
    reservation_id,
    settled,
    settled_cost,
)
from headgate.limits.store_health import DEFAULT_DEADLINE
from headgate.limits.waiters import LONGEST_NAP, AsyncLines, deadline_of, out_of_reach, out_of_time

log = logging.getLogger("headgate.limits")

ONE = 1
NEVER_LOADED = -1
T = TypeVar("T")


class AsyncLimiter(PlansInForce):
    """Decides, on a store, by plans. What `Limiter` promises holds here, awaited; one limiter serves one event loop.

    Plans from a registry are loaded at the first call, and again in the background when `refresh_every` has passed. A
    registry that isn't awaited is asked in a thread.
    """

    _store: AsyncLimitStore
    _fallback: AsyncLimitStore | None
    _registry: PlanRegistry | AsyncPlanRegistry | None

    def __init__(
        self,
        store: str | AsyncLimitStore = "memory://",
        *,
        plans: Iterable[Plan] | PlanRegistry | AsyncPlanRegistry = (),
        on_error: OnError | str = OnError.OPEN,
        fallback: str | AsyncLimitStore = "memory://",
        deadline: float | None = None,
        breaker: BreakerPolicy | None = None,
        lease: LeasePolicy | None = None,
        observer: AdmissionObserver | None = None,
        clock: Clock | None = None,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        purses = Purses(lease, asyncio.Lock) if lease is not None else None
        super().__init__(on_error, breaker, purses, observer, clock)
        self._pause = pause
        self._own: list[AsyncLimitStore] = []
        self._deadline = deadline
        self._given_clock = clock
        self._patience = DEFAULT_DEADLINE if deadline is None else deadline
        """Seconds for stores that were not opened here; the others were told the deadline, and keep it."""
        self._check_store("store", store)
        self._check_store("fallback", fallback)
        self._decide_on(self._opened(store))
        self._fallback_at = fallback
        self._lines = AsyncLines()
        self._turn = asyncio.Lock()
        self._loads: set[asyncio.Task[None]] = set()
        self._refreshing: asyncio.Task[None] | None = None
        self._leasing: set[asyncio.Task[Any]] = set()
        self._leases = True
        if isinstance(plans, Iterable):
            self.replace_plans(plans)
        else:
            self._registry = plans
            self._refresh_at_us = NEVER_LOADED

    async def acquire(self, key: str, plans: str | Sequence[str], cost: int = 1) -> Decision:
        """Decides, and charges `cost` to `key` under every plan if all have room; else charges nothing."""
        try:
            if cost is ONE:
                # What the short way knows was checked when it was new; it leaves the rest to the long one.
                name = plans[0] if len(plans) == 1 else plans if plans.__class__ is str else ""
                way = self.at_once.get(name)
                if way is not None:
                    decision = way(key)
                    if decision is not None:
                        return decision
        except (TypeError, KeyError):
            check_key(key)
        return await self._acquire(await self._chain(key, plans, cost))

    async def acquire_chain(self, links: Iterable[tuple[str, str, int]]) -> Decision:
        """`acquire` over any (key, plan, cost): all or nothing, in one decision."""
        if self._refresh_at_us is not None:
            await self._maybe_refresh()
        return await self._acquire(self._book.links(links))

    async def check(self, key: str, plans: str | Sequence[str], cost: int = 1) -> Decision:
        """`acquire`, but a denial is raised as `RateLimitExceeded`."""
        decision = await self.acquire(key, plans, cost)
        if not decision.allowed:
            raise RateLimitExceeded(decision)
        return decision

    async def peek(self, key: str, plans: str | Sequence[str], cost: int = 1) -> Decision:
        """What `acquire` would say; charges nothing."""
        return await self._decided(await self._chain(key, plans, cost), spend=False)

    async def wait(
        self, key: str, plans: str | Sequence[str], cost: int = 1, *, timeout: float | None = None
    ) -> Decision:
        """`acquire` as soon as there is room. Callers of this limiter who wait for the same are served in the order
        they came, one at a time. A denial means that there was no room within `timeout`, or could not be any."""
        chain = await self._chain(key, plans, cost)
        deadline_us = deadline_of(timeout, self._clock.monotonic_us())
        name = (key, *(charge.rule.plan for charge in chain))
        async with self._lines.stand(name, deadline_us, self._clock) as first:
            if not first:
                return self._outage.tell(out_of_time(await self._decided(chain, spend=False)))
            while True:
                # Built anew each time: plans may have changed meanwhile.
                decision = await self._acquired(await self._chain(key, plans, cost))
                if decision.allowed or out_of_reach(decision, deadline_us, self._clock):
                    return self._outage.tell(decision)
                await self._pause(min(decision.retry_after, LONGEST_NAP))

    async def refund(self, key: str, plans: str | Sequence[str], cost: int = 1) -> None:
        """Gives `cost` back to every plan, at most what is spent there.

        Nobody says when it was taken, so it makes room now, even if it was taken in a window that has passed: give
        back soon, or `reserve`, which knows. A sliding log gives up its oldest entries.
        """
        chain = await self._chain(key, plans, cost)
        await self._ask("refund", lambda: self._store.refund(chain))
        if self._purses is not None:
            self._purses.forget_denials(chain)

    async def reset(self, key: str, plans: str | Sequence[str]) -> None:
        """Makes `key` as new under every plan."""
        chain = await self._chain(key, plans, 1)
        await self._ask("reset", lambda: self._store.reset(chain))
        if self._purses is not None:
            self._purses.forget(chain)

    async def reserve(
        self,
        key: str,
        plans: str | Sequence[str],
        cost: int = 1,
        *,
        id: str | None = None,
        ttl: float = DEFAULT_TTL,
    ) -> AsyncReservation:
        """`acquire` for work whose cost is known only afterwards: settle or cancel it within `ttl` seconds.

        Reserving the same `id` on the same plans again charges nothing, unless it was cancelled: then it is decided
        anew. What is not settled in time stays spent.
        """
        chain = await self._chain(key, plans, cost)
        hold = Hold(reservation_id(id) if id is not None else uuid4().hex, held_us(ttl))
        decision = self._outage.tell(await self._decided(held_first(chain, cost), hold=hold))
        names = [charge.rule.plan for charge in chain]
        return AsyncReservation(hold.id, decision, lambda actual: self.settle(key, names, hold.id, actual))

    async def settle(self, key: str, plans: str | Sequence[str], id: str, actual: int) -> bool:
        """Corrects a reservation to its `actual` cost (0 cancels it). False if it had been settled already;
        `NotFound` if there is no such reservation on these plans, or no more.

        What is given back makes room only where it still takes room up: nothing does once its window has passed.
        """
        chain, actual = await self._chain(key, plans, 1), settled_cost(actual)
        return settled(id, await self._ask("settle", lambda: self._store.settle(reservation_id(id), chain, actual)))

    async def refresh(self) -> None:
        """Asks the registry for its plans now. Its errors are raised; the plans in force stay."""
        if self._registry is not None:
            await asyncio.shield(self._begin(self._load_plans()))

    async def close(self) -> None:
        """Gives leased tokens back, also those that are just being taken, and closes what this limiter opened; plans
        that are being loaded in a thread have `deadline` seconds to arrive. Closing twice is fine."""
        if self._loads:
            loads = tuple(self._loads)
            if not iscoroutinefunction(getattr(self._registry, "load", None)):
                await asyncio.wait(loads, timeout=self._patience)
            for load in loads:
                load.cancel()
            await asyncio.gather(*loads, return_exceptions=True)
        self._leases = False  # whoever goes on calling asks the store: nobody would give a new lease back
        while self._leasing:
            await asyncio.wait(self._leasing)
        if self._purses is not None and (purses := self._purses.clear()):
            await self._undisturbed(self._empty(purses))
        while self._own:
            await self._own.pop().close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _opened(self, store: str | AsyncLimitStore) -> AsyncLimitStore:
        if not isinstance(store, str):
            return store
        # Imported here: stores bring their drivers, and importing headgate brings none.
        from headgate.limits.stores import async_limit_store

        opened = async_limit_store(store, deadline=self._deadline, clock=self._given_clock)
        self._own.append(opened)
        return opened

    async def _chain(self, key: str, plans: str | Sequence[str], cost: int) -> list[Charge]:
        if self._refresh_at_us is not None:
            await self._maybe_refresh()
        return self._book.chain(key, plans, cost)

    async def _acquire(self, chain: list[Charge]) -> Decision:
        return self._outage.tell(await self._acquired(chain))

    async def _acquired(self, chain: list[Charge]) -> Decision:
        if self._purses is None or not self._leases or not self._purses.suits(chain):
            return await self._decided(chain)
        return await self._lease(chain, self._purses)

    async def _decided(self, chain: list[Charge], spend: bool = True, hold: Hold | None = None) -> Decision:
        decision = await self._asked(chain, spend, hold)
        return decision if decision is not None else await self._instead(chain, spend, hold)

    async def _asked(self, chain: list[Charge], spend: bool = True, hold: Hold | None = None) -> Decision | None:
        """The store's decision; `None` if it can't be asked."""
        if self._local:
            return await self._store.decide(chain, spend=spend, hold=hold)
        outage = self._outage
        if not outage.blocks():
            started = perf_counter()
            try:
                decision = await self._in_time(self._store, self._store.decide(chain, spend=spend, hold=hold))
            except StoreUnavailable as error:
                outage.failed("decide", started, error)
            except StoreError:
                outage.refused("decide", started)
                raise
            else:
                outage.worked("decide", started)
                return decision
        return None

    async def _instead(self, chain: list[Charge], spend: bool = True, hold: Hold | None = None) -> Decision:
        """The decision of the plans' `on_error`."""
        outage = self._outage
        instead = outage.fallback_chain(chain)
        if instead:
            try:
                if self._fallback is None:
                    self._fallback = self._opened(self._fallback_at)
                call = self._fallback.decide(instead, spend=spend, hold=hold)
                return outage.fallen_back(await self._in_time(self._fallback, call))
            except StoreUnavailable as error:
                log.warning("the fallback store can't be asked either: %s", error)
        return outage.verdict(chain)

    async def _ask(self, operation: str, call: Callable[[], Awaitable[T]]) -> T:
        if self._outage.blocks():
            raise StoreUnavailable("the limit store can't be asked now")
        started = perf_counter()
        try:
            answer = await self._in_time(self._store, call())
        except StoreUnavailable as error:
            self._outage.failed(operation, started, error)
            raise
        except StoreError:
            self._outage.refused(operation, started)
            raise
        self._outage.worked(operation, started)
        return answer

    def _in_time(self, store: AsyncLimitStore, call: Awaitable[T]) -> Awaitable[T]:
        return call if store in self._own else self._within_patience(call)

    async def _within_patience(self, call: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self._patience):
                return await call
        except TimeoutError:
            raise StoreUnavailable(f"no answer within {self._patience:g} s") from None

    async def _lease(self, chain: list[Charge], purses: Purses) -> Decision:
        purse, cost = purses.find(chain), chain[0].cost
        decision = purse.spend(cost, self._clock.monotonic_us())
        if decision is not None:
            return decision
        asked, filling = purse.asked, None
        await purse.lock.acquire()
        try:
            # What somebody was told by the store meanwhile goes for all who waited: a deadline for all, not for each.
            waited = purse.asked != asked
            decision = purse.spend(cost, self._clock.monotonic_us(), waited)
            if decision is not None:
                return decision
            if not (waited and purse.failed):
                filling = self._undisturbed(self._fill(purse, cost), purse.lock.release)
        finally:
            if filling is None:
                purse.lock.release()
        if filling is not None:
            decision = await filling
        stale = purses.filled(purse, self._clock.monotonic_us())
        if decision is None:
            # Only what was asked for: a lease of the fallback's tokens would be lost.
            return await self._instead(chain)
        if stale is not None:
            await self._undisturbed(self._empty([stale]))
        return decision

    def _undisturbed(self, work: Coroutine[Any, Any, T], and_then: Callable[[], None] | None = None) -> Awaitable[T]:
        """Begins work that goes on if whoever awaits it is cancelled: tokens on their way would be lost."""
        task = asyncio.get_running_loop().create_task(work)
        self._leasing.add(task)

        def ended(_: asyncio.Task[T]) -> None:
            self._leasing.discard(task)
            if not task.cancelled():
                task.exception()  # looked at: asyncio would complain of one that a cancelled caller did not hear
            if and_then is not None:
                and_then()

        task.add_done_callback(ended)
        return _outcome(task)

    async def _fill(self, purse: Purse, cost: int) -> Decision | None:
        """The store's decision on `cost`, more than that put into the purse if it can be had; `None` if the store can't
        be asked."""
        decision = None
        if await self._give_back(purse):
            now_us = self._clock.monotonic_us()
            amount = purse.wish(cost, now_us)
            while True:
                decision = await self._asked(purse.charged(amount))
                if decision is None or decision.allowed or amount == cost:
                    break
                amount = less(decision, amount, cost)
        if decision is None:
            purse.missed()
            return None
        if decision.allowed and amount > cost:
            self._outage.leased(decision.plan, amount)
        return purse.took(amount, cost, decision, now_us)

    async def _empty(self, purses: Iterable[Purse]) -> None:
        for purse in purses:
            async with purse.lock:
                await self._give_back(purse, everything=True)

    async def _give_back(self, purse: Purse, *, everything: bool = False) -> bool:
        """Gives back what a purse may not keep; false if the store can't be asked."""
        tokens = purse.leftover(self._clock.monotonic_us(), everything=everything)
        if tokens:
            try:
                await self._ask("refund", lambda: self._store.refund(purse.charged(tokens)))
            except StoreError as error:
                log.info("%d leased tokens could not be given back, they stay spent: %s", tokens, error)
                return not isinstance(error, StoreUnavailable)
        return True

    async def _maybe_refresh(self) -> None:
        due = self._refresh_at_us
        if due is None or self._clock.monotonic_us() < due:
            return
        if due != NEVER_LOADED:
            self._plan_refresh()
        if self._refreshing is None or self._refreshing.done():
            first = due == NEVER_LOADED
            self._refreshing = self._begin(self._load_plans() if first else self._load_quietly())
        if due == NEVER_LOADED:
            # There are no plans to go on with.
            await asyncio.shield(self._refreshing)

    def _begin(self, load: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A load of its own: it must not end with whoever waits for it, for a registry may tell a change only once."""
        task = asyncio.get_running_loop().create_task(load)
        self._loads.add(task)
        task.add_done_callback(self._loads.discard)
        return task

    async def _load_plans(self) -> None:
        assert self._registry is not None
        # Of two loads at once, the one that read first could finish last and bring old plans back.
        async with self._turn:
            load: Callable[[], Any] = self._registry.load
            answer = load() if iscoroutinefunction(load) else await in_thread(load)
            self._take(await answer if isawaitable(answer) else answer)
            if self._refresh_at_us == NEVER_LOADED:
                self._plan_refresh()

    async def _load_quietly(self) -> None:
        try:
            await self._load_plans()
        except Exception as error:
            stay(error)


async def _outcome(task: asyncio.Task[T]) -> T:
    await asyncio.wait((task,))
    return task.result()
