"""A process that calls the bank as fast as the gate lets it; given the bank, Redis, a name, the calls, the limit."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime

from headgate.apps.payments.downstream.client import HttpDownstream
from headgate.apps.payments.downstream.rate_gate import PermitRateGate
from headgate.apps.payments.model import Party, Payment
from headgate.apps.payments.stores.redis import RedisPermitStore

PARTY = Party("Alice", "DE89370400440532013000")
BUSY_MACHINE = 30.0
"""Seconds a call may take to the bank, which notes it when it is given a turn: far more than half a second if others
crowd it out. A call that is longer underway than it may be is not waited for, and then the limit is not exact."""


async def main(bank: str, redis_url: str, name: str, calls: str, tps: str) -> None:
    permits = RedisPermitStore(redis_url, int(tps), timeout=2.0)
    gate = PermitRateGate(permits, longest_trip=BUSY_MACHINE)
    client = HttpDownstream(bank, gate, timeout=BUSY_MACHINE)
    now = datetime.now(UTC)
    await asyncio.gather(
        *(client.pay(Payment(f"{name}-{number}", "1.00", "EUR", PARTY, PARTY, now)) for number in range(int(calls)))
    )
    await client.close()
    await gate.close()
    await permits.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
