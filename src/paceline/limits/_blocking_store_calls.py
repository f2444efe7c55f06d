# Generated from limits/store_calls.py by scripts/generate_blocking.py. Do not edit.
"""How a limiter decides: from a lease in this process, by its store, or, while that is unavailable, by the plans'
`on_error`. For threads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from time import perf_counter
from typing import TypeVar

from paceline.circuit_breaker import BreakerPolicy
from paceline.clock import Clock
from paceline.errors import StoreError, StoreUnavailable
from paceline.limits.active_plans import ActivePlans
from paceline.limits.local_lease import LeasePolicy, LocalLease, LocalLeases, RefillLock, smaller_request
from paceline.limits.model import Charge, Decision, OnError
from paceline.limits.plan_book import pieces
from paceline.limits.ports import AdmissionObserver, Hold, LimitStore, PlanRegistry
from paceline.limits.store_health import DEFAULT_DEADLINE

log = logging.getLogger("paceline.limits")
T = TypeVar("T")


class StoreCalls(ActivePlans):
    """The stores of a limiter, and its calls to them. Stores that were opened here are closed with it."""

    _store: LimitStore
    _fallback: LimitStore

    def __init__(
        self,
        store: str | LimitStore,
        fallback: str | LimitStore,
        on_error: OnError | str,
        deadline: float | None,
        breaker: BreakerPolicy | None,
        lease: LeasePolicy | None,
        observer: AdmissionObserver | None,
        clock: Clock | None,
        token: str | None,
    ) -> None:
        leases = LocalLeases(lease, RefillLock) if lease is not None else None
        super().__init__(on_error, breaker, leases, observer, clock)
        self._opened_stores: list[LimitStore] = []
        self._deadline = deadline
        self._token = token
        self._given_clock = clock
        self._timeout = DEFAULT_DEADLINE if deadline is None else deadline
        self._use_store(self._open_store("store", store))
        self._fallback = self._open_store("fallback", fallback)
        self._may_lease = True

    def _open_store(self, option: str, store: str | LimitStore) -> LimitStore:
        if not isinstance(store, str):
            return store
        # Imported here: stores bring their drivers, and importing paceline brings none.
        from paceline.limits.stores import limit_store

        token = self._token if option == "store" else None
        opened = limit_store(store, deadline=self._deadline, clock=self._given_clock, option=option, token=token)
        self._opened_stores.append(opened)
        return opened

    def _service_plans(self, url: str) -> PlanRegistry:
        # Imported here, as above.
        from paceline.limits.stores import service_plans

        return service_plans(url, self._token)

    def _close_stores(self) -> None:
        """Gives leased tokens back and closes the stores that were opened here."""
        self._may_lease = False  # later calls go to the store: a new lease would never be returned
        if self._leases is not None and (leases := self._leases.clear()):
            self._return_leases(leases)
        while self._opened_stores:
            self._opened_stores.pop().close()

    def _acquire_with_lease(self, chain: list[Charge]) -> Decision:
        if self._leases is None or not self._may_lease or not self._leases.is_leasable(chain):
            return self._decide(chain)
        return self._acquire_from_lease(chain, self._leases)

    def _decide_many(self, chains: list[list[Charge]]) -> list[Decision]:
        health = self._health
        if not chains:
            return []
        if self._leases is not None:
            # Most are decided in this process.
            return health.observe_many([self._acquire_with_lease(chain) for chain in chains])
        if self._local:
            return health.observe_many(self._store.decide_many(chains))
        decisions: list[Decision] = []
        for piece in pieces(chains):
            try:
                decisions += self._call_store("decide_many", partial(self._store.decide_many, piece))
            except StoreUnavailable:
                decisions += [self._fall_back(chain) for chain in piece]
        return health.observe_many(decisions)

    def _decide(self, chain: list[Charge], spend: bool = True, hold: Hold | None = None) -> Decision:
        decision = self._decide_on_store(chain, spend, hold)
        return decision if decision is not None else self._fall_back(chain, spend, hold)

    def _decide_on_store(self, chain: list[Charge], spend: bool = True, hold: Hold | None = None) -> Decision | None:
        """The store's decision; `None` if the store is unavailable."""
        if self._local:
            return self._store.decide(chain, spend=spend, hold=hold)
        health = self._health
        if not health.blocks():
            started = perf_counter()
            try:
                decision = self._store.decide(chain, spend=spend, hold=hold)
            except StoreUnavailable as error:
                health.record_failure("decide", started, error)
            except StoreError:
                health.record_refusal("decide", started)
                raise
            else:
                health.record_success("decide", started)
                return decision
        return None

    def _fall_back(self, chain: list[Charge], spend: bool = True, hold: Hold | None = None) -> Decision:
        """The decision by the plans' `on_error`."""
        health = self._health
        fallback_chain = health.fallback_chain(chain)
        if fallback_chain:
            try:
                answer = self._fallback.decide(fallback_chain, spend=spend, hold=hold)
                return health.mark_fallback(answer)
            except StoreUnavailable as error:
                log.warning("the fallback store can't be reached either: %s", error)
        return health.policy_decision(chain)

    def _call_store(self, operation: str, call: Callable[[], T]) -> T:
        if self._health.blocks():
            raise StoreUnavailable("the limit store can't be reached now")
        started = perf_counter()
        try:
            result = call()
        except StoreUnavailable as error:
            self._health.record_failure(operation, started, error)
            raise
        except StoreError:
            self._health.record_refusal(operation, started)
            raise
        self._health.record_success(operation, started)
        return result

    def _acquire_from_lease(self, chain: list[Charge], leases: LocalLeases) -> Decision:
        lease, cost = leases.find(chain), chain[0].cost
        decision = leases.spin_lock.run(lease.spend, cost, self._clock.monotonic_us())
        if decision is not None:
            return decision
        refills = lease.refills
        with lease.lock:
            # All callers that waited share the refill's result: one timeout in total, not one per caller.
            waited = lease.refills != refills
            decision = leases.spin_lock.run(lease.spend, cost, self._clock.monotonic_us(), waited)
            if decision is not None:
                return decision
            if not (waited and lease.refill_failed):
                decision = self._refill(lease, cost, leases)
        stale = leases.record_refill(lease, self._clock.monotonic_us())
        if decision is None:
            # No lease on the fallback store: its tokens would be lost.
            return self._fall_back(chain)
        if stale is not None:
            self._return_leases([stale])
        return decision

    def _refill(self, lease: LocalLease, cost: int, leases: LocalLeases) -> Decision | None:
        """The decision on `cost`, of which the store is asked for what the lease has not; more than that is credited to
        the lease. `None` if the store is unavailable."""
        spin_lock, clock = leases.spin_lock, self._clock
        with lease.refilling():
            for everything in (False, True):
                if not self._return_tokens(lease, everything=everything):
                    break
                now_us = clock.monotonic_us()
                own, used = spin_lock.run(lease.set_aside), False
                try:
                    amount, decision = self._request_tokens(lease, cost - own, now_us)
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
                self._return_tokens(lease)
                spin_lock.run(lease.credit, amount, 0, decision, now_us)
            lease.record_failed_refill()
            return None

    def _request_tokens(self, lease: LocalLease, cost: int, now_us: int) -> tuple[int, Decision | None]:
        """How many tokens were requested, and the store's decision: on more than `cost` if there is as much."""
        amount = lease.requested(cost, now_us)
        while True:
            decision = self._decide_on_store(lease.charges(amount))
            if decision is None or decision.allowed or amount == cost:
                return amount, decision
            amount = smaller_request(decision, amount, cost)

    def _return_leases(self, leases: Iterable[LocalLease]) -> None:
        for lease in leases:
            with lease.lock:
                self._return_tokens(lease, everything=True)

    def _return_tokens(self, lease: LocalLease, *, everything: bool = False) -> bool:
        """Gives back the tokens a lease may not keep; false if the store is unavailable."""
        assert self._leases is not None
        tokens = self._leases.spin_lock.run(lease.withdraw, self._clock.monotonic_us(), everything=everything)
        if tokens:
            try:
                self._call_store("refund", lambda: self._store.refund(lease.charges(tokens)))
            except StoreError as error:
                log.info("%d leased tokens could not be given back, they stay spent: %s", tokens, error)
                return not isinstance(error, StoreUnavailable)
        return True
