"""Kafka, one of its brokers, and Temporal are down; and records in Kafka wait, because the SMS provider hangs."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from paceline.testing import PostgresServer, TemporalServer
from paceline.testing.servers.kafka.cluster import KafkaCluster
from tests.faults.sms_provider import http_provider
from tests.gameday.drill import Drill, GameDay, repeating
from tests.gameday.outages import LATER, PAYMENT, stopped
from tests.gameday.processes import ports, serving, working
from tests.gameday.prometheus import Prometheus, faster, shipped_rules

USER = 1
BURST = 150
"""Messages at once: more than may wait without an alert."""
TIMEOUT = 180.0
"""Kafka takes a while to come back: two runs of Java for each broker."""


@asynccontextmanager
async def brokers(folder: Path) -> AsyncIterator[GameDay]:
    """A service and a worker on PostgreSQL, Kafka and Temporal."""
    async with AsyncExitStack() as stack:
        postgres, kafka, temporal = PostgresServer(), KafkaCluster(), TemporalServer()
        for server in (postgres, kafka, temporal):
            await asyncio.to_thread(server.start)
            stack.push_async_callback(asyncio.to_thread, server.close)
        provider = await stack.enter_async_context(http_provider())
        port, worker = await stack.enter_async_context(ports(2))
        variables = {
            "PACELINE_DATABASE_URL": postgres.url,
            "PACELINE_KAFKA_BOOTSTRAP": kafka.bootstrap,
            "PACELINE_TEMPORAL_ADDRESS": temporal.address,
            "PACELINE_SMS_WEBHOOK_URL": provider.url,
            "PACELINE_HTTP_SHUTDOWN_SECONDS": "5",
        }
        _, http = await stack.enter_async_context(serving(folder, port, **variables))
        await stack.enter_async_context(working(folder, "worker", worker, "all", **variables))
        quota = {"userId": USER, "rateLimit": 1_000_000, "timeWindow": 60}
        (await http.post("/api/config", json=quota)).raise_for_status()
        numbers = itertools.count()

        async def pay() -> None:
            body = PAYMENT | {"paymentId": f"payment-{next(numbers)}", "executeAt": LATER}
            await http.post("/api/v1/payments", json=body)

        async def text_many() -> None:
            messages = [{"userId": USER, "message": "hello"} for _ in range(BURST)]
            await http.post("/api/send/batch", json={"messages": messages})

        @asynccontextmanager
        async def hanging_provider() -> AsyncIterator[None]:
            provider.hangs.add(USER)
            try:
                async with repeating(text_many, 2.0):
                    yield
            finally:
                provider.hangs.clear()

        await stack.enter_async_context(repeating(pay, 1.0))
        targets = {"paceline": [f"127.0.0.1:{port}"], "paceline-worker": [f"127.0.0.1:{worker}"]}
        prometheus = Prometheus(faster(shipped_rules()), targets)
        await asyncio.to_thread(prometheus.start)
        stack.callback(prometheus.close)
        yield GameDay(
            prometheus,
            targets=2,
            timeout=TIMEOUT,
            rounds=[
                [
                    Drill("the SMS provider hangs", ["KafkaLagGrows"], hanging_provider),
                    Drill(
                        "Temporal is stopped",
                        ["DependencyUnavailable", "PaymentIntakeFailing"],
                        lambda: stopped(temporal),
                    ),
                ],
                [Drill("a broker of three is stopped", ["KafkaUnderReplicated"], lambda: stopped(kafka.brokers[2]))],
                [Drill("Kafka is stopped", ["DependencyUnavailable"], lambda: stopped(kafka))],
            ],
        )
