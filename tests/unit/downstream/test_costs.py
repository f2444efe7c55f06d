"""The limits of calls, and the debts of those that cost more than they reserved."""

from __future__ import annotations

import pytest

from paceline.downstream.costs import Debts, budget_of
from paceline.errors import ConfigurationError
from paceline.limits.model import Concurrency, SlidingLog, TokenBucket


def test_a_rate_holds_in_every_sliding_window() -> None:
    requests = budget_of("llm", "requests", "500/minute")
    assert (requests.plan.name, requests.unit, requests.capacity) == ("llm:requests", 1, 500)
    assert requests.plan.specs == (SlidingLog(500, "PT1M", "PT0.46875S"),), "at most 128 entries"
    assert budget_of("llm", "few", "128/minute").plan.specs == (SlidingLog(128, "PT1M"),), "never more than that"
    assert isinstance(budget_of("llm", "bursts", "500/minute burst 20").plan.specs[0], TokenBucket)
    assert budget_of("llm", "open", Concurrency(4)).is_places


def test_costs_of_a_high_limit_are_counted_in_some_tokens_each_and_rounded_up() -> None:
    tokens = budget_of("llm", "tokens", "2000000/minute")
    assert (tokens.unit, tokens.capacity) == (20, 100_000)
    assert [tokens.units(cost) for cost in (1, 20, 21, 2_000_000)] == [1, 1, 2, 100_000]


def test_a_wrong_limit_is_named() -> None:
    with pytest.raises(ConfigurationError) as wrong:
        budget_of("llm", "tokens", "many")
    assert wrong.value.field == "limits.tokens"


def test_a_debt_is_claimed_once_and_no_call_pays_more_than_fits() -> None:
    debts, link = Debts({"llm:tokens": 100}), ("host", "llm:tokens", 30)
    debts.add("host", "llm:tokens", 90)
    debts.add("other", "llm:tokens", 5)
    assert debts.claim([link]) == {"llm:tokens": 70}
    assert debts.claim([link]) == {"llm:tokens": 20}
    assert debts.claim([link]) == {"llm:tokens": 0}
    debts.add("host", "llm:tokens", 20)  # that call was not made
    assert debts.claim([link]) == {"llm:tokens": 20}
    assert debts.claim([("other", "llm:tokens", 100)]) == {"llm:tokens": 0}
