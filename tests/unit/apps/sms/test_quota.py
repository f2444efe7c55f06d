"""The window's arithmetic, and budgets for a cache."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_sms.model import (
    Attempt,
    Verdict,
)
from paceline_sms.quota import Quota, decide, lease

NOW = 1_800_000_000_000

MINUTE = 60_000


def quota(count: int = 0, limit: int = 10, minutes: int = 5) -> Quota:
    return Quota(1, limit, minutes, count, NOW)


def test_a_window_lasts_until_the_very_millisecond_it_ends() -> None:
    used = quota(count=3)
    assert used.current(NOW + 5 * MINUTE - 1) is used
    assert used.current(NOW + 5 * MINUTE) == Quota(1, 10, 5, 0, NOW + 5 * MINUTE)


@given(st.integers(1, 20), st.integers(0, 30), st.integers(1, 100), st.integers(0, 200 * MINUTE))
def test_a_send_is_allowed_if_the_current_window_has_room(limit: int, count: int, minutes: int, after: int) -> None:
    before = quota(count, limit, minutes)
    later, verdict = decide(before, Attempt.of(1, "m"), NOW + after)
    elapsed = after >= minutes * MINUTE
    assert isinstance(verdict, Verdict)
    assert verdict.allowed == (elapsed or count < limit)
    if verdict.allowed:
        assert later.count == verdict.used == (1 if elapsed else count + 1)
        assert later.refreshed_ms == (NOW + after if elapsed else NOW)
    else:
        assert later is before
    # A caller that waits until the reset is admitted.
    _, again = decide(before, Attempt.of(1, "m"), NOW + after + verdict.reset_after_ms)
    assert isinstance(again, Verdict)
    assert again.allowed


@given(st.integers(1, 50), st.lists(st.tuples(st.booleans(), st.integers(1, 30)), max_size=30))
def test_leases_and_sends_together_never_pass_the_limit(limit: int, steps: list[tuple[bool, int]]) -> None:
    row, admitted = quota(limit=limit), 0
    for is_lease, callers in steps:
        if is_lease:
            row, budget = lease(row, callers, NOW)
            admitted += budget
        else:
            row, verdict = decide(row, Attempt.of(1, "m"), NOW)
            admitted += isinstance(verdict, Verdict) and verdict.allowed
    assert row.count == admitted <= limit


@pytest.mark.parametrize(
    ("limit", "count", "callers", "budget"),
    [(10, 0, 1, 1), (60, 0, 1, 6), (60, 0, 9, 9), (60, 57, 1, 3), (60, 60, 5, 0), (1_000_000, 0, 1, 1000)],
)
def test_a_budget_is_a_tenth_of_the_limit_or_one_for_each_who_waits(
    limit: int, count: int, callers: int, budget: int
) -> None:
    assert lease(quota(count, limit), callers, NOW) == (quota(count + budget, limit), budget)


def test_a_lease_opens_the_next_window() -> None:
    assert lease(quota(10), 1, NOW + 5 * MINUTE) == (Quota(1, 10, 5, 1, NOW + 5 * MINUTE), 1)


def test_what_a_budget_paid_counts_nothing() -> None:
    before = quota(count=10)
    after, verdict = decide(before, Attempt.of(1, "m")._replace(prepaid=True), NOW)
    assert isinstance(verdict, Verdict)
    assert verdict.allowed
    assert after is before
