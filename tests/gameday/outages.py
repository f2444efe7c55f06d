"""PostgreSQL and Redis are down, slow, or full."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import grpc
import psycopg

from paceline.testing import PostgresServer, RedisServer
from paceline.testing.servers.group import ServerGroup
from paceline.testing.servers.server import Server
from tests.faults.sms_provider import http_provider
from tests.gameday.drill import Drill, GameDay, repeating
from tests.gameday.processes import ports, serving
from tests.gameday.prometheus import Prometheus, faster, shipped_rules
from tests.integration.test_envoy_service import Caller

LATER = "2031-03-01T16:00:00Z"
ENVOY = "domain: edge\ndescriptors:\n  - key: user\n    rate_limit: {unit: second, requests_per_unit: 1000}\n"
PAYMENT = {
    "amount": "12.34",
    "currency": "EUR",
    "payer": {"name": "Ada", "iban": "DE89370400440532013000"},
    "payee": {"name": "Bob", "iban": "GB29NWBK60161331926819"},
}
LINE = """
import asyncio
from pathlib import Path

from paceline_sms import Accepted


class Line:
    async def send(self, message):
        return Accepted(f"line-{message.id}")

    async def receipts(self):
        while not Path("line-is-broken").exists():
            await asyncio.sleep(0.1)
        raise RuntimeError("it can't go on")
        yield
"""
"""A provider of the operator's own, whose code fails while a file is there."""
CALLERS = 12
"""Callers at once while the database is slow: each waits most of the time."""


