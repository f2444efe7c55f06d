"""Calls to other systems, as all processes have reported them to the store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Gauge

from paceline.downstream.directory import Downstreams, KnownDownstream
from paceline.errors import PacelineError

log = logging.getLogger(__name__)

WATCH_SECONDS = 10.0
MAX_DOWNSTREAMS = 100
"""With metrics of their own; the first by name."""
MEANINGS = {
    "downstream_calls": "Calls of a downstream that have left and ended, in all processes.",
    "downstream_calls_throttled": "Calls that the downstream refused for their rate (429).",
    "downstream_calls_failed": "Calls that the downstream answered with a server's error.",
    "downstream_calls_unknown": "Calls that ended without an answer.",
    "downstream_waited_seconds": "How long calls have waited for their turn, in sum.",
    "downstream_calls_waiting": "Calls that wait for their turn, in all processes.",
    "downstream_rate": "The hard rate per second: the operator's, or the program's own.",
    "downstream_effective_rate": "Calls per second that may leave now.",
    "downstream_paused": "1 if an operator has paused the downstream.",
    "downstream_shared_breaker_open": "1 if the downstream's breaker is open.",
}


class DownstreamsMetrics:
    """Gauges of every downstream: each process of the service reads the same numbers from the store."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._gauges = {
            name: Gauge(name, meaning, ["downstream"], registry=registry, multiprocess_mode="mostrecent")
            for name, meaning in MEANINGS.items()
        }

    def measured(self, downstreams: Sequence[KnownDownstream]) -> None:
        """Sets the gauges."""
        for known in downstreams[:MAX_DOWNSTREAMS]:
            state, totals = known.state, known.state.totals
            effective = known.effective
            values = (
                totals.calls,
                totals.throttled,
                totals.failed,
                totals.unknown,
                totals.waited_us / 1e6,
                known.waiting,
                known.rate_per_second,
                effective,
                state.paused is not None,
                state.breaker is not None,
            )
            for gauge, value in zip(self._gauges.values(), values, strict=True):
                if value is not None:
                    gauge.labels(known.name).set(float(value))


async def watch(registry: CollectorRegistry, downstreams: Downstreams) -> None:
    """Measures periodically, until it is cancelled."""
    metrics = DownstreamsMetrics(registry)
    while True:
        try:
            metrics.measured((await downstreams.list()).known)
        except PacelineError as error:
            log.info("downstreams can't be measured: %s", type(error).__name__)
        await asyncio.sleep(WATCH_SECONDS)
