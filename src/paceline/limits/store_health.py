"""Store health: the circuit breaker, the failure policy of each plan while the store is unavailable, observing both."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from time import perf_counter

from paceline.circuit_breaker import Breaker, BreakerPolicy, BreakerState
from paceline.clock import Clock
from paceline.errors import StoreUnavailable
from paceline.limits.model import Charge, Decision, OnError, Reason, policy
from paceline.limits.observing import QuietObserver
from paceline.locks import Lock

log = logging.getLogger("paceline.limits")

DEFAULT_DEADLINE = 0.5
"""Seconds a call to the store may take, unless the limiter or the store's URL says otherwise."""
UNKNOWN_WAIT_US = 1_000_000
"""The `retry_after` of a denial by policy when nothing better is known."""

LOG_EVERY_US = 10_000_000
"""The shortest time between two log entries about decisions that were let through."""


class StoreHealth:
    """Whether a limiter's store can be called, and the decision by policy while it can't.

    A failed call may or may not have counted. It is decided by policy, never retried.
    """

    def __init__(
        self,
        on_error: OnError | str,
        breaker: BreakerPolicy | None,
        observer: QuietObserver | None,
        clock: Clock,
    ) -> None:
        self._default = policy(on_error) or OnError.OPEN
        self._breaker = Breaker(breaker)
        self._observer = observer
        self._clock = clock
        self._let_through = 0
        """Decisions by `on_error=open` that are not logged yet."""
        self._logged_us: int | None = None
        self._count_lock = Lock()
        self.shadow_denials: Counter[str] = Counter()
        """How often each shadow plan would have denied."""

    @property
    def breaker_state(self) -> str:
        """`closed`, `open` or `half_open`."""
        return self._breaker.state.value

    def blocks(self) -> bool:
        """Whether the circuit breaker forbids a call now."""
        before = self._breaker.state
        if before is BreakerState.CLOSED:
            return False
        allowed = self._breaker.allows(self._clock.monotonic_us())
        if self._observer is not None and self._breaker.state is not before:
            self._observer.breaker_moved(self._breaker.state.value)
        return not allowed

    def record_success(self, operation: str, started: float, failed: bool = False) -> None:
        """Records that the store answered."""
        if self._let_through:
            self._log_let_through()
        if self._breaker.record_success():
            log.warning("the limit store answers again")
            if self._observer is not None:
                self._observer.breaker_moved(self._breaker.state.value)
        if self._observer is not None:
            self._observer.store_called(operation, perf_counter() - started, failed)

    def record_failure(self, operation: str, started: float, error: StoreUnavailable) -> None:
        """Records that the store could not be reached, or not within the deadline."""
        if self._breaker.record_failure(self._clock.monotonic_us()):
            log.warning("the limit store can't be reached, plans' on_error decides: %s", error)
            if self._observer is not None:
                self._observer.breaker_moved(self._breaker.state.value)
        if self._observer is not None:
            self._observer.store_called(operation, perf_counter() - started, True)

    def record_refusal(self, operation: str, started: float) -> None:
        """Records that the store answered with an error. That ends an outage: the store can be reached."""
        self.record_success(operation, started, failed=True)

    def fallback_chain(self, chain: Sequence[Charge]) -> list[Charge]:
        """The charges for the fallback store; none if some plan is `closed`, or no plan is `fallback`."""
        policies = [charge.rule.on_error or self._default for charge in chain if not charge.rule.shadow]
        if OnError.CLOSED in policies:
            return []
        return [charge for charge in chain if (charge.rule.on_error or self._default) is OnError.FALLBACK]

    def policy_decision(self, chain: Sequence[Charge]) -> Decision:
        """The decision without any store: denied if any plan is `closed` (or its fallback failed too), else allowed."""
        binding = [charge for charge in chain if not charge.rule.shadow]
        for charge in binding:
            if (charge.rule.on_error or self._default) is not OnError.OPEN:
                wait = self._breaker.pause_left_us(self._clock.monotonic_us()) or UNKNOWN_WAIT_US
                rule = charge.rule
                return Decision.of(False, 0, rule.size, wait, wait, rule.owner, Reason.FAIL_CLOSED, True)
        rule = (binding or chain)[0].rule
        return Decision.of(True, rule.size, rule.size, 0, 0, rule.owner, Reason.FAIL_OPEN, True)

    @staticmethod
    def mark_fallback(decision: Decision) -> Decision:
        """A fallback store's decision, marked as one."""
        if decision.reason is Reason.EXCEEDS_CAPACITY:
            return decision.but(degraded=True)
        return decision.but(reason=Reason.FALLBACK, degraded=True)

    def record_lease(self, plan: str, tokens: int) -> None:
        """Reports a new lease to the observer."""
        if self._observer is not None:
            self._observer.leased(plan, tokens)

    def observe(self, decision: Decision) -> Decision:
        """Counts a decision, reports it to the observer and returns it."""
        if decision.chain or decision.degraded:
            self._count(decision)
        if self._observer is not None:
            self._observer.decided(decision)
        return decision

    def observe_many(self, decisions: list[Decision]) -> list[Decision]:
        """`observe` for each decision of a batch; the observer gets them in one call."""
        for decision in decisions:
            if decision.chain or decision.degraded:
                self._count(decision)
        if self._observer is not None:
            self._observer.decided_many(decisions)
        return decisions

    def close(self) -> None:
        """Logs the decisions that were let through and are not logged yet."""
        if self._let_through:
            self._log_let_through()

    def _count(self, decision: Decision) -> None:
        """Counts what a shadow plan would have denied, and what was let through."""
        for state in decision.chain:
            if state.shadow and not state.allowed:
                self.shadow_denials[state.plan] += 1
        if decision.reason is Reason.FAIL_OPEN:
            self._count_let_through(decision.plan)

    def _count_let_through(self, plan: str) -> None:
        """Counts a decision that was let through. The count is logged periodically: an outage has thousands of them."""
        with self._count_lock:
            self._let_through += 1
            due = self._logged_us is None or self._clock.monotonic_us() - self._logged_us >= LOG_EVERY_US
        if due:
            self._log_let_through(plan)

    def _log_let_through(self, plan: str | None = None) -> None:
        with self._count_lock:
            count, self._let_through = self._let_through, 0
            now_us, before_us = self._clock.monotonic_us(), self._logged_us
            self._logged_us = now_us
        if count:
            log.warning(
                "%d decision%s let through by on_error=open%s%s: the limit store can't be reached",
                count,
                "" if count == 1 else "s",
                "" if before_us is None else f" in the last {(now_us - before_us) / 1_000_000:.0f} s",
                "" if plan is None else f" (plan {plan!r})",
            )
