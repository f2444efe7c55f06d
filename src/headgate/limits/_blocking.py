"""`Limiter`: may this run now? For threads; `AsyncLimiter` is the same for event loops."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from inspect import iscoroutinefunction
from time import perf_counter, sleep
from types import TracebackType
from typing import Self, TypeVar
from uuid import uuid4

from headgate.circuit_breaker import BreakerPolicy
from headgate.clock import Clock
from headgate.errors import ConfigurationError, RateLimitExceeded, StoreError, StoreUnavailable
from headgate.limits.active_plans import PlansInForce
from headgate.limits.local_lease import LeasePolicy, Purse, Purses, less
from headgate.limits.model import Charge, Decision, OnError, Plan
from headgate.limits.plan_book import check_key
from headgate.limits.plan_loader import PlanLoader
from headgate.limits.ports import AdmissionObserver, Hold, LimitStore, PlanRegistry, Settlement
from headgate.limits.reservations import (
    DEFAULT_TTL,
    Reservation,
    held_first,
    held_us,
    reservation_id,
    settled,
    settled_cost,
)
from headgate.limits.store_health import DEFAULT_DEADLINE
from headgate.limits.waiters import LONGEST_NAP, Lines, deadline_of, out_of_reach, out_of_time

log = logging.getLogger("headgate.limits")

ONE = 1
T = TypeVar("T")


class Limiter(PlansInForce):
    """Decides, on a store, by plans.

    `store` is a URL (`memory://`, `redis://…`, `postgresql://…`) or a `LimitStore`; what the limiter opened itself it
    closes. `plans` are given here or come from a registry: it is asked at once, and again in the background when
    `refresh_every` has passed; until it answers, the plans in force decide. When the store can't be asked, each plan's
    `on_error` decides, or else this limiter's: `open`, `closed`, or `fallback` to another store (memory unless given).
    A call to the store may take `deadline` seconds; if not given, what its URL says, or else 0.5. With a `lease`,
    tokens are taken many at a time and spent here.
    """

    _store: LimitStore
    _fallback: LimitStore | None
    _registry: PlanRegistry | None

    def __init__(
        self,
        store: str | LimitStore = "memory://",
        *,
        plans: Iterable[Plan] | PlanRegistry = (),
        on_error: OnError | str = OnError.OPEN,
        fallback: str | LimitStore = "memory://",
        deadline: float | None = None,
        breaker: BreakerPolicy | None = None,
        lease: LeasePolicy | None = None,
        observer: AdmissionObserver | None = None,
        clock: Clock | None = None,
        pause: Callable[[float], object] = sleep,
    ) -> None:
        super().__init__(on_error, breaker, Purses(lease) if lease is not None else None, observer, clock)
        self._pause = pause
        self._own: list[LimitStore] = []
        self._deadline = deadline
        self._given_clock = clock
        self._check_store("store", store)
        self._check_store("fallback", fallback)
        if not isinstance(store, str) and iscoroutinefunction(store.decide):
            raise ConfigurationError("store", f"{store!r} is for event loops; give it to an AsyncLimiter")
        self._decide_on(self._opened(store))
        self._fallback_at = fallback
        self._lines = Lines()
        self._loader = PlanLoader(self._load_plans)
        try:
            if isinstance(plans, Iterable):
                self.replace_plans(plans)
            else:
                self._registry = plans
                self.refresh()
                self._plan_refresh()
        except BaseException:
            self.close()
            raise

    def acquire(self, key: str, plans: str | Sequence[str], cost: int = 1) -> Decision:
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
        return self._acquire(self._chain(key, plans, cost))

    def acquire_chain(self, links: Iterable[tuple[str, str, int]]) -> Decision:
        """`acquire` over any (key, plan, cost): all or nothing, in one decision."""
        self._maybe_refresh()
        return self._acquire(self._book.links(links))

    def check(self, key: str, plans: str | Sequence[str], cost: int = 1) -> Decision:
        """`acquire`, but a denial is raised as `RateLimitExceeded`."""
        decision = self.acquire(key, plans, cost)
        if not decision.allowed:
            raise RateLimitExceeded(decision)
        return decision

    def peek(self, key: str, plans: str | Sequence[str], cost: int = 1) -> Decision:
        """What `acquire` would say; charges nothing."""
        return self._decided(self._chain(key, plans, cost), spend=False)

    def wait(self, key: str, plans: str | Sequence[str], cost: int = 1, *, timeout: float | None = None) -> Decision:
        """`acquire` as soon as there is room. Callers of this limiter who wait for the same are served in the order
        they came, one at a time. A denial means that there was no room within `timeout`, or could not be any."""
        chain = self._chain(key, plans, cost)
        deadline_us = deadline_of(timeout, self._clock.monotonic_us())
        name = (key, *(charge.rule.plan for charge in chain))
        with self._lines.stand(name, deadline_us, self._clock) as first:
            if not first:
                return self._outage.tell(out_of_time(self._decided(chain, spend=False)))
            while True:
                # Built anew each time: plans may have changed meanwhile.
                decision = self._acquired(self._chain(key, plans, cost))
                if decision.allowed or out_of_reach(decision, deadline_us, self._clock):
                    return self._outage.tell(decision)
                self._pause(min(decision.retry_after, LONGEST_NAP))

    def refund(self, key: str, plans: str | Sequence[str], cost: int = 1) -> None:
        """Gives `cost` back to every plan, at most what is spent there.

        Nobody says when it was taken, so it makes room now, even if it was taken in a window that has passed: give
        back soon, or `reserve`, which knows. A sliding log gives up its oldest entries.
        """
        chain = self._chain(key, plans, cost)
        self._ask("refund", lambda: self._store.refund(chain))
        if self._purses is not None:
            self._purses.forget_denials(chain)

    def reset(self, key: str, plans: str | Sequence[str]) -> None:
        """Makes `key` as new under every plan."""
        chain = self._chain(key, plans, 1)
        self._ask("reset", lambda: self._store.reset(chain))
        if self._purses is not None:
            self._purses.forget(chain)

    def reserve(
        self,
        key: str,
        plans: str | Sequence[str],
        cost: int = 1,
        *,
        id: str | None = None,
        ttl: float = DEFAULT_TTL,
    ) -> Reservation:
        """`acquire` for work whose cost is known only afterwards: settle or cancel it within `ttl` seconds.

        Reserving the same `id` on the same plans again charges nothing, unless it was cancelled: then it is decided
        anew. What is not settled in time stays spent.
        """
        chain = self._chain(key, plans, cost)
        hold = Hold(reservation_id(id) if id is not None else uuid4().hex, held_us(ttl))
        decision = self._outage.tell(self._decided(held_first(chain, cost), hold=hold))
        names = [charge.rule.plan for charge in chain]
        return Reservation(hold.id, decision, lambda actual: self.settle(key, names, hold.id, actual))

    def settle(self, key: str, plans: str | Sequence[str], id: str, actual: int) -> bool:
        """Corrects a reservation to its `actual` cost (0 cancels it). False if it had been settled already;
        `NotFound` if there is no such reservation on these plans, or no more.

        What is given back makes room only where it still takes room up: nothing does once its window has passed.
        """
        chain, actual = self._chain(key, plans, 1), settled_cost(actual)
        settlement: Settlement = self._ask("settle", lambda: self._store.settle(reservation_id(id), chain, actual))
        return settled(id, settlement)

    def refresh(self) -> None:
        """Asks the registry for its plans now. Its errors are raised; the plans in force stay."""
        if self._registry is not None:
            self._loader.load_now()

    def close(self) -> None:
        """Gives leased tokens back and closes what this limiter opened; plans that are being loaded have `deadline`
        seconds to arrive. Closing twice is fine."""
        self._loader.join(DEFAULT_DEADLINE if self._deadline is None else self._deadline)
        for purse in self._purses.clear() if self._purses is not None else ():
            with purse.lock:
                self._give_back(purse, everything=True)
        for store in self._own:
            store.close()
        self._own.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _opened(self, store: str | LimitStore) -> LimitStore:
        if not isinstance(store, str):
            return store
        # Imported here: stores bring their drivers, and importing headgate brings none.
        from headgate.limits.stores import limit_store

        opened = limit_store(store, deadline=self._deadline, clock=self._given_clock)
        self._own.append(opened)
        return opened

    def _chain(self, key: str, plans: str | Sequence[str], cost: int) -> list[Charge]:
        self._maybe_refresh()
        return self._book.chain(key, plans, cost)

    def _acquire(self, chain: list[Charge]) -> Decision:
        return self._outage.tell(self._acquired(chain))

    def _acquired(self, chain: list[Charge]) -> Decision:
        if self._purses is None or not self._purses.suits(chain):
            return self._decided(chain)
        return self._lease(chain, self._purses)

    def _decided(self, chain: list[Charge], spend: bool = True, hold: Hold | None = None) -> Decision:
        decision = self._asked(chain, spend, hold)
        return decision if decision is not None else self._instead(chain, spend, hold)

    def _asked(self, chain: list[Charge], spend: bool = True, hold: Hold | None = None) -> Decision | None:
        """The store's decision; `None` if it can't be asked."""
        if self._local:
            return self._store.decide(chain, spend=spend, hold=hold)
        outage = self._outage
        if not outage.blocks():
            started = perf_counter()
            try:
                decision = self._store.decide(chain, spend=spend, hold=hold)
            except StoreUnavailable as error:
                outage.failed("decide", started, error)
            except StoreError:
                outage.refused("decide", started)
                raise
            else:
                outage.worked("decide", started)
                return decision
        return None

    def _instead(self, chain: list[Charge], spend: bool = True, hold: Hold | None = None) -> Decision:
        """The decision of the plans' `on_error`."""
        outage = self._outage
        instead = outage.fallback_chain(chain)
        if instead:
            try:
                if self._fallback is None:
                    self._fallback = self._opened(self._fallback_at)
                return outage.fallen_back(self._fallback.decide(instead, spend=spend, hold=hold))
            except StoreUnavailable as error:
                log.warning("the fallback store can't be asked either: %s", error)
        return outage.verdict(chain)

    def _ask(self, operation: str, call: Callable[[], T]) -> T:
        if self._outage.blocks():
            raise StoreUnavailable("the limit store can't be asked now")
        started = perf_counter()
        try:
            answer = call()
        except StoreUnavailable as error:
            self._outage.failed(operation, started, error)
            raise
        except StoreError:
            self._outage.refused(operation, started)
            raise
        self._outage.worked(operation, started)
        return answer

    def _lease(self, chain: list[Charge], purses: Purses) -> Decision:
        purse, cost = purses.find(chain), chain[0].cost
        asked = purse.asked
        with purse.lock:
            # What somebody was told by the store meanwhile goes for all who waited: a deadline for all, not for each.
            waited = purse.asked != asked
            decision = purses.turnstile.run(purse.spend, cost, self._clock.monotonic_us(), waited)
            if decision is not None:
                return decision
            if not (waited and purse.failed):
                with purse.being_filled():
                    decision = self._fill(purse, cost)
        stale = purses.filled(purse, self._clock.monotonic_us())
        if decision is None:
            # Only what was asked for: a lease of the fallback's tokens would be lost.
            return self._instead(chain)
        if stale is not None:
            with stale.lock:
                self._give_back(stale, everything=True)
        return decision

    def _fill(self, purse: Purse, cost: int) -> Decision | None:
        """The store's decision on `cost`, more than that put into the purse if it can be had; `None` if the store can't
        be asked."""
        decision = None
        if self._give_back(purse):
            now_us = self._clock.monotonic_us()
            amount = purse.wish(cost, now_us)
            while True:
                decision = self._asked(purse.charged(amount))
                if decision is None or decision.allowed or amount == cost:
                    break
                amount = less(decision, amount, cost)
        if decision is None:
            purse.missed()
            return None
        if decision.allowed and amount > cost:
            self._outage.leased(decision.plan, amount)
        assert self._purses is not None
        return self._purses.turnstile.run(purse.took, amount, cost, decision, now_us)

    def _give_back(self, purse: Purse, *, everything: bool = False) -> bool:
        """Gives back what a purse may not keep; false if the store can't be asked."""
        assert self._purses is not None
        tokens = self._purses.turnstile.run(purse.leftover, self._clock.monotonic_us(), everything=everything)
        if tokens:
            try:
                self._ask("refund", lambda: self._store.refund(purse.charged(tokens)))
            except StoreError as error:
                log.info("%d leased tokens could not be given back, they stay spent: %s", tokens, error)
                return not isinstance(error, StoreUnavailable)
        return True

    def _maybe_refresh(self) -> None:
        due = self._refresh_at_us
        if due is not None and self._clock.monotonic_us() >= due:
            self._plan_refresh()
            self._loader.load_soon()

    def _load_plans(self) -> None:
        assert self._registry is not None
        self._take(self._registry.load())
