"""`PaymentMeter`: measures payments and the downstream's breaker periodically, for metrics."""

from __future__ import annotations

from typing import Protocol

from paceline.dispatch.meter import measure_periodically
from paceline.downstream.ports import BreakerStore, DownstreamObserver
from paceline_payments.ports import PaymentLoad, PaymentStore

EVERY = 30.0
"""Seconds between two measurements: each counts the whole table."""


class PaymentObserver(Protocol):
    """Receives the measurements. Must be quick and must not raise."""

    def measured(self, load: PaymentLoad, tps: int) -> None:
        """The payments per status, and the calls per second that are allowed."""
        ...


class PaymentMeter:
    """Every process measures the same payments; the newest measurement counts."""

    def __init__(
        self,
        store: PaymentStore,
        breaker: BreakerStore,
        tps: int,
        observer: PaymentObserver,
        downstream: DownstreamObserver,
    ) -> None:
        self._store = store
        self._breaker = breaker
        self._tps = tps
        self._observer = observer
        self._downstream = downstream

    async def measure(self) -> None:
        """One measurement."""
        self._observer.measured(await self._store.measure(), self._tps)
        self._downstream.breaker_moved(await self._breaker.read() is not None)

    async def run(self) -> None:
        """Measures until it is cancelled."""
        await measure_periodically(self.measure, "payments", every=EVERY)
