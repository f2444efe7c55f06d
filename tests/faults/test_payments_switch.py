"""The kill switch of payments: one second after it was thrown no call leaves any process, and nothing is lost by it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.effort import is_thorough
from tests.faults.bank import Bank
from tests.faults.bank_stack import Installation, installation
from tests.temporal_namespaces import TemporalNamespace

TPS = 8 if is_thorough() else 5
PAYMENTS = 12 * TPS
"""What is left to stop when the command has started, on a machine that is busy."""
BOUND = 1.0
WATCHED = 2.0
"""Seconds beyond the bound for which the bank is watched."""


def throw_and_release(installed: Installation, ids: list[str]) -> None:
    """Throws the switch while many executions wait at the limit, and resumes them a while later."""
    bank = installed.bank
    installed.until_executed(TPS)
    installed.paceline("queue", "pause", "PAYMENT")
    acknowledged = time.monotonic()
    time.sleep(BOUND + WATCHED)  # that nothing arrives can only be seen by waiting
    late = [arrival.key for arrival in bank.calls() if arrival.at > acknowledged + BOUND]
    assert late == [], f"{len(late)} calls later than {BOUND} s after the pause"
    assert len(bank.executed) < len(ids), "the switch was thrown in time to stop some"
    installed.until_nothing_is_in_flight()
    installed.paceline("queue", "resume", "PAYMENT")
    installed.until_statuses(PROCESSING=len(ids))
    retries = installed.rows("SELECT sum(retry_count) FROM paceline_dispatch_queue")
    assert retries == [(0,)], "waiting for the switch costs no retry"


@pytest.mark.parametrize("mode", ["queue", "direct"])
def test_embedded(tmp_path: Path, mode: str) -> None:
    ids = [f"{mode}-{number:03d}" for number in range(PAYMENTS)]
    with Bank() as bank, installation(tmp_path, bank, "embedded", TPS, PAYMENTS_MODE=mode) as installed:
        installed.start("serve", "paceline", "serve", "--port", "0")
        due = installed.submit(ids)
        throw_and_release(installed, ids)
        installed.check_promises(ids, TPS, due)


def test_two_workers_on_postgresql(tmp_path: Path, postgres_url: str) -> None:
    ids = [f"two-{number:03d}" for number in range(PAYMENTS)]
    with Bank() as bank, installation(tmp_path, bank, postgres_url, TPS) as installed:
        for _ in range(2):
            installed.worker("dispatch")
        due = installed.submit(ids)
        throw_and_release(installed, ids)
        installed.check_promises(ids, TPS, due)


def test_temporal(tmp_path: Path, postgres_url: str, temporal_namespace: TemporalNamespace) -> None:
    ids = [f"held-{number:03d}" for number in range(PAYMENTS)]
    temporal = {"TEMPORAL_ADDRESS": temporal_namespace.address, "TEMPORAL_NAMESPACE": temporal_namespace.namespace}
    with Bank() as bank, installation(tmp_path, bank, postgres_url, TPS, **temporal) as installed:
        installed.worker("all")
        due = installed.submit(ids)
        throw_and_release(installed, ids)
        installed.check_promises(ids, TPS, due)
