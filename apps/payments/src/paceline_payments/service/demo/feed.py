"""A feed for the demo: all payments are due at the same instant, and a few lines are malformed."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from datetime import datetime

from schwifty import IBAN

from paceline.durations import format_instant
from paceline_payments.parsing import COLUMNS

LINES = 500
NAMES = (
    "Ada",
    "Blaise",
    "Carla",
    "Dennis",
    "Edsger",
    "Frances",
    "Grace",
    "Hedy",
    "Ivan",
    "Joan",
    "Katherine",
    "Leslie",
)


async def feed(payments: int, at: datetime, broken: int) -> AsyncIterator[bytes]:
    """The feed's bytes, some lines at a time; `broken` lines are mixed in and make no payment."""
    drawn = random.Random(payments)
    accounts = [IBAN.generate("DE", "37040044", f"{drawn.randrange(10**10):010d}").compact for _ in range(40)]
    when = format_instant(at)
    wrong = set(drawn.sample(range(payments), min(broken, payments)))
    lines = [",".join(COLUMNS)]
    for number in range(payments):
        payer, payee = drawn.choice(NAMES), drawn.choice(NAMES)
        amount = f"{drawn.randrange(1, 100_000) / 100:.2f}"
        payer_iban, payee_iban = drawn.sample(accounts, 2)
        parties = f"{payer},{payer_iban},{payee},{payee_iban}"
        lines.append(f"demo-{number:06d},{amount},EUR,{parties},{when}")
        if number in wrong:
            lines.append(f"demo-broken-{number},{amount},EURO,{parties},{when}")
        if len(lines) >= LINES:
            yield ("\n".join(lines) + "\n").encode()
            lines = []
    if lines:
        yield ("\n".join(lines) + "\n").encode()
