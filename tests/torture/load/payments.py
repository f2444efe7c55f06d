"""Callers that submit payments, one by one and in batches, retry unknown outcomes, and cancel some."""

from __future__ import annotations

import asyncio
import itertools
from datetime import UTC, datetime, timedelta

from tests.torture.load import Site, by_status

PARTIES = {
    "payer": {"name": "Alice", "iban": "DE89370400440532013000"},
    "payee": {"name": "Bob", "iban": "GB29NWBK60161331926819"},
}
MOST_TRIES = 30
BURST = 40
"""Payments that are due at the same time: more than the bank takes in some seconds."""


class Payments:
    """Submits one payment after the other."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._numbers = itertools.count()

    async def run(self) -> None:
        site, random = self._site, self._site.random
        while not site.stop.is_set():
            payment = f"pay-{next(self._numbers)}"
            due = datetime.now(UTC) + timedelta(seconds=random.uniform(0, 8))
            if await self._submit(payment, due) and random.random() < 0.1:
                path = f"/api/v1/payments/{payment}"
                await site.call("payments.cancel", "DELETE", path, judge=by_status(200), payment=payment)
            await site.pause(0.7)

    async def run_bursts(self) -> None:
        while not self._site.stop.is_set():
            due = datetime.now(UTC) + timedelta(seconds=2)
            await asyncio.gather(*(self._submit(f"pay-{next(self._numbers)}", due) for _ in range(BURST)))
            await self._site.pause(15)

    async def _submit(self, payment: str, due: datetime) -> bool:
        document = {
            "paymentId": payment,
            "amount": "12.30",
            "currency": "EUR",
            **PARTIES,
            "executeAt": due.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        }
        for _ in range(MOST_TRIES):
            outcome, _ = await self._site.call(
                "payments.submit",
                "POST",
                "/api/v1/payments",
                document,
                judge=by_status(202),
                payment=payment,
                due=due.timestamp(),
            )
            if outcome == "ok":
                return True
            await self._site.pause(0.5)
        return False
