"""The hard limit of payments, counted by an independent bank: whatever befalls the processes."""

from __future__ import annotations

from pathlib import Path

import redis

from paceline.testing.servers.redis import RedisServer
from tests.effort import is_thorough
from tests.faults.bank import Bank, Reply, largest
from tests.faults.bank_stack import frozen, installation

TPS = 15 if is_thorough() else 10


def uneven(key: str) -> Reply:
    """Answers of different speed, so that permits come back one by one."""
    return Reply(delay=int(key[1:]) % 10 * 0.05)


def test_a_redis_that_forgot_gives_no_permit_twice(tmp_path: Path, postgres_url: str, own_redis: RedisServer) -> None:
    """It loses its data while calls are on the wire: flushed, then restarted."""
    ids = [f"p{number:03d}" for number in range(7 * TPS)]
    settings = {"REDIS_URL": own_redis.url, "PAYMENTS_DOWNSTREAM_TIMEOUT": "2"}
    with Bank(default=uneven) as bank, installation(tmp_path, bank, postgres_url, TPS, **settings) as installed:
        installed.worker("dispatch")
        due = installed.submit(ids)
        installed.until_executed(3 * TPS)
        with redis.Redis.from_url(own_redis.url) as client:
            client.flushall()
        installed.until_executed(5 * TPS)
        own_redis.kill()
        own_redis.start()
        installed.until_statuses(PROCESSING=len(ids))
        installed.check_promises(ids, TPS, due)


def test_counted_at_the_departure_with_a_killed_and_a_frozen_worker_and_lost_answers(
    tmp_path: Path, postgres_url: str
) -> None:
    """None is lost, none is doubled, and all processes together keep the limit at every moment of it. Counted at the
    answer: `test_payments_matrix`."""
    ids = [f"p{number:03d}" for number in range(5 * TPS)]
    with (
        Bank(latency=0.02) as bank,
        installation(
            tmp_path, bank, postgres_url, TPS, PAYMENTS_LIMIT_AT="departure", PAYMENTS_DOWNSTREAM_TIMEOUT="3"
        ) as installed,
    ):
        for number, key in enumerate(ids):
            if number % 7 == 0:
                bank.script[key] = [Reply(executes=True, silent=True), Reply(409, {"reason": "in progress"})]
            elif number % 11 == 0:
                bank.script[key] = [Reply(503)]
        first, second = installed.noted_worker("dispatch"), installed.noted_worker("dispatch")
        # A dead worker's claims are found within seconds.
        installed.configure(stale_claim_threshold_mins=0.1, retry_backoff_secs=0.5, pre_start_buffer_mins=0)
        due = installed.submit(ids)
        installed.until_executed(TPS)
        with frozen(second):
            installed.until_executed(2 * TPS)
        first.kill()
        installed.until_statuses(PROCESSING=len(ids))
        assert len(installed.departures) >= len(ids)
        assert largest(installed.departures) <= TPS
        # Arrivals may bunch by as much as this machine is busy.
        installed.check_promises(ids, 2 * TPS, due)


def test_the_bank_sees_a_flat_line(tmp_path: Path) -> None:
    """Calls are spaced: no tenth of a second sees much more than a tenth of the limit."""
    ids = [f"p{number:03d}" for number in range(2 * TPS)]
    with Bank() as bank, installation(tmp_path, bank, "embedded", TPS) as installed:
        installed.start("serve", "paceline", "serve", "--port", "0")
        installed.submit(ids)
        installed.until_statuses(PROCESSING=len(ids))
        assert bank.peak(0.1) <= TPS // 2, "all at once they would be the whole limit"
