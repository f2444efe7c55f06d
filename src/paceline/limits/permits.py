"""Permits of a rate: each counts from when its call began, not from when the store admitted it.

A permit is a place of a `Concurrency` limit that nobody gives back: it is free when it expires. After its call has
begun it is renewed, so that it expires one span later than that, however long the store's answer was on its way. So no
span sees more calls begin than there are places, over all processes that share the store.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from uuid import uuid4

from paceline.errors import InvalidInput, StoreError
from paceline.limits.limiter import AsyncLimiter
from paceline.limits.model import Charge, Concurrency, Decision
from paceline.limits.ports import Hold, Settlement

log = logging.getLogger("paceline.limits")


class Permit:
    """One call of a rate, if the decision allows it."""

    def __init__(self, limiter: AsyncLimiter, hold: Hold, places: Sequence[Charge], decision: Decision) -> None:
        self._limiter = limiter
        self._hold = hold
        self._places = places
        self.decision = decision

    @classmethod
    async def take(cls, limiter: AsyncLimiter, key: str, plan: str) -> Permit:
        """A permit by the store's decision, or by the plan's `on_error`.

        Raises:
            InvalidInput: the plan has no concurrency limit. Besides, what `AsyncLimiter.acquire` raises.
        """
        chain = await limiter._chain(key, plan, 1)
        spans = [charge.rule.spec.life_us for charge in chain if isinstance(charge.rule.spec, Concurrency)]
        if not spans:
            raise InvalidInput("plan", f"{plan!r} is no concurrency limit")
        hold = Hold(uuid4().hex, 2 * max(spans), places=True)
        decision = limiter._health.observe(await limiter._decide(chain, hold=hold))
        return cls(limiter, hold, [charge for charge in chain if isinstance(charge.rule.spec, Concurrency)], decision)

    async def begun(self) -> None:
        """To be called after the call has begun: it counts from now. If the store can't be reached, it counts from when
        it was admitted."""
        limiter = self._limiter
        try:
            renewal = limiter._store.renew(self._hold.id, self._places, self._hold.ttl_us)
            if await limiter._with_deadline(limiter._store, renewal) is not Settlement.APPLIED:
                log.warning("a call of plan %r began after its permit had expired", self._places[0].rule.owner)
        except StoreError as error:
            log.info("a permit of plan %r counts from its admission: %s", self._places[0].rule.owner, error)
