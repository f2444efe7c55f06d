"""`AsyncLimiter`: may this run now? For event loops.

`Limiter`, the same for threads, is generated from this file: `scripts/generate_blocking.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from secrets import token_hex
from types import TracebackType
from typing import Literal, Self, overload

from paceline.circuit_breaker import BreakerPolicy
from paceline.clock import Clock
from paceline.errors import PacelineError, RateLimitExceeded
from paceline.limits.active_plans import NEVER_LOADED
from paceline.limits.handles import AsyncHeldPlaces, AsyncReservation, decide_in_turn
from paceline.limits.limiter_options import check_options, check_plans, check_store
from paceline.limits.local_lease import LeasePolicy
from paceline.limits.model import Charge, Decision, OnError, Plan
from paceline.limits.plan_book import Request, check_key, plan_names, with_errors
from paceline.limits.plan_loader import AsyncPlanLoader
from paceline.limits.ports import AdmissionObserver, AsyncLimitStore, AsyncPlanRegistry, Hold, PlanRegistry
from paceline.limits.renewals import AsyncRenewals
from paceline.limits.reservations import (
    DEFAULT_TTL,
    Link,
    actual_links,
    check_id,
    check_settlement,
    check_ttl,
)
from paceline.limits.store_calls import AsyncStoreCalls
from paceline.limits.wait_queues import AsyncWaitQueues
from paceline.service_client import is_service

__all__ = ["AsyncLimiter", "AsyncReservation"]

ONE = 1


class AsyncLimiter(AsyncStoreCalls):
    """Decides by plans, whose states are kept in a store. One limiter serves one event loop.

        async with AsyncLimiter("redis://cache", plans=[Plan("gold", TokenBucket(10, 1))]) as limiter:
            decision = await limiter.acquire("user:1", "gold")

    `store` is a URL (`memory://`, `host://…`, `redis://…`, `postgresql://…`) or an `AsyncLimitStore`. A store that the
    limiter opened is closed with it. `plans` are given here or come from a registry: it is loaded at the first call,
    and again in the background when `refresh_every` has passed; until it returns, the plans in force decide.
    A registry that isn't awaited is loaded in a thread.

    While the store is unavailable, each plan's `on_error` decides, or else this limiter's: `open`, `closed`, or
    `fallback` to another store (memory unless given). A call to the store may take `deadline` seconds; if not given,
    what its URL says, or else 0.5, in an SQLite file 5. With a `lease`, tokens are taken many at a time and spent in
    this process. The store may be a paceline service, `https://…`, with a `token` of the scope `assign`; without
    `plans`, its plans are in force.

    Raises:
        ConfigurationError: the store, its URL, the plans or an option can't be used.
    """

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
        token: str | None = None,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        check_options(deadline, breaker, lease, observer)
        check_plans(plans, AsyncLimitStore)
        check_store("store", store, AsyncLimitStore)
        check_store("fallback", fallback, AsyncLimitStore)
        super().__init__(store, fallback, on_error, deadline, breaker, lease, observer, clock, token)
        self._wait_queues = AsyncWaitQueues(pause)
        self._renewals = AsyncRenewals()
        self._loader: AsyncPlanLoader | None = None
        if plans == () and isinstance(store, str) and is_service(store):
            plans = self._service_plans(store)
        if isinstance(plans, Iterable):
            self.replace_plans(plans)
        else:
            self._registry, self._refresh_at_us = plans, NEVER_LOADED
            self._loader = AsyncPlanLoader(plans.load, self._apply)
            self.holds_places = True  # async only
            # blocking: self.refresh()

    async def acquire(self, key: str, plans: str | Sequence[str], cost: int = 1) -> Decision:
        """Decides, and charges `cost` to `key` under every plan if all have room; else charges nothing.

        Raises:
            InvalidInput: the key, the plans or the cost can't be used.
            NotFound: there is no such plan.
            CostExceedsCapacity: a plan can never admit the cost.
            StoreError: the store answered with an error. On `StoreUnavailable`, the plans' `on_error` decides.
        """
        try:
            if cost is ONE:
                # A key the fast path knows was checked when it was new; others take the slow path.
                name = plans[0] if len(plans) == 1 else plans if plans.__class__ is str else ""
                fast_path = self.fast_paths.get(name)
                if fast_path is not None:
                    decision = fast_path(key)
                    if decision is not None:
                        return decision
        except (TypeError, KeyError):
            check_key(key)
        if self._refresh_at_us is not None:
            await self._maybe_refresh()
        return await self._acquire_and_observe(self._book.chain(key, plans, cost))

    async def acquire_chain(self, links: Iterable[Link]) -> Decision:
        """`acquire` over any (key, plan, cost): all or nothing, in one decision. Raises what `acquire` does."""
        return await self._acquire_and_observe(await self._links([*links]))

    @overload
    async def acquire_many(
        self, requests: Iterable[Request], *, return_errors: Literal[False] = False
    ) -> list[Decision]: ...

    @overload
    async def acquire_many(
        self, requests: Iterable[Request], *, return_errors: Literal[True]
    ) -> list[Decision | PacelineError]: ...

    async def acquire_many(
        self, requests: Iterable[Request], *, return_errors: bool = False
    ) -> Sequence[Decision | PacelineError]:
        """`acquire` for each `(key, plans, cost)`. Returns the decisions in the same order.

        Up to 500 pairs of key and plan are one call to the store, with one deadline. More are further calls, one
        after the other, and an outage during one of them decides its requests only.

            decisions = await limiter.acquire_many([("user:1", "gold", 1), ("user:2", ["gold", "daily"], 5)])

        The decisions are independent: a denial of one denies no other. Requests of the same key are decided in their
        order. All requests are checked before the first is decided. A request that can't be used is raised, and nothing
        is charged; with `return_errors` its error is returned in its place, and the others are decided.

        Raises:
            InvalidInput: a request can't be used; names its number. Besides, what `acquire` raises.
        """
        if self._refresh_at_us is not None:
            await self._maybe_refresh()
        requests = [*requests]
        first = self._decide_first(requests) if return_errors else []
        if first and len(first) == len(requests):
            return first
        chains, errors = self._book.chains(requests, return_errors, start=len(first))
        return with_errors([*first, *await self._decide_many(chains)], errors)

    async def check(self, key: str, plans: str | Sequence[str], cost: int = 1) -> Decision:
        """`acquire` that raises a denial.

        Raises:
            RateLimitExceeded: the call was denied; carries the decision. Besides, what `acquire` raises.
        """
        decision = await self.acquire(key, plans, cost)
        if not decision.allowed:
            raise RateLimitExceeded(decision, self._charged(key, plans))
        return decision

    async def peek(self, key: str, plans: str | Sequence[str], cost: int = 1) -> Decision:
        """The decision `acquire` would return; charges nothing. Raises what `acquire` does."""
        chain = await self._chain(key, plans, cost)
        if self._leases is not None:
            lease, tokens = self._leases.unspent(chain, self._clock.monotonic_us())
            if lease is not None and tokens:
                # Of the rest the store decides, or of one unit if there is no rest.
                decision = await self._decide(lease.charges(max(cost - tokens, 1)), spend=False)
                return lease.peek(decision, cost, tokens)
        return await self._decide(chain, spend=False)

    async def wait(
        self, key: str, plans: str | Sequence[str], cost: int = 1, *, timeout: float | None = None
    ) -> Decision:
        """`acquire` as soon as there is room. Callers of this limiter that wait for the same key and plans are served
        first come, first served, one at a time. A denial means that there was no room within `timeout` seconds, or
        never can be. Raises what `acquire` does."""
        return self._health.observe(await decide_in_turn(self, partial(self._chain, key, plans, cost), timeout))

    async def wait_chain(self, links: Iterable[Link], *, timeout: float | None = None) -> Decision:
        """`acquire_chain` as soon as all of its plans have room: one decision, so no cost is charged while another is
        waited for.

            await limiter.wait_chain([("openai", "requests", 1), ("openai", "tokens", 2_000)], timeout=30)

        Callers of this limiter that wait for the same keys and plans are served first come, first served. Raises what
        `acquire` does."""
        return self._health.observe(await decide_in_turn(self, partial(self._links, [*links]), timeout))

    async def refund(self, key: str, plans: str | Sequence[str], cost: int = 1) -> None:
        """Gives `cost` back to every plan, at most what is spent there.

        A refund has no time of its charge. So it makes room now, even if the cost was taken in a window that has
        passed: refund soon, or use `reserve`. A sliding log drops its oldest entries.

        Raises:
            StoreUnavailable: the store can't be reached. Besides, what `acquire` raises.
        """
        chain = await self._chain(key, plans, cost)
        await self._call_store("refund", lambda: self._store.refund(chain))
        if self._leases is not None:
            self._leases.forget_denials(chain)
        self._wait_queues.wake(key)

    async def reset(self, key: str, plans: str | Sequence[str]) -> None:
        """Makes `key` as new under every plan.

        Raises:
            StoreUnavailable: the store can't be reached. Besides, what `acquire` raises.
        """
        chain = await self._chain(key, plans, 1)
        await self._call_store("reset", lambda: self._store.reset(chain))
        if self._leases is not None:
            self._leases.forget(chain)
        self._wait_queues.wake(key)

    async def reserve(
        self,
        key: str,
        plans: str | Sequence[str],
        cost: int = 1,
        *,
        id: str | None = None,
        ttl: float = DEFAULT_TTL,
        timeout: float = 0.0,
    ) -> AsyncReservation:
        """`acquire` for work whose cost is known only afterwards: settle or cancel it within `ttl` seconds. With a
        `timeout`, waits for room as `wait` does.

        It is idempotent: reserving the same `id` on the same plans again charges nothing, unless it was cancelled; then
        it is decided again. A reservation that is not settled in time stays spent. Raises what `acquire` does.
        """
        chain = await self._chain(key, plans, cost)
        links = [(key, name, cost) for name in dict.fromkeys(charge.rule.owner for charge in chain)]
        return await self.reserve_chain(links, id=id, ttl=ttl, timeout=timeout)

    async def reserve_chain(
        self, links: Iterable[Link], *, id: str | None = None, ttl: float = DEFAULT_TTL, timeout: float = 0.0
    ) -> AsyncReservation:
        """`reserve` over any (key, plan, cost), each settled by its own actual cost.

        links = [("openai", "requests", 1), ("openai", "tokens", 2_000)]
        async with await limiter.reserve_chain(links, timeout=30) as reservation:
            if reservation: await reservation.settle({"tokens": await call_model()})
        """
        links = [*links]
        hold = Hold(check_id(id) if id is not None else token_hex(16), check_ttl(ttl))
        if timeout:
            decision = await decide_in_turn(self, partial(self._links, links), timeout, hold)
        else:
            decision = await self._decide(await self._links(links), hold=hold)
        self._health.observe(decision)
        return AsyncReservation(
            hold.id, decision, lambda actual: self.settle_chain(actual_links(links, actual), hold.id)
        )

    async def settle(self, key: str, plans: str | Sequence[str], id: str, actual: int) -> bool:
        """Corrects a reservation to its `actual` cost (0 cancels it). False if it had been settled already.

        Cost given back makes room only while it still counts: not once its window has passed.

        Raises:
            NotFound: there is no such reservation on these plans, or it has expired.
            StoreUnavailable: the store can't be reached. Besides, what `acquire` raises.
        """
        return await self.settle_chain([(key, name, actual) for name in plan_names(plans)], id)

    async def settle_chain(self, links: Iterable[Link], id: str) -> bool:
        """`settle` for a reservation over any (key, plan): each link carries its actual cost. Raises what `settle`
        does."""
        if self._refresh_at_us is not None:
            await self._maybe_refresh()
        chain, actuals = self._book.settlement(links)
        settlement = await self._call_store("settle", lambda: self._store.settle(check_id(id), chain, actuals))
        for key in dict.fromkeys(charge.key for charge in chain):
            self._wait_queues.wake(key)
        return check_settlement(id, settlement)

    def hold(self, key: str, plans: str | Sequence[str], cost: int = 1, *, timeout: float = 0.0) -> AsyncHeldPlaces:
        """Holds places of concurrency limits while a block runs; charges the other plans as `acquire` does. With a
        `timeout`, waits for room as `wait` does.

            async with limiter.hold("user:1", "exports") as decision:
                if decision.allowed: ...

        The block runs also if the decision is a denial. A place is renewed for as long as the block runs, and given
        back when it ends, however it ends. If this process dies, its places are free when they expire.

        Raises:
            InvalidInput: none of the plans is a concurrency limit. Besides, what `acquire` raises; when it is entered.
        """
        return AsyncHeldPlaces(self, partial(self._chain, key, plans, cost), timeout)

    def hold_chain(self, links: Iterable[Link], *, timeout: float = 0.0) -> AsyncHeldPlaces:
        """`hold` over any (key, plan, cost)."""
        return AsyncHeldPlaces(self, partial(self._links, [*links]), timeout)

    # async only: begin
    async def load_plans(self) -> None:
        """Loads the plans from the registry, unless they have been loaded. Its errors are raised."""
        if self._refresh_at_us == NEVER_LOADED:
            await self._maybe_refresh()

    # async only: end
    async def refresh(self) -> None:
        """Loads the plans from the registry now. Its errors are raised; then the plans in force stay."""
        if self._loader is not None:
            await self._loader.load_now()

    async def close(self) -> None:
        """Gives leased tokens back and closes the stores that this limiter opened. Closing twice is fine.

        Plans that are being loaded in a thread have `deadline` seconds to arrive.
        """
        if self._loader is not None:
            await self._loader.close(self._timeout)
        await self._close_stores()
        self._renewals.close()
        self._health.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _chain(self, key: str, plans: str | Sequence[str], cost: int) -> list[Charge]:
        if self._refresh_at_us is not None:
            await self._maybe_refresh()
        return self._book.chain(key, plans, cost)

    async def _links(self, links: Sequence[Link]) -> list[Charge]:
        if self._refresh_at_us is not None:
            await self._maybe_refresh()
        return self._book.links(links)

    async def _acquire_and_observe(self, chain: list[Charge]) -> Decision:
        decision = await (self._decide_on_store(chain) if self._leases is None else self._acquire_with_lease(chain))
        return self._health.observe(decision if decision is not None else await self._fall_back(chain))

    async def _maybe_refresh(self) -> None:
        due = self._refresh_at_us
        if due is None or self._loader is None or self._clock.monotonic_us() < due:
            return
        # async only: begin
        if due == NEVER_LOADED:
            # There are no plans to decide by.
            await self._loader.load_first()
            return
        # async only: end
        self._schedule_refresh()
        self._loader.load_soon()