@asynccontextmanager
async def outages(folder: Path) -> AsyncIterator[GameDay]:
    """One service on PostgreSQL and Redis."""
    (folder / "envoy.yml").write_text(ENVOY)
    (folder / "line.py").write_text(LINE)
    async with AsyncExitStack() as stack:
        postgres, redis = PostgresServer(), RedisServer(durable=False)
        for server in (postgres, redis):
            await asyncio.to_thread(server.start)
            stack.push_async_callback(asyncio.to_thread, server.close)
        provider = await stack.enter_async_context(http_provider())
        port, grpc_port = await stack.enter_async_context(ports(2))
        variables = {
            "PACELINE_DATABASE_URL": postgres.url,
            "PACELINE_REDIS_URL": redis.url,
            "PACELINE_GRPC_PORT": str(grpc_port),
            "PACELINE_ENVOY_CONFIG": "envoy.yml",
            "PACELINE_SMS_WEBHOOK_URL": provider.url,
            "PACELINE_SMS_PROVIDERS": "webhook,line=line:Line",
            "PACELINE_SMS_PROVIDER_RATES": "webhook=100",
            "PACELINE_HTTP_SHUTDOWN_SECONDS": "5",
        }
        _, http = await stack.enter_async_context(serving(folder, port, **variables))
        plan = {"algorithm": "token_bucket", "capacity": 100_000, "perSecond": 10_000}
        (await http.put("/admin/plans/wide", json=plan)).raise_for_status()
        (await http.post("/api/config", json={"userId": 1, "rateLimit": 10_000, "timeWindow": 60})).raise_for_status()
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port}"))
        envoy, numbers = Caller(channel), itertools.count()

        async def book() -> None:
            await http.post("/api/v1/slots", json={"eventId": f"event-{next(numbers)}", "requestedTime": LATER})

        async def pay(at: str = LATER) -> None:
            body = PAYMENT | {"paymentId": f"payment-{next(numbers)}", "executeAt": at}
            await http.post("/api/v1/payments", json=body)

        async def pay_now() -> None:
            await pay(datetime.now(UTC).isoformat(timespec="milliseconds"))

        async def acquire() -> None:
            await http.post("/api/v1/limits/acquire", json={"key": "ada", "plans": ["wide"]})

        async def ask_for_envoy() -> None:
            try:
                await envoy.ask("user=ada")
            except grpc.aio.AioRpcError:
                return

        async def text() -> None:
            await http.post("/api/send", json={"userId": 1, "message": "hello"})

        # What callers do all day, whatever happens.
        for act, every in ((book, 0.5), (pay, 1.0), (acquire, 0.25), (ask_for_envoy, 0.5), (text, 1.0)):
            await stack.enter_async_context(repeating(act, every))

        @asynccontextmanager
        async def slow_database() -> AsyncIterator[None]:
            async with AsyncExitStack() as callers:
                for _ in range(CALLERS):
                    await callers.enter_async_context(repeating(book, 0.05))
                await callers.enter_async_context(repeating(pay_now, 0.05))
                await callers.enter_async_context(repeating(lambda: _hiccup(postgres), 0.2))
                yield

        @asynccontextmanager
        async def refusing_redis() -> AsyncIterator[None]:
            """Somebody takes paceline's user a right that it needs."""
            with redis.client() as client:
                client.execute_command("ACL", "SETUSER", "default", "-@scripting")
                try:
                    yield
                finally:
                    client.execute_command("ACL", "SETUSER", "default", "+@scripting")

        @asynccontextmanager
        async def broken_line() -> AsyncIterator[None]:
            broken = folder / "line-is-broken"
            broken.touch()
            try:
                yield
            finally:
                broken.unlink()

        prometheus = Prometheus(faster(shipped_rules()), {"paceline": [f"127.0.0.1:{port}"]})
        await asyncio.to_thread(prometheus.start)
        stack.callback(prometheus.close)
        yield GameDay(
            prometheus,
            targets=1,
            rounds=[
                [
                    Drill(
                        "Redis refuses commands",
                        ["LimiterStoreFailing", "EnvoyUndecided"],
                        refusing_redis,
                    ),
                    Drill("a provider's own code fails", ["MessageReaderRestarts"], broken_line),
                ],
                [
                    Drill(
                        "PostgreSQL is stopped",
                        [
                            "DatabaseUnavailable",
                            "SlotAssignmentsFailing",
                            "PaymentIntakeFailing",
                            "AvailabilityBudgetBurnsFast",
                            "AvailabilityBudgetBurnsSlow",
                        ],
                        lambda: stopped(postgres),
                    ),
                ],
                [
                    Drill(
                        "PostgreSQL takes no writes",
                        [
                            "DatabaseUnavailable",
                            "DatabaseTakesNoWrites",
                            "SlotAssignmentsFailing",
                            "PaymentIntakeFailing",
                        ],
                        lambda: read_only(postgres),
                    ),
                ],
                [
                    Drill(
                        "PostgreSQL is slow",
                        [
                            "SlotAssignmentSlow",
                            "DispatchSwitchUnread",
                            "LatencyBudgetBurnsFast",
                            "LatencyBudgetBurnsSlow",
                        ],
                        slow_database,
                    ),
                    Drill("Redis is stopped", ["LimiterDegraded", "DependencyUnavailable"], lambda: stopped(redis)),
                ],
            ],
        )


@asynccontextmanager
async def stopped(server: Server | ServerGroup) -> AsyncIterator[None]:
    """Inside, the server is down; afterwards it is back with its data."""
    await asyncio.to_thread(server.stop)
    try:
        yield
    finally:
        await asyncio.to_thread(server.start)


@asynccontextmanager
async def read_only(server: PostgresServer) -> AsyncIterator[None]:
    """Inside, an operator has made the server read-only."""

    def alter(setting: str) -> None:
        with psycopg.connect(server.url, autocommit=True) as operator:
            operator.execute("SET default_transaction_read_only = off")
            operator.execute(f"ALTER SYSTEM {setting}")
            operator.execute("SELECT pg_reload_conf()")

    await asyncio.to_thread(alter, "SET default_transaction_read_only = on")
    try:
        yield
    finally:
        await asyncio.to_thread(alter, "RESET default_transaction_read_only")


async def _hiccup(server: Server) -> None:
    """Every statement of a second and a half waits until its end."""
    await asyncio.to_thread(server.pause)
    try:
        await asyncio.sleep(1.5)
    finally:
        await asyncio.to_thread(server.resume)
