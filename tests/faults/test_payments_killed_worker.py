"""A worker of payments that is killed under load, as the bank sees it: the other one goes on within seconds."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import pytest

from tests.faults.bank import Bank
from tests.faults.bank_stack import installation
from tests.faults.test_killed_worker import LONGEST_GAP

TPS = 20


@pytest.fixture(params=["embedded", "postgresql"])
def database(request: pytest.FixtureRequest) -> str:
    return request.param if request.param == "embedded" else str(request.getfixturevalue("postgres_url"))


def test_the_bank_sees_no_gap_when_a_worker_is_killed(tmp_path: Path, database: str) -> None:
    """All settings are the defaults. What the killed one had in hand is paid as soon, and none of it twice."""
    ids = [f"p{number:03d}" for number in range(12 * TPS)]
    with Bank(latency=0.1) as bank, installation(tmp_path, bank, database, TPS) as installed:
        killed, _ = installed.worker("dispatch"), installed.worker("dispatch")
        due = installed.submit(ids)
        installed.until_executed(3 * TPS)
        both = "SELECT count(DISTINCT worker) FROM paceline_dispatch_queue WHERE queue_status = 'DISPATCHED'"
        installed.until(lambda: installed.rows(both) == [(2,)])
        killed.kill()
        killed_at = time.monotonic()
        installed.until_statuses(PROCESSING=len(ids))
        installed.check_promises(ids, TPS, due)
    times = [killed_at, *(arrival.at for arrival in bank.calls() if arrival.at > killed_at)]
    assert len(times) > TPS, "it was killed under load"
    assert max(later - earlier for earlier, later in pairwise(times)) <= LONGEST_GAP
