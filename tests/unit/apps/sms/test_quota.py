"""The window's arithmetic, and the bringing in step of two counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_sms.model import (
    Attempt,
    Verdict,
)
from paceline_sms.quota import Quota, Spending, decide, merge_spending

NOW = 1_800_000_000_000

MINUTE = 60_000


def quota(count: int = 0, limit: int = 10, minutes: int = 5, generation: int = 0, version: int = 1) -> Quota:
    return Quota(1, limit, minutes, count, NOW, version, generation)


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


def test_a_cache_in_step_never_lowers_the_stores_count() -> None:
    spending = Spending(1, 1, NOW, 0, 4, 2)
    assert merge_spending(quota(count=3), spending) == (quota(count=4), True)
    assert merge_spending(quota(count=7), spending) == (quota(count=7), True)


def test_what_a_cache_admitted_beside_the_store_is_added() -> None:
    spending = Spending(1, 1, NOW, 0, 4, 2)
    assert merge_spending(quota(count=5, generation=3), spending) == (quota(count=7, generation=3), False)


@pytest.mark.parametrize("spending", [Spending(1, 2, NOW, 0, 4, 2), Spending(1, 1, NOW - 1, 0, 4, 2)])
def test_sends_of_another_version_or_window_no_longer_matter(spending: Spending) -> None:
    assert merge_spending(quota(count=1), spending) == (quota(count=1), False)


def test_spendings_on_one_copy_add_up() -> None:
    assert Spending(1, 1, NOW, 0, 6, 1).joined(Spending(1, 1, NOW, 0, 5, 1)) == Spending(1, 1, NOW, 0, 6, 2)
