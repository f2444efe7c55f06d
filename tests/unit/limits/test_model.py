"""Specs and plans: what is refused, by which field, and what the integers come out as."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from datetime import timedelta
from fractions import Fraction
from typing import Any

import pytest

from paceline import Decision, FixedWindow, Plan, Reason, SlidingLog, SlidingWindow, TokenBucket
from paceline.errors import ConfigurationError


@pytest.mark.parametrize(
    ("rate", "exact"),
    [
        (1, Fraction(1)),
        (0.1, Fraction(1, 10)),
        (40 / 60, Fraction(2, 3)),
        (1e6 / 86400, Fraction(625, 54)),
        (1e-7, Fraction(1, 10**7)),
        (12.345678, Fraction("12.345678")),
        (Fraction(1, 7), Fraction(1, 7)),
    ],
)
def test_rates_become_the_fraction_that_was_meant(rate: Any, exact: Fraction) -> None:
    assert TokenBucket(5, rate).per_second == exact


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: TokenBucket(0, 1), "capacity"),
        (lambda: TokenBucket(-1, 1), "capacity"),
        (lambda: TokenBucket(True, 1), "capacity"),
        (lambda: TokenBucket(1.5, 1), "capacity"),  # type: ignore[arg-type]
        (lambda: TokenBucket(2**60, 1), "capacity"),
        (lambda: TokenBucket(1, 0), "per_second"),
        (lambda: TokenBucket(1, -2), "per_second"),
        (lambda: TokenBucket(1, float("nan")), "per_second"),
        (lambda: TokenBucket(1, float("inf")), "per_second"),
        (lambda: TokenBucket(1, True), "per_second"),
        (lambda: TokenBucket(1, "1"), "per_second"),  # type: ignore[arg-type]
        (lambda: TokenBucket(10**6, Fraction(1, 10**9 + 7)), "per_second"),
        (lambda: FixedWindow(0, "PT1S"), "limit"),
        (lambda: FixedWindow(1, "PT0S"), "window"),
        (lambda: FixedWindow(1, "1 s"), "window"),
        (lambda: FixedWindow(1, timedelta(-1)), "window"),
        (lambda: FixedWindow(1, 60), "window"),  # type: ignore[arg-type]
        (lambda: SlidingWindow(1, "P5000D"), "window"),
        (lambda: SlidingLog(100_001, "PT1S"), "limit"),
        (lambda: Plan("", TokenBucket(1, 1)), "name"),
        (lambda: Plan("a\nb", TokenBucket(1, 1)), "name"),
        (lambda: Plan("x" * 129, TokenBucket(1, 1)), "name"),
        (lambda: Plan("x", None), "spec"),  # type: ignore[arg-type]
        (lambda: Plan("x", TokenBucket(1, 1), on_error="maybe"), "on_error"),
        (lambda: Plan("x", TokenBucket(1, 1), shadow="no"), "shadow"),  # type: ignore[arg-type]
        (lambda: Plan("x", TokenBucket(1, 1), overrides={"k": 5}), "overrides"),  # type: ignore[dict-item]
    ],
)
def test_what_can_not_work_is_refused_by_field(make: Callable[[], object], field: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make()
    assert caught.value.field == field


def test_specs_and_plans_are_values() -> None:
    plan = Plan("gold", TokenBucket(10, 0.5), on_error="closed", overrides={"vip": SlidingLog(3, "PT1M")})
    assert copy.deepcopy(plan) == plan == pickle.loads(pickle.dumps(plan))
    assert plan != Plan("gold", TokenBucket(10, 1))
    assert FixedWindow(1, "PT60S") == FixedWindow(1, timedelta(minutes=1))
    with pytest.raises(AttributeError):
        plan.spec.capacity = 11  # type: ignore[misc, union-attr]


def test_a_decision_is_true_if_allowed_and_has_seconds() -> None:
    denial = Decision.of(False, 0, 10, 1_500_000, 10_000_000, "gold", Reason.DENIED)
    assert not denial
    assert (denial.retry_after, denial.reset_after, denial.reason) == (1.5, 10.0, "DENIED")
    assert [state.plan for state in denial.states] == ["gold"]
    assert Decision.of(True, 9, 10, 0, 1_000_000, "gold")
