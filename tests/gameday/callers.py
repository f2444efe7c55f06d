"""The bank and the SMS provider refuse, are slow or down; callers guess tokens and exceed their limits."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx2 as httpx

from paceline.testing import eventually
from tests.faults.bank import GOOD, Bank, Reply
from tests.faults.sms_provider import http_provider
from tests.gameday.drill import Drill, GameDay, repeating
from tests.gameday.outages import ENVOY, PAYMENT
from tests.gameday.processes import ports, serving
from tests.gameday.prometheus import Prometheus, faster, shipped_rules

TOKENS = {"PACELINE_API_TOKEN": "an-api-token-of-the-day", "PACELINE_ADMIN_TOKEN": "an-admin-token-of-the-day"}
TPS = 4
LATENCY = 0.2
"""Of the bank, in seconds: a permit is taken for a second and for as long as its call lasts."""
REPLIES = {
    "silent": Reply(executes=True, silent=True),
    "refused": Reply(422, {"reason": "no such account"}),
    "slow": Reply(delay=3.0),
}
"""The bank's behaviour by prefix of the payment's id."""


class Town:
    """One service on SQLite, and those around it."""

    def __init__(self, http: httpx.AsyncClient, bank: Bank) -> None:
        self.http = http
        self.bank = bank
        self.numbers = itertools.count()

    async def pay(self, kind: str = "plain") -> str:
        """Submits a payment that is due now."""
        payment_id = f"{kind}-{next(self.numbers)}"
        due = datetime.now(UTC).isoformat(timespec="milliseconds")
        await self.http.post("/api/v1/payments", json=PAYMENT | {"paymentId": payment_id, "executeAt": due})
        return payment_id

    async def insist(self, method: str, path: str, body: dict[str, object]) -> None:
        """What an operator does: again, if the service was too busy to do it."""

        async def done() -> bool:
            return (await self.http.request(method, path, json=body)).status_code < 500

        await eventually(done, within=60, every=0.5)

    async def set_config(self, name: str, **policy: object) -> None:
        await self.insist("POST", "/admin/rate-limit/config", {"configName": name, **policy})

    async def book(self, config: str, requested: str | None = None) -> None:
        body = {"eventId": f"{config}-{next(self.numbers)}", "configName": config}
        body["requestedTime"] = requested or datetime.now(UTC).isoformat(timespec="milliseconds")
        await self.http.post("/api/v1/slots", json=body)

    # -- faults ------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def unanswered_payments(self) -> AsyncIterator[None]:
        """The bank executes, and answers neither calls nor inquiries; at last it does."""
        ids = [await self.pay("silent") for _ in range(2)]
        self.bank.inquiries |= dict.fromkeys(ids, Reply(503))
        async with repeating(lambda: self._silent(ids), 3.0):
            yield
        self.bank.inquiries.clear()
        for payment_id in ids:
            await self.insist("POST", f"/api/v1/payments/{payment_id}/retry", {})

    async def _silent(self, ids: list[str]) -> None:
        ids.append(await self.pay("silent"))
        self.bank.inquiries[ids[-1]] = Reply(503)

    @asynccontextmanager
    async def wrong_login(self) -> AsyncIterator[None]:
        self.bank.default = lambda key: Reply(401, {"reason": "who are you?"})
        async with repeating(self.pay, 1.0):
            yield
        self.bank.default = usual

    @asynccontextmanager
    async def thrown_switch(self) -> AsyncIterator[None]:
        await self.insist("PATCH", "/admin/dispatch/PAYMENT", {"enabled": False})
        async with repeating(self.pay, 1.0):
            yield
        await self.insist("PATCH", "/admin/dispatch/PAYMENT", {"enabled": True})

    @asynccontextmanager
    async def rush(self) -> AsyncIterator[None]:
        """Many more payments than the bank takes, all due at once."""
        await asyncio.gather(*(self.pay() for _ in range(TPS * 15)))
        async with repeating(lambda: asyncio.gather(*(self.pay() for _ in range(TPS))), 1.0):
            yield

    @asynccontextmanager
    async def narrow_horizon(self) -> AsyncIterator[None]:
        await self.set_config("narrow", maxPerWindow=1, windowSize="PT10S", maxDelay="PT20S")
        async with repeating(lambda: self.book("narrow"), 0.1):
            yield
        await self.set_config("narrow", maxPerWindow=1000)

    @asynccontextmanager
    async def crowded_windows(self) -> AsyncIterator[None]:
        await self.set_config("deep", maxPerWindow=1, windowSize="PT0.01S")
        soon = datetime.now(UTC).isoformat(timespec="milliseconds")
        events = [{"eventId": f"crowd-{number}", "requestedTime": soon} for number in range(10_000)]
        await self.insist("POST", "/api/v1/slots/batch", {"configName": "deep", "events": events})
        async with repeating(lambda: self.book("deep"), 0.2):
            yield
        await self.set_config("deep", maxPerWindow=100)
        await self.book("deep")

    @asynccontextmanager
    async def guessed_tokens(self) -> AsyncIterator[None]:
        headers = {"Authorization": "Bearer none-that-there-is"}

        async def guess() -> None:
            await asyncio.gather(*(self.http.get("/api/v1/slots/some", headers=headers) for _ in range(4)))

        async with repeating(guess, 0.2):
            yield


@asynccontextmanager
async def callers(folder: Path) -> AsyncIterator[GameDay]:
    """One service on SQLite, with a bank, an SMS provider, and callers."""
    rules = folder / "envoy.yml"
    rules.write_text(ENVOY)
    async with AsyncExitStack() as stack:
        bank = stack.enter_context(Bank(latency=LATENCY, default=usual))
        provider = await stack.enter_async_context(http_provider())
        port, grpc_port = await stack.enter_async_context(ports(2))
        variables = TOKENS | {
            "PACELINE_PAYMENTS_DOWNSTREAM_URL": bank.url,
            "PACELINE_PAYMENTS_DOWNSTREAM_ATTEMPTS": "1",
            "PACELINE_PAYMENTS_TPS": str(TPS),
            "PACELINE_SMS_WEBHOOK_URL": provider.url,
            "PACELINE_GRPC_PORT": str(grpc_port),
            "PACELINE_ENVOY_CONFIG": rules.name,
            "PACELINE_INGRESS_FAILURES_PER_MINUTE": "60",
            "PACELINE_HTTP_SHUTDOWN_SECONDS": "5",
        }
        _, http = await stack.enter_async_context(serving(folder, port, **variables))
        town = Town(http, bank)
        await town.set_config("default", maxPerWindow=1000, windowSize="PT1S")
        quick = {"maxDispatchRetries": 0, "dispatchIntervalSecs": 0.2, "jitterWindowMs": 0}
        (await http.patch("/admin/dispatch/PAYMENT", json=quick)).raise_for_status()
        users = range(1, 9)
        for user in users:
            quota = {"userId": user, "rateLimit": 10_000, "timeWindow": 60}
            (await http.post("/api/config", json=quota)).raise_for_status()

        async def text(message: str) -> None:
            for user in users:
                await http.post("/api/send", json={"userId": user, "message": message})

        @asynccontextmanager
        async def refusing_provider() -> AsyncIterator[None]:
            provider.statuses["refused"] = 422
            await text("refused")
            yield
            await town.insist("POST", "/admin/sms/dead-letters/drop", {"all": True})

        @asynccontextmanager
        async def away_provider() -> AsyncIterator[None]:
            provider.away = True
            async with repeating(lambda: text("hello"), 2.0):
                yield
            provider.away = False

        @asynccontextmanager
        async def bad_envoy_config() -> AsyncIterator[None]:
            rules.write_text("domain: [")
            yield
            rules.write_text(ENVOY)

        # What callers do all day, whatever happens.
        everyday: list[tuple[Callable[[], object], float]] = [(lambda: town.book("default"), 0.5), (town.pay, 2.0)]
        for act, every in everyday:
            await stack.enter_async_context(repeating(act, every))
        prometheus = Prometheus(faster(shipped_rules()), {"paceline": [f"127.0.0.1:{port}"]})
        await asyncio.to_thread(prometheus.start)
        stack.callback(prometheus.close)
        paying = town.pay
        yield GameDay(
            prometheus,
            targets=1,
            rounds=[
                [
                    Drill(
                        "the bank says nothing",
                        ["PaymentsUnknown", "PaymentsOutcomeUnanswered", "DispatchDeadLetters"],
                        town.unanswered_payments,
                    ),
                    Drill("the bank refuses", ["PaymentsRejected"], lambda: repeating(lambda: paying("refused"), 2.0)),
                    Drill(
                        "the bank takes three seconds",
                        ["PaymentsDownstreamSlow"],
                        lambda: repeating(lambda: paying("slow"), 2.0),
                    ),
                    Drill("Envoy's rules can't be read", ["EnvoyConfigRejected"], bad_envoy_config),
                    Drill("nothing is free before the horizon", ["SlotAssignmentsRefused"], town.narrow_horizon),
                    Drill("slots are booked far ahead", ["SlotWindowsFillingUp"], town.crowded_windows),
                    Drill("tokens are guessed", ["CallersRefused"], town.guessed_tokens),
                    Drill("the SMS provider refuses", ["MessagesDeadLettered"], refusing_provider),
                ],
                [
                    Drill("the bank refuses the login", ["PaymentsBreakerOpen"], town.wrong_login),
                    Drill("the SMS provider is away", ["ProviderAway", "MessagesWait"], away_provider),
                ],
                [Drill("the kill switch is thrown", ["PaymentsOverdue"], town.thrown_switch)],
                [Drill("more is due than the bank takes", ["PaymentsAtTheLimit"], town.rush)],
            ],
        )


def usual(key: str) -> Reply:
    """What the bank answers when it is well, by what the payment's id begins with."""
    return REPLIES.get(key.partition("-")[0], GOOD)
