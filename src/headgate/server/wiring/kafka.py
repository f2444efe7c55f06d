"""What the applications' readers of Kafka have in common: the gauge of how far they are behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from headgate.server.metrics.kafka import KafkaMetrics

_metrics: WeakKeyDictionary[CollectorRegistry, KafkaMetrics] = WeakKeyDictionary()


def lag_observer(registry: CollectorRegistry | None) -> Callable[[str, str, int], None] | None:
    """Sets the gauge of a topic and group in `registry`, which all readers of a process share."""
    if registry is None:
        return None
    # Imported here: metrics come with the server, and the library works without it.
    from headgate.server.metrics.kafka import KafkaMetrics

    if registry not in _metrics:
        _metrics[registry] = KafkaMetrics(registry)
    return _metrics[registry].lags
