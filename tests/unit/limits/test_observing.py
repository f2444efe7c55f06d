"""An observer that raises changes no decision and fills no log."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from paceline.limits.model import Decision
from paceline.limits.observing import QuietObserver

DECISION = Decision.of(True, 1, 2, 0, 0, "gold")


class Recording:
    """Keeps what it is told, and raises if so told."""

    def __init__(self, *, raises: bool = False) -> None:
        self.raises = raises
        self.told: list[tuple[object, ...]] = []

    def _tell(self, *values: object) -> None:
        self.told.append(values)
        if self.raises:
            raise OSError("disk full")

    def decided(self, decision: Decision) -> None:
        self._tell("decided", decision)

    def store_called(self, operation: str, seconds: float, failed: bool) -> None:
        self._tell("store_called", operation, seconds, failed)

    def breaker_moved(self, state: str) -> None:
        self._tell("breaker_moved", state)

    def leased(self, plan: str, tokens: int) -> None:
        self._tell("leased", plan, tokens)


class Batching(Recording):
    def decided_many(self, decisions: object) -> None:
        self._tell("decided_many", decisions)


CALLS: list[Callable[[QuietObserver], None]] = [
    lambda quiet: quiet.decided(DECISION),
    lambda quiet: quiet.store_called("decide", 0.5, True),
    lambda quiet: quiet.breaker_moved("open"),
    lambda quiet: quiet.leased("gold", 7),
    lambda quiet: quiet.decided_many([DECISION]),
]


@pytest.mark.parametrize("raises", [False, True])
def test_everything_is_passed_on_and_nothing_is_raised(raises: bool, caplog: pytest.LogCaptureFixture) -> None:
    observer = Batching(raises=raises)
    quiet = QuietObserver(observer)
    with caplog.at_level(logging.ERROR, "paceline.limits"):
        for call in CALLS:
            call(quiet)
    assert observer.told == [
        ("decided", DECISION),
        ("store_called", "decide", 0.5, True),
        ("breaker_moved", "open"),
        ("leased", "gold", 7),
        ("decided_many", [DECISION]),
    ]
    assert bool(caplog.records) == raises


def test_an_observer_without_batches_gets_one_decision_after_another() -> None:
    observer = Recording(raises=True)
    QuietObserver(observer).decided_many([DECISION, DECISION])
    assert observer.told == [("decided", DECISION)] * 2


def test_exceptions_are_logged_more_and_more_rarely(caplog: pytest.LogCaptureFixture) -> None:
    quiet = QuietObserver(Recording(raises=True))
    with caplog.at_level(logging.ERROR, "paceline.limits"):
        for _ in range(100):
            quiet.decided(DECISION)
    counts = [record.args[2] for record in caplog.records if isinstance(record.args, tuple)]
    assert counts == [1, 2, 4, 8, 16, 32, 64]
    assert all(record.exc_info is not None for record in caplog.records)
