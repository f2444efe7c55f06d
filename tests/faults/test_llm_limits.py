"""Requests and tokens per minute, over three processes, against a provider that enforces both; judged by what it saw.

The provider's minute is scaled to `WINDOW` seconds.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tests.faults.llm_provider import providing

WINDOW = 3.0
REQUESTS, TOKENS = 100, 24_000
OWN_SHARE = 0.95
"""Of the provider's limits, as the how-to recommends: what is under way is not known exactly."""
CALLS, PROCESSES = 1_002, 3


@pytest.mark.parametrize("tokens", [TOKENS, 20 * TOKENS], ids=["tokens are scarce", "requests are scarce"])
def test_three_processes_cause_no_429_and_lose_little(own_redis: Any, tokens: int) -> None:
    own = [f"{round(limit * OWN_SHARE)}/PT{WINDOW:g}S" for limit in (REQUESTS, tokens)]
    with providing(REQUESTS, tokens, WINDOW) as provider:
        command = [sys.executable, "-m", "tests.faults.llm_caller", own_redis.url, provider.address, *own]
        callers = [subprocess.Popen([*command, str(CALLS // PROCESSES), str(seed)]) for seed in range(PROCESSES)]
        for caller in callers:
            assert caller.wait(timeout=240) == 0
        stats = provider.stats()
    assert len(stats["arrivals"]) == CALLS
    assert stats["refused"] == 0
    seconds = stats["arrivals"][-1] - stats["arrivals"][0]
    # What was refilled meanwhile, without the full bucket of the start: not every provider gives one.
    allowed = seconds / WINDOW * min(REQUESTS / CALLS, tokens / stats["spent"])
    assert allowed <= 1 / 0.9, f"{CALLS} calls took {seconds:.1f} s, in which {allowed:.2f} times as many were allowed"
