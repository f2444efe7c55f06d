"""The limit of a config that follows a downstream: bounded, not for a blip, and settled after one change."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import ConfigurationError, InvalidInput
from paceline.slots.followed_rate import BAND, Sample, followed_limit, recent
from paceline.slots.model import Spread, WindowPolicy, changed_policy

LASTING_MS = 60_000
NOW_MS = 10_000_000
POLICY = WindowPolicy(200, "PT4S", follow="bank")

rates = st.floats(0.01, 500)
series = st.lists(st.tuples(rates, st.integers(1, 20_000)), max_size=40)


def samples_of(steps: list[tuple[float, int]]) -> list[Sample]:
    """Rates, each with how long after the one before it was seen; the last one now."""
    ages = list(accumulate((step for _, step in reversed(steps)), initial=0))[:-1][::-1]
    return [Sample(NOW_MS - age, rate) for (rate, _), age in zip(steps, ages, strict=True)]


def constantly(per_second: float, lasting_ms: int = LASTING_MS) -> list[Sample]:
    return [Sample(NOW_MS - age, per_second) for age in range(lasting_ms, -1, -5000)]


def after(policy: WindowPolicy, limit: int) -> WindowPolicy:
    """The policy as it is changed to follow."""
    changes = {"max_per_window": limit, "full_max": policy.full_max or policy.max_per_window}
    return changed_policy(policy, changes)


@given(series, st.integers(1, 200))
def test_the_limit_is_never_above_the_full_one_nor_below_1(steps: list[tuple[float, int]], current: int) -> None:
    policy = after(POLICY, current)
    limit = followed_limit(policy, samples_of(steps), NOW_MS, LASTING_MS)
    assert limit is None or (1 <= limit <= 200 and limit != current)


@given(series, st.integers(1, 200), st.floats(1 - BAND, 1 + BAND))
def test_nothing_changes_for_a_blip_or_before_enough_was_seen(
    steps: list[tuple[float, int]], current: int, near: float
) -> None:
    policy, samples = after(POLICY, current), samples_of(steps)
    calm = [*samples[:-1], Sample(NOW_MS, current * near / 4)]
    if current * near < 200:  # else it takes the full limit again
        assert followed_limit(policy, calm, NOW_MS, LASTING_MS) is None, "one rate near the limit"
    young = [sample for sample in samples if sample.at_ms > NOW_MS - LASTING_MS]
    assert followed_limit(policy, young, NOW_MS, LASTING_MS) is None


@given(rates, st.integers(1, 200))
def test_one_change_settles_it_while_the_rate_stays(rate: float, current: int) -> None:
    policy = after(POLICY, current)
    limit = followed_limit(policy, constantly(rate), NOW_MS, LASTING_MS)
    if limit is not None:
        settled = after(policy, limit)
        assert abs(limit - min(rate * 4, 200)) <= 1
        again = followed_limit(settled, constantly(rate), NOW_MS, LASTING_MS)
        assert again is None, "and it does not go back and forth"


@given(st.lists(st.floats(0.95, 1.05), min_size=13, max_size=13), st.floats(5, 45))
def test_a_rate_that_goes_up_and_down_a_little_changes_it_once(noise: list[float], rate: float) -> None:
    samples = [Sample(sample.at_ms, rate * factor) for sample, factor in zip(constantly(rate), noise, strict=True)]
    limit = followed_limit(POLICY, samples, NOW_MS, LASTING_MS)
    if limit is not None:
        assert followed_limit(after(POLICY, limit), samples, NOW_MS, LASTING_MS) is None


def test_it_falls_and_rises_and_is_the_full_one_again() -> None:
    assert followed_limit(POLICY, constantly(25), NOW_MS, LASTING_MS) == 100
    lowered = after(POLICY, 100)
    assert (lowered.max_per_window, lowered.full_max) == (100, 200)
    assert followed_limit(lowered, constantly(35), NOW_MS, LASTING_MS) == 140
    assert followed_limit(after(POLICY, 195), constantly(60), NOW_MS, LASTING_MS) == 200
    restored = after(lowered, 200)
    assert (restored.max_per_window, restored.full_max) == (200, None)
    assert followed_limit(restored, constantly(60), NOW_MS, LASTING_MS) is None


def test_the_sample_that_held_when_the_time_began_counts() -> None:
    samples = [Sample(NOW_MS - 90_000, 50), Sample(NOW_MS - 70_000, 25), Sample(NOW_MS - 10_000, 24)]
    assert recent(samples, NOW_MS, LASTING_MS) == samples[1:]
    assert followed_limit(POLICY, samples, NOW_MS, LASTING_MS) == 98


def test_what_an_operator_says_of_the_limit_is_the_full_one() -> None:
    lowered = after(POLICY, 100)
    for changes, limit in (({"max_per_window": 300}, 300), ({"follow": None}, 200), ({"window": "PT8S"}, 200)):
        changed = changed_policy(lowered, changes)
        assert (changed.max_per_window, changed.full_max) == (limit, None)
    assert changed_policy(lowered, {"spread": "even"}) == replace(lowered, spread=Spread.EVEN)


@pytest.mark.parametrize("follow", ["", "b" * 65, "a\nb", 5])
def test_a_wrong_downstream_is_named(follow: object) -> None:
    with pytest.raises(InvalidInput) as wrong:
        WindowPolicy(1, "PT1S", follow=follow)  # type: ignore[arg-type]
    assert wrong.value.field == "follow"


def test_a_curve_can_not_follow() -> None:
    curve = [{"days": ["MON"], "from": "09:00", "to": "17:00", "max": 5}]
    with pytest.raises(ConfigurationError) as wrong:
        WindowPolicy(10, "PT1S", curve=curve, follow="bank")
    assert wrong.value.field == "follow"
