# Generated from limits/handles.py by scripts/generate_blocking.py. Do not edit.
"""What a limiter hands out: a reservation to settle, held places to leave."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from headgate.errors import InvalidInput, NotFound, StoreError
from headgate.limits.model import Charge, Concurrency, Decision, Reason
from headgate.limits.ports import Hold, Settlement
from headgate.limits.reservations import check_actual, full_cost_first
from headgate.limits.wait_queues import MAX_PAUSE_SECONDS, beyond_deadline, deadline_of, timeout_denial

log = logging.getLogger("headgate.limits")

RENEWALS_PER_LIFE = 3
"""How often a place is renewed before it would expire: two renewals may fail."""


def decide_in_turn(
    limiter: Any, request: tuple[str, str | Sequence[str], int], timeout: float | None, hold: Hold | None = None
) -> Decision:
    """The decision on a request as soon as there is room, first come, first served; a denial after a timeout of
    `timeout` seconds. With a hold, its cost is reserved."""
    key, _, cost = request
    chain = limiter._chain(*request)
    deadline_us = deadline_of(timeout, limiter._clock.monotonic_us())
    name = (key, *(charge.rule.plan for charge in chain))
    with limiter._wait_queues.wait_turn(name, deadline_us, limiter._clock) as first:
        if not first:
            return timeout_denial(limiter._decide(chain, spend=False))
        while True:
            # Rebuilt each time: plans may have changed meanwhile.
            chain = limiter._chain(*request)
            if hold is None:
                decision: Decision = limiter._acquire_with_lease(chain)
            else:
                decision = limiter._decide(full_cost_first(chain, cost), hold=hold)
            if decision.allowed or beyond_deadline(decision, deadline_us, limiter._clock):
                return decision
            limiter._pause(min(decision.retry_after, MAX_PAUSE_SECONDS))


class Reservation:
    """A cost reserved under an id. True if it was allowed.

        with limiter.reserve("user:1", "tokens", 500) as reservation:
            reservation.settle(call_model())

    As a context manager it is cancelled when the block raises, and stays as reserved when it was not settled.
    """

    def __init__(self, id: str, decision: Decision, settle: Callable[[int], bool]) -> None:
        self._settle = settle
        self._open = decision.allowed and not decision.degraded
        self.id = id
        self.decision = decision

    def __bool__(self) -> bool:
        return self.decision.allowed

    def settle(self, actual: int) -> bool:
        """Corrects the cost to `actual`. False if there was nothing to correct: settled before, denied, or decided by
        a failure policy. Raises what `Limiter.settle` does."""
        check_actual(actual)
        if not self._open:
            return False
        applied = self._settle(actual)
        self._open = False
        return applied

    def cancel(self) -> bool:
        """Gives back all of the cost that still counts. The id can be reserved again."""
        return self.settle(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            # A cost that can't be given back stays spent; the block's own error is raised.
            with suppress(NotFound, StoreError):
                self.cancel()


class HeldPlaces:
    """Places of concurrency limits, held while a block runs. Made by `hold`; it is entered once.

    with limiter.hold("user:1", "exports") as decision: ...
    """

    def __init__(self, limiter: Any, key: str, plans: str | Sequence[str], cost: int) -> None:
        self._limiter = limiter
        self._request = (key, plans, cost)
        self._id = uuid4().hex
        self._places: list[Charge] = []
        self._ttl_us = 0
        self._store: Any = None
        """Where the places are held; `None` if none are."""
        self._renewal: Any = None

    def __enter__(self) -> Decision:
        limiter = self._limiter
        chain = limiter._chain(*self._request)
        self._places = [charge for charge in chain if isinstance(charge.rule.spec, Concurrency)]
        if not self._places:
            raise InvalidInput("plans", "none of them is a concurrency limit; use acquire")
        expire_us = [charge.rule.spec.life_us for charge in self._places]
        self._ttl_us = 2 * max(expire_us)
        hold = Hold(self._id, self._ttl_us, places=True)
        decision: Decision = limiter._health.observe(limiter._decide(chain, hold=hold))
        if decision.allowed and decision.reason in (Reason.OK, Reason.FALLBACK):
            self._store = limiter._store if decision.reason is Reason.OK else limiter._fallback
            self._renewal = limiter._renewals.start(self._renew, min(expire_us) / 1_000_000 / RENEWALS_PER_LIFE)
        return decision

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._store is None:
            return
        self._renewal.cancel()
        self._leave()

    def _leave(self) -> None:
        try:
            self._store.settle(self._id, self._places, 0)
        except StoreError as error:
            log.info("a place of plan %r is free when it expires: %s", self._places[0].rule.owner, error)

    def _renew(self) -> None:
        """Renews the places. If they were lost, because the store lost its data or renewals failed for too long, it
        takes them again if there is room."""
        store = self._store
        try:
            renewal = store.renew(self._id, self._places, self._ttl_us)
            if renewal is Settlement.APPLIED:
                return
            retake = store.decide(self._places, hold=Hold(self._id, self._ttl_us, places=True))
            decision: Decision = retake
        except StoreError as error:
            log.info("a place of plan %r was not renewed, which is tried again: %s", self._places[0].rule.owner, error)
            return
        if not decision.allowed:
            log.warning("a place of plan %r was lost while its call goes on: it had expired", decision.plan)
