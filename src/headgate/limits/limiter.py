"""`AsyncLimiter`: may this run now? For event loops.

`Limiter`, the same for threads, is generated from this file: `scripts/generate_blocking.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from time import perf_counter
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, overload
from uuid import uuid4

from headgate.circuit_breaker import BreakerPolicy
from headgate.clock import Clock
from headgate.errors import HeadgateError, RateLimitExceeded, StoreError, StoreUnavailable
from headgate.limits.active_plans import NEVER_LOADED, ActivePlans
from headgate.limits.handles import AsyncHeldPlaces, AsyncReservation, decide_in_turn
from headgate.limits.limiter_options import check_options, check_plans, check_store
from headgate.limits.local_lease import AsyncRefillLock, LeasePolicy, LocalLease, LocalLeases, smaller_request
from headgate.limits.model import Charge, Decision, OnError, Plan
from headgate.limits.plan_book import Request, check_key, pieces, with_errors
from headgate.limits.plan_loader import AsyncPlanLoader
from headgate.limits.ports import AdmissionObserver, AsyncLimitStore, AsyncPlanRegistry, Hold, PlanRegistry
from headgate.limits.renewals import AsyncRenewals
from headgate.limits.reservations import (
    DEFAULT_TTL,
    check_actual,
    check_id,
    check_settlement,
    check_ttl,
    full_cost_first,
)
from headgate.limits.store_health import DEFAULT_DEADLINE
from headgate.limits.wait_queues import AsyncWaitQueues

__all__ = ["AsyncLimiter", "AsyncReservation"]

log = logging.getLogger("headgate.limits")
ONE = 1
T = TypeVar("T")


class AsyncLimiter(ActivePlans):
    """Decides by plans, whose states are kept in a store. One limiter serves one event loop.

        async with AsyncLimiter("redis://cache", plans=[Plan("gold", TokenBucket(10, 1))]) as limiter:
            decision = await limiter.acquire("user:1", "gold")

    `store` is a URL (`memory://`, `redis://…`, `postgresql://…`) or an `AsyncLimitStore`. A store that the limiter
    opened is closed with it. `plans` are given here or come from a registry: it is loaded at the first call, and again
    in the background when `refresh_every` has passed; until it returns, the plans in force decide.
    A registry that isn't awaited is loaded in a thread.

    While the store is unavailable, each plan's `on_error` decides, or else this limiter's: `open`, `closed`, or
    `fallback` to another store (memory unless given). A call to the store may take `deadline` seconds; if not given,
    what its URL says, or else 0.5. With a `lease`, tokens are taken many at a time and spent in this process.

    Raises:
        ConfigurationError: the store, its URL, the plans or an option can't be used.
    """

    _store: AsyncLimitStore
    _fallback: AsyncLimitStore
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
        check_options(deadline, breaker, lease)
        check_plans(plans, AsyncLimitStore)
        check_store("store", store, AsyncLimitStore)
        check_store("fallback", fallback, AsyncLimitStore)
        leases = LocalLeases(lease, AsyncRefillLock) if lease is not None else None
        super().__init__(on_error, breaker, leases, observer, clock)
        self._opened_stores: list[AsyncLimitStore] = []
        self._deadline = deadline
        self._given_clock = clock
        self._timeout = DEFAULT_DEADLINE if deadline is None else deadline
        self._use_store(self._open_store("store", store))
        self._fallback = self._open_store("fallback", fallback)
        self._wait_queues = AsyncWaitQueues(pause)
        self._renewals = AsyncRenewals()
        self._loader: AsyncPlanLoader | None = None
        self._lease_tasks: set[asyncio.Task[Any]] = set()  # async only
        self._may_lease = True
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

    async def acquire_chain(self, links: Iterable[tuple[str, str, int]]) -> Decision:
        """`acquire` over any (key, plan, cost): all or nothing, in one decision. Raises what `acquire` does."""
        if self._refresh_at_us is not None:
            await self._maybe_refresh()
        return await self._acquire_and_observe(self._book.links(links))

    @overload
    async def acquire_many(
        self, requests: Iterable[Request], *, return_errors: Literal[False] = False
    ) -> list[Decision]: ...

    @overload
    async def acquire_many(
        self, requests: Iterable[Request], *, return_errors: Literal[True]
    ) -> list[Decision | HeadgateError]: ...

    async def acquire_many(
        self, requests: Iterable[Request], *, return_errors: bool = False
    ) -> Sequence[Decision | HeadgateError]:
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
            raise RateLimitExceeded(decision)
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
        return self._health.observe(await decide_in_turn(self, (key, plans, cost), timeout))

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
        hold = Hold(check_id(id) if id is not None else uuid4().hex, check_ttl(ttl))
        if timeout:
            decision = await decide_in_turn(self, (key, plans, cost), timeout, hold)
        else:
            decision = await self._decide(full_cost_first(chain, cost), hold=hold)
        self._health.observe(decision)
        names = list(dict.fromkeys(charge.rule.owner for charge in chain))
        return AsyncReservation(hold.id, decision, lambda actual: self.settle(key, names, hold.id, actual))

    async def settle(self, key: str, plans: str | Sequence[str], id: str, actual: int) -> bool:
        """Corrects a reservation to its `actual` cost (0 cancels it). False if it had been settled already.

        Cost given back makes room only while it still counts: not once its window has passed.

        Raises:
            NotFound: there is no such reservation on these plans, or it has expired.
            StoreUnavailable: the store can't be reached. Besides, what `acquire` raises.
        """
        chain, actual = await self._chain(key, plans, 1), check_actual(actual)
        settlement = await self._call_store("settle", lambda: self._store.settle(check_id(id), chain, actual))
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
        return AsyncHeldPlaces(self, key, plans, cost, timeout)

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
        self._may_lease = False  # later calls go to the store: a new lease would never be returned
        while self._lease_tasks:  # async only
            await asyncio.wait(self._lease_tasks)  # async only
        if self._leases is not None and (leases := self._leases.clear()):
            await self._shielded(None, self._return_leases(leases))
        while self._opened_stores:
            await self._opened_stores.pop().close()
        self._renewals.close()
        self._health.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _open_store(self, option: str, store: str | AsyncLimitStore) -> AsyncLimitStore:
        if not isinstance(store, str):
            return store
        # Imported here: stores bring their drivers, and importing headgate brings none.
        from headgate.limits.stores import async_limit_store

        opened = async_limit_store(store, deadline=self._deadline, clock=self._given_clock, option=option)
        self._opened_stores.append(opened)
        return opened

    async def _chain(self, key: str, plans: str | Sequence[str], cost: int) -> list[Charge]:
        if self._refresh_at_us is not None:
            await self._maybe_refresh()
        return self._book.chain(key, plans, cost)

    async def _acquire_and_observe(self, chain: list[Charge]) -> Decision:
        decision = await (self._decide_on_store(chain) if self._leases is None else self._acquire_with_lease(chain))
        return self._health.observe(decision if decision is not None else await self._fall_back(chain))

    async def _acquire_with_lease(self, chain: list[Charge]) -> Decision:
        if self._leases is None or not self._may_lease or not self._leases.is_leasable(chain):
            return await self._decide(chain)
        return await self._acquire_from_lease(chain, self._leases)

    async def _decide_many(self, chains: list[list[Charge]]) -> list[Decision]:
        health = self._health
        if not chains:
            return []
        if self._leases is not None:
            # Most are decided in this process.
            return health.observe_many([await self._acquire_with_lease(chain) for chain in chains])
        if self._local:
            return health.observe_many(await self._store.decide_many(chains))
        decisions: list[Decision] = []
        for piece in pieces(chains):
            try:
                decisions += await self._call_store("decide_many", partial(self._store.decide_many, piece))
            except StoreUnavailable:
                decisions += [await self._fall_back(chain) for chain in piece]
        return health.observe_many(decisions)

    async def _decide(self, chain: list[Charge], spend: bool = True, hold: Hold | None = None) -> Decision:
        decision = await self._decide_on_store(chain, spend, hold)
        return decision if decision is not None else await self._fall_back(chain, spend, hold)

    async def _decide_on_store(
        self, chain: list[Charge], spend: bool = True, hold: Hold | None = None
    ) -> Decision | None:
        """The store's decision; `None` if the store is unavailable."""
        if self._local:
            return await self._store.decide(chain, spend=spend, hold=hold)
        health = self._health
        if not health.blocks():
            started = perf_counter()
            try:
                decision = await self._with_deadline(self._store, self._store.decide(chain, spend=spend, hold=hold))
            except StoreUnavailable as error:
                health.record_failure("decide", started, error)
            except StoreError:
                health.record_refusal("decide", started)
                raise
            else:
                health.record_success("decide", started)
                return decision
        return None

    async def _fall_back(self, chain: list[Charge], spend: bool = True, hold: Hold | None = None) -> Decision:
        """The decision by the plans' `on_error`."""
        health = self._health
        fallback_chain = health.fallback_chain(chain)
        if fallback_chain:
            try:
                answer = self._fallback.decide(fallback_chain, spend=spend, hold=hold)
                return health.mark_fallback(await self._with_deadline(self._fallback, answer))
            except StoreUnavailable as error:
                log.warning("the fallback store can't be reached either: %s", error)
        return health.policy_decision(chain)

    async def _call_store(self, operation: str, call: Callable[[], Awaitable[T]]) -> T:
        if self._health.blocks():
            raise StoreUnavailable("the limit store can't be reached now")
        started = perf_counter()
        try:
            result = await self._with_deadline(self._store, call())
        except StoreUnavailable as error:
            self._health.record_failure(operation, started, error)
            raise
        except StoreError:
            self._health.record_refusal(operation, started)
            raise
        self._health.record_success(operation, started)
        return result

    # async only: begin
    def _with_deadline(self, store: AsyncLimitStore, call: Awaitable[T]) -> Awaitable[T]:
        """A store that was opened here keeps the deadline itself."""
        return call if store in self._opened_stores else self._time_out(call)

    async def _time_out(self, call: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self._timeout):
                return await call
        except TimeoutError:
            raise StoreUnavailable(f"no answer within {self._timeout:g} s") from None

    # async only: end

    async def _acquire_from_lease(self, chain: list[Charge], leases: LocalLeases) -> Decision:
        lease, cost = leases.find(chain), chain[0].cost
        decision = leases.spin_lock.run(lease.spend, cost, self._clock.monotonic_us())
        if decision is not None:
            return decision
        refills = lease.refills
        async with lease.lock:
            # All callers that waited share the refill's result: one timeout in total, not one per caller.
            waited = lease.refills != refills
            decision = leases.spin_lock.run(lease.spend, cost, self._clock.monotonic_us(), waited)
            if decision is not None:
                return decision
            if not (waited and lease.refill_failed):
                decision = await self._shielded(lease.lock, self._refill(lease, cost, leases))
        stale = leases.record_refill(lease, self._clock.monotonic_us())
        if decision is None:
            # No lease on the fallback store: its tokens would be lost.
            return await self._fall_back(chain)
        if stale is not None:
            await self._shielded(None, self._return_leases([stale]))
        return decision

    # async only: begin
    async def _shielded(self, lock: AsyncRefillLock | None, work: Coroutine[Any, Any, T]) -> T:
        """Runs `work` to its end even if the caller is cancelled: tokens in flight would be lost."""
        task = asyncio.get_running_loop().create_task(work)
        self._lease_tasks.add(task)
        if lock is not None:
            lock.refill = task

        def done(_: asyncio.Task[T]) -> None:
            self._lease_tasks.discard(task)
            if not task.cancelled():
                task.exception()  # retrieved: asyncio logs an exception that was never retrieved

        task.add_done_callback(done)
        await asyncio.wait((task,))
        return task.result()

    # async only: end
    async def _refill(self, lease: LocalLease, cost: int, leases: LocalLeases) -> Decision | None:
        """The decision on `cost`, of which the store is asked for what the lease has not; more than that is credited to
        the lease. `None` if the store is unavailable."""
        spin_lock, clock = leases.spin_lock, self._clock
        with lease.refilling():
            for everything in (False, True):
                if not await self._return_tokens(lease, everything=everything):
                    break
                now_us = clock.monotonic_us()
                own, used = spin_lock.run(lease.set_aside), False
                try:
                    amount, decision = await self._request_tokens(lease, cost - own, now_us)
                    if decision is not None and decision.allowed:
                        used = own == 0 or not lease.idle(clock.monotonic_us())
                finally:
                    if not used:
                        spin_lock.run(lease.put_back, own)
                if decision is None:
                    break
                if decision.allowed and amount > cost - own:
                    self._health.record_lease(decision.plan, amount)
                if used:
                    return spin_lock.run(lease.credit, amount, cost - own, decision, now_us)
                if not decision.allowed:
                    return spin_lock.run(lease.credit, amount, cost, lease.with_tokens(decision, own), now_us)
                # The lease's own tokens expired while the store decided. All go back, and the store decides on all.
                await self._return_tokens(lease)
                spin_lock.run(lease.credit, amount, 0, decision, now_us)
            lease.record_failed_refill()
            return None

    async def _request_tokens(self, lease: LocalLease, cost: int, now_us: int) -> tuple[int, Decision | None]:
        """How many tokens were requested, and the store's decision: on more than `cost` if there is as much."""
        amount = lease.requested(cost, now_us)
        while True:
            decision = await self._decide_on_store(lease.charges(amount))
            if decision is None or decision.allowed or amount == cost:
                return amount, decision
            amount = smaller_request(decision, amount, cost)

    async def _return_leases(self, leases: Iterable[LocalLease]) -> None:
        for lease in leases:
            async with lease.lock:
                await self._return_tokens(lease, everything=True)

    async def _return_tokens(self, lease: LocalLease, *, everything: bool = False) -> bool:
        """Gives back the tokens a lease may not keep; false if the store is unavailable."""
        assert self._leases is not None
        tokens = self._leases.spin_lock.run(lease.withdraw, self._clock.monotonic_us(), everything=everything)
        if tokens:
            try:
                await self._call_store("refund", lambda: self._store.refund(lease.charges(tokens)))
            except StoreError as error:
                log.info("%d leased tokens could not be given back, they stay spent: %s", tokens, error)
                return not isinstance(error, StoreUnavailable)
        return True

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
