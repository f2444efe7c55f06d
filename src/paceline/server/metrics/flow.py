"""The flow of each queue, as every process reads it from the database."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge

from paceline.server.shapes.flow import FlowNow

MINUTE_LINES = ("arrived", "begun", "done", "failed")


class FlowMetrics:
    """Gauges of every queue's flow."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, meaning: str, *labels: str) -> Gauge:
            return Gauge(name, meaning, ["item_type", *labels], registry=registry, multiprocess_mode="mostrecent")

        self._items = gauge(
            "dispatch_flow_items",
            "Items that arrived, began, were done, and attempts that failed, in the last minute.",
            "what",
        )
        self._peak = gauge(
            "dispatch_peak_per_second", "The most items that began in a sliding second of the last quarter of an hour."
        )
        self._limit = gauge(
            "dispatch_limit_per_second",
            "How many items may begin in a second, over all processes, where that is known.",
        )

    def measured(self, flow: FlowNow) -> None:
        """Sets the gauges of a queue."""
        for what in MINUTE_LINES:
            self._items.labels(flow.name, what).set(getattr(flow, what))
        self._peak.labels(flow.name).set(flow.peak)
        if flow.limit is not None:
            self._limit.labels(flow.name).set(flow.limit)
