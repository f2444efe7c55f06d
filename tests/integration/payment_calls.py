"""A process that calls the bank as fast as the gate lets it; given the bank, where the permits are (Redis or a
database), a name, the calls, the limit."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime

from paceline.downstream.ports import PermitStore
from paceline.downstream.rate_gate import PermitRateGate, longest_hold, permit_policy
from paceline.downstream.stores.redis import RedisPermitStore
from paceline.downstream.stores.sql_permits import SqlPermitStore
from paceline.sql.databases import database
from paceline_payments.downstream.client import HttpDownstream
from paceline_payments.downstream.connection import DownstreamConnection
from paceline_payments.model import Party, Payment

PARTY = Party("Alice", "DE89370400440532013000")
TIMEOUT = 30.0
STORE_TIMEOUT = 10.0


async def permits_at(url: str, tps: int) -> PermitStore:
    policy = permit_policy(tps, 1)
    if url.startswith("redis"):
        # The test has used it before, so no grant waits for lost calls.
        return RedisPermitStore(url, "bank", policy, longest_hold=0.0, timeout=STORE_TIMEOUT)
    return SqlPermitStore(
        await database(url), "bank", policy, longest_hold=longest_hold(TIMEOUT), timeout=STORE_TIMEOUT
    )


async def main(bank: str, store: str, name: str, calls: str, tps: str) -> None:
    permits = await permits_at(store, int(tps))
    gate = PermitRateGate(permits, call_timeout=TIMEOUT)
    client = HttpDownstream(DownstreamConnection(bank, timeout=TIMEOUT), gate)
    now = datetime.now(UTC)
    await asyncio.gather(
        *(client.pay(Payment(f"{name}-{number}", "1.00", "EUR", PARTY, PARTY, now)) for number in range(int(calls)))
    )
    await client.close()
    await gate.close()
    await permits.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
