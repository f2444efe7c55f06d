"""Eight processes with 64 callers each on one key: not one call more than the plan allows, by Redis's own clock."""

from __future__ import annotations

import os

import pytest
import redis

from paceline import FixedWindow, LeasePolicy, Limiter, Plan
from tests.effort import is_thorough
from tests.faults.limits_load import GOLD, PLANS, TALLY, Load, caller_processes, excess, witnessed

PROCESSES = 8
SECONDS = 3 if is_thorough() else 2
PAUSE = 0 if is_thorough() else 0.05
"""After a denial: all callers together still ask for five times what the plan gives, and leave others some CPU."""


def test_many_processes_share_one_limit_exactly(redis_url: str) -> None:
    with caller_processes(Load(redis_url, ["gold", "witness"], SECONDS, pause=PAUSE), processes=PROCESSES) as callers:
        admitted = callers.join()
    with redis.Redis.from_url(redis_url) as client:
        entries = witnessed(client)
    assert sum(cost for _, cost in entries) == admitted
    assert admitted > GOLD.capacity
    assert excess(GOLD, entries) == 0
    elapsed_us = entries[-1][0] - entries[0][0]
    assert admitted * 1_000_000 <= GOLD.capacity * 1_000_000 + GOLD.per_second * elapsed_us


def test_many_processes_with_leases_stay_within_one_limit(redis_url: str) -> None:
    load = Load(redis_url, ["gold", "tally"], SECONDS, leased=True, pause=PAUSE)
    with caller_processes(load, processes=PROCESSES) as callers:
        admitted = callers.join()
    with Limiter(redis_url, plans=PLANS, deadline=30) as limiter:
        tally = limiter.peek("k", "tally")
    assert admitted > GOLD.capacity
    # Every call was charged, and unspent tokens were given back.
    assert TALLY.limit - tally.remaining == admitted
    elapsed_us = TALLY.window_us - tally.reset_after_us
    assert admitted * 1_000_000 <= GOLD.capacity * 1_000_000 + GOLD.per_second * elapsed_us


def test_forked_children_neither_spend_nor_give_back_what_their_parent_leased(redis_url: str) -> None:
    plans, lease = [Plan("hour", FixedWindow(1000, "PT1H"), on_error="closed")], LeasePolicy(longest=60)
    limiter = Limiter(redis_url, plans=plans, lease=lease, deadline=30)
    admitted = sum(limiter.acquire("k", "hour").allowed for _ in range(140))
    with Limiter(redis_url, plans=plans, deadline=30) as plain:
        # The lease is full when the children get their copies of it.
        assert 1000 - plain.peek("k", "hour").remaining > admitted + 50
        for _ in range(4):
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    counted = sum(limiter.acquire("k", "hour").allowed for _ in range(50))
                    limiter.close()
                    os.write(write, str(counted).encode())
                finally:
                    os._exit(0)
            os.close(write)
            admitted += int(os.read(read, 100))
            os.close(read)
            os.waitpid(child, 0)
        limiter.close()
        assert admitted == 140 + 4 * 50
        assert plain.peek("k", "hour").remaining == 1000 - admitted


@pytest.mark.parametrize("extra", [1, 5])
def test_the_judge_sees_an_excess(extra: int) -> None:
    moment = 1_800_000_000_000_000
    entries = [(moment, 1)] * (GOLD.capacity + extra)
    assert excess(GOLD, entries) == extra
