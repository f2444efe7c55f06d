"""The circuit breaker, as a state machine: no clock, no store."""

from __future__ import annotations

import pytest

from paceline.circuit_breaker import Breaker, BreakerPolicy
from paceline.errors import ConfigurationError

SECOND = 1_000_000


def opened(failures: int = 3) -> Breaker:
    breaker = Breaker(BreakerPolicy(failures=failures, first_pause=1, longest_pause=3))
    for _ in range(failures):
        assert breaker.allows(0)
        breaker.record_failure(0)
    return breaker


def test_opens_after_failures_in_a_row_only() -> None:
    breaker = Breaker(BreakerPolicy(failures=3))
    assert [breaker.record_failure(0), breaker.record_failure(0)] == [False, False]
    breaker.record_success()
    assert [breaker.record_failure(0), breaker.record_failure(0), breaker.state] == [False, False, "closed"]
    assert breaker.record_failure(0)
    assert breaker.state == "open"


def test_one_asks_for_all_when_the_pause_is_over() -> None:
    breaker = opened()
    assert not breaker.allows(SECOND - 1)
    assert breaker.pause_left_us(0) == SECOND
    assert breaker.allows(SECOND)
    assert breaker.state == "half_open"
    assert not breaker.allows(SECOND)
    assert breaker.record_success()
    assert breaker.state == "closed"
    assert breaker.allows(SECOND)
    assert breaker.pause_left_us(SECOND) == 0


def test_pauses_grow_to_the_longest_and_start_over_after_recovery() -> None:
    breaker, now = opened(), 0
    for pause in (1, 2, 3, 3):
        assert not breaker.allows(now + pause * SECOND - 1)
        now += pause * SECOND
        assert breaker.allows(now)
        assert breaker.record_failure(now)
    now += 3 * SECOND
    assert breaker.allows(now)
    breaker.record_success()
    for _ in range(3):
        breaker.record_failure(now)
    assert breaker.pause_left_us(now) == SECOND


def test_a_probe_without_a_result_does_not_block_for_ever() -> None:
    breaker = opened()
    assert breaker.allows(SECOND)
    assert not breaker.allows(2 * SECOND - 1)
    assert breaker.allows(2 * SECOND)


def test_answers_to_calls_from_before_it_opened_change_nothing() -> None:
    breaker = opened()
    assert not breaker.record_success()
    assert not breaker.record_failure(SECOND // 2)
    assert breaker.state == "open"
    assert breaker.allows(SECOND)


@pytest.mark.parametrize("options", [{"failures": 0}, {"first_pause": 0}, {"first_pause": 9, "longest_pause": 5}])
def test_policies_that_can_not_work_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError):
        BreakerPolicy(**options)  # type: ignore[arg-type]
