"""Eight processes with 64 callers each on one key: not one call more than the plan allows, by Redis's own clock."""

from __future__ import annotations

import pytest
import redis

from tests.faults.limits_load import GOLD, Load, crowd, excess, redis_time_us, witnessed

PROCESSES = 8
SECONDS = 3


def test_many_processes_share_one_limit_exactly(redis_url: str) -> None:
    with crowd(Load(redis_url, ["gold", "witness"], SECONDS), processes=PROCESSES) as callers:
        admitted = callers.join()
    with redis.Redis.from_url(redis_url) as client:
        entries = witnessed(client)
    assert sum(cost for _, cost in entries) == admitted
    assert admitted > GOLD.capacity
    assert excess(GOLD, entries) == 0
    elapsed_us = entries[-1][0] - entries[0][0]
    assert admitted * 1_000_000 <= GOLD.capacity * 1_000_000 + GOLD.per_second * elapsed_us


def test_many_processes_with_leases_stay_within_one_limit(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        begun_us = redis_time_us(client)
        with crowd(Load(redis_url, ["gold"], SECONDS, leased=True), processes=PROCESSES) as callers:
            admitted = callers.join()
        elapsed_us = redis_time_us(client) - begun_us
    assert admitted > GOLD.capacity
    assert admitted * 1_000_000 <= GOLD.capacity * 1_000_000 + GOLD.per_second * elapsed_us


@pytest.mark.parametrize("extra", [1, 5])
def test_the_judge_sees_an_excess(extra: int) -> None:
    moment = 1_800_000_000_000_000
    entries = [(moment, 1)] * (GOLD.capacity + extra)
    assert excess(GOLD, entries) == extra
