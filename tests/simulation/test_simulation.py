"""The seeds that every check runs, and proof that a broken invariant would be found."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from paceline.dispatch.model import Claim, Item
from paceline.dispatch.status import IN_FLIGHT
from paceline.downstream import permits
from paceline.downstream.permits import Permits
from paceline.limits.local_lease import LocalLease
from paceline.slots.occupancy import WindowCount
from paceline_payments.model import PaymentEvent
from tests.effort import examples
from tests.models import payment_store
from tests.models.queue_store import MemoryQueueStore
from tests.models.slot_store import _Config
from tests.simulation import sqlite
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.world import Outcome, Violation, simulate

ROOT = Path(__file__).parents[2]
SEEDS = {"leases": 300, "slots": 200, "dispatch": 250, "payments": 200}
"""Thoroughly; a tenth of them take some seconds together."""
MOST_SEEDS = 300


@pytest.fixture(autouse=True, scope="module")
def _image() -> None:
    sqlite.prepare()


def first_failure(name: str, seeds: Iterable[int]) -> Outcome | None:
    outcomes = (simulate(name, SCENARIOS[name], seed) for seed in seeds)
    return next((outcome for outcome in outcomes if outcome.failure is not None), None)


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_seed_breaks_an_invariant(name: str) -> None:
    outcome = first_failure(name, range(examples(SEEDS[name])))
    if outcome is not None and outcome.failure is not None:
        _, seed, error = outcome.failure
        raise AssertionError(f"replay it: python -m tests.simulation --scenario {name} --seed {seed}") from error


def test_a_seed_replays_exactly_also_in_another_process() -> None:
    """Hashes of texts differ from process to process, and so does the order of sets."""
    seed = 3
    here = [simulate(name, play, seed).digest for name, play in SCENARIOS.items()]
    assert here == [simulate(name, play, seed).digest for name, play in SCENARIOS.items()]
    command = [sys.executable, "-m", "tests.simulation", "--seed", str(seed)]
    environment = os.environ | {"PYTHONHASHSEED": "7"}
    printed = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False).stdout
    assert here == [line.rpartition(" ")[2] for line in printed.splitlines() if " steps, " in line]


# -- it can fail -----------------------------------------------------------------------------------------------------


def no_fencing(patch: pytest.MonkeyPatch) -> None:
    """Without fencing: any former holder of the claim may change the item."""

    def held(store: MemoryQueueStore, claim: Claim) -> Item | None:
        item = store._items[claim.item_type, claim.item_id]
        return item if item.status in IN_FLIGHT else None

    patch.setattr(MemoryQueueStore, "_held", held)


def no_pause_after_a_loss(patch: pytest.MonkeyPatch) -> None:
    """A store of permits that lost its memory grants at once."""
    patch.setattr(permits, "reopened", lambda state, life, *_: state if state.life == life else Permits({}, life=life))


def failed_by_guess(patch: pytest.MonkeyPatch) -> None:
    """A payment with an unknown outcome counts as refused."""
    patch.setattr(payment_store, "dead_letter_event", lambda *_, **__: PaymentEvent.REFUSED)


def tokens_of_ended_windows_go_back(patch: pytest.MonkeyPatch) -> None:
    withdraw = LocalLease.withdraw

    def withdraw_all(lease: LocalLease, now_us: int, **options: Any) -> int:
        lease.return_until_us = 2**62
        return withdraw(lease, now_us, **options)

    patch.setattr(LocalLease, "withdraw", withdraw_all)


def counters_that_forget(patch: pytest.MonkeyPatch) -> None:
    """A store that does not write the counter of a window that is full."""
    count = _Config.count

    def forgetful(config: _Config, written: WindowCount) -> None:
        if written.taken < config.active.policy.max_per_window:
            count(config, written)

    patch.setattr(_Config, "count", forgetful)
    patch.setattr(_Config, "run_before", lambda *_: None)


@pytest.mark.parametrize(
    ("name", "mistake", "known"),
    [
        ("dispatch", no_fencing, 7),
        ("payments", no_pause_after_a_loss, 117),
        ("payments", failed_by_guess, 7),
        ("leases", tokens_of_ended_windows_go_back, 39),
        ("slots", counters_that_forget, 1),
    ],
)
def test_a_mistake_is_found_by_some_seed(
    name: str, mistake: Callable[[pytest.MonkeyPatch], None], known: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`known` found it first; if the scenario has changed since, another seed does."""
    mistake(monkeypatch)
    outcome = first_failure(name, [known, *range(MOST_SEEDS)])
    assert outcome is not None
    assert outcome.failure is not None
    assert isinstance(outcome.failure.error, Violation), outcome.failure
    monkeypatch.undo()
    assert simulate(name, SCENARIOS[name], outcome.failure.seed).failure is None
