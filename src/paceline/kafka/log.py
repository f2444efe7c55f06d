"""`KafkaLog`: the `MessageLog` port over a Kafka cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from paceline.circuit_breaker import Breaker, BreakerPolicy
from paceline.clock import Clock, SystemClock
from paceline.errors import BrokerUnavailable, PacelineError
from paceline.kafka.consumer import KafkaSource
from paceline.kafka.producer import KafkaProducer
from paceline.kafka.topics import ensure_topics
from paceline.messaging import Record

DELIVERY_SECONDS = 3.0
"""How long a record may take to be acknowledged before its sender gets `StoreUnavailable`."""
_BREAKER = BreakerPolicy(failures=3, first_pause=0.5, longest_pause=2.0)


class KafkaLog:
    """Topics on a cluster. It connects lazily, so that a process can start while Kafka is down."""

    def __init__(
        self,
        bootstrap: str,
        *,
        topics: Collection[str],
        delivery_seconds: float = DELIVERY_SECONDS,
        settings: Mapping[str, Any] | None = None,
        clock: Clock | None = None,
        report_lag: Callable[[str, str, int], None] | None = None,
        report_replicas: Callable[[Mapping[str, int]], None] | None = None,
    ) -> None:
        self._report_lag = report_lag
        """Called with a topic, a group and this process's lag: the records that it has yet to process."""
        self._report_replicas = report_replicas
        """Called at each `ping` that is answered, with the number of under-replicated partitions of each topic."""
        self._bootstrap = bootstrap
        self._settings = dict(settings or {})
        self._topics = set(topics)
        self._seconds = delivery_seconds
        self._ready = asyncio.Lock()
        self._producer = KafkaProducer(bootstrap, delivery_seconds=delivery_seconds, settings=self._settings)
        self._breaker = Breaker(_BREAKER)
        self._clock = clock or SystemClock()
        self._succeeded_us = -1
        """When a record was last acknowledged."""

    async def publish(self, records: Sequence[Record]) -> list[PacelineError | None]:
        began_us = self._clock.monotonic_us()
        if not self._breaker.allows(began_us):
            return [BrokerUnavailable("Kafka did not answer a moment ago")] * len(records)
        try:
            await self._ensure_topics()
            outcomes = await self._producer.publish(records)
        except BrokerUnavailable as error:
            outcomes = [error] * len(records)
        now_us = self._clock.monotonic_us()
        if not all(isinstance(outcome, BrokerUnavailable) for outcome in outcomes):
            self._succeeded_us = now_us
            self._breaker.record_success()
        elif self._succeeded_us < began_us:
            # If any record was acknowledged meanwhile, Kafka is up: a partition has no leader.
            self._breaker.record_failure(now_us)
        return outcomes

    async def read(self, topic: str, group: str) -> KafkaSource:
        self._topics.add(topic)
        await self._ensure_topics()
        report_lag = None if self._report_lag is None else partial(self._report_lag, topic, group)
        return KafkaSource(self._bootstrap, topic, group, self._settings, report_lag)

    async def ping(self) -> None:
        under_replicated = await self._producer.ping()
        if self._report_replicas is not None:
            self._report_replicas(under_replicated)

    async def close(self) -> None:
        await self._producer.close()

    async def _ensure_topics(self) -> None:
        if not self._topics:
            return
        async with self._ready:
            missing = set(self._topics)
            if missing:
                await ensure_topics(self._bootstrap, missing, self._settings, seconds=self._seconds)
                self._topics -= missing
