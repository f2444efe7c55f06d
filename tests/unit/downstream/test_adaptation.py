"""The adaptive rate: bounds and oscillation as properties, and how fast it finds a capacity that changes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from benchmarks.adaptive_rate import (
    POLICY,
    RUNS,
    SECONDS,
    doubles,
    halves,
    refused_share,
    seconds_to_reach,
    simulate,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.downstream.adaptation import COOLDOWN_US, SECOND_US, Aimd, Report, adapted, started
from paceline.errors import ConfigurationError
from tests.effort import examples

REPORTS = st.builds(
    Report,
    answered=st.integers(0, 1000),
    throttled=st.integers(0, 100),
    failed=st.integers(0, 100),
    latency_us=st.integers(0, 10**9),
    is_waiting=st.booleans(),
)


@settings(max_examples=examples(300))
@given(
    reports=st.lists(st.tuples(REPORTS, st.integers(-SECOND_US, 5 * SECOND_US)), max_size=50),
    floor=st.integers(1, 50),
    above=st.integers(0, 500),
    most=st.floats(1, 1000),
)
def test_it_is_never_above_the_ceiling_or_the_hard_rate_and_never_below_the_floor(
    reports: list[tuple[Report, int]], floor: int, above: int, most: float
) -> None:
    policy, now = Aimd(floor=f"{floor}/second", ceiling=f"{floor + above}/second"), 10**15
    estimate = started(policy, now)
    for report, passed in reports:
        now += passed
        estimate = adapted(policy, estimate, report, now, most)
        assert min(floor, most) <= estimate.rate <= min(floor + above, most)


@settings(max_examples=examples(100), deadline=None)
@given(capacity=st.integers(25, 180), processes=st.integers(1, 6), seed=st.integers(0, 10))
def test_it_converges_to_a_constant_capacity_and_stays_near_it(capacity: int, processes: int, seed: int) -> None:
    log = simulate(POLICY, lambda now: float(capacity), SECONDS, processes=processes, seed=seed)
    settled = log[30:]
    assert all(0.8 * capacity <= second.rate <= 1.15 * capacity for second in settled)
    taken = sum(second.sent - second.refused for second in settled) / len(settled)
    assert taken >= 0.9 * capacity
    assert refused_share(settled) <= 0.05


@pytest.mark.parametrize(
    ("capacity", "within"), [(halves, 10), (doubles, 30)], ids=["after it halved", "after it doubled"]
)
def test_it_finds_a_new_capacity_in_time(capacity: Callable[[float], float], within: int) -> None:
    reached = seconds_to_reach(simulate(POLICY, capacity, SECONDS), 20)
    assert reached is not None
    assert reached <= within


@pytest.mark.parametrize("run", RUNS)
def test_few_calls_are_refused_on_the_way(run: str) -> None:
    capacity, noise = RUNS[run]
    assert refused_share(simulate(POLICY, capacity, SECONDS, noise=noise)) <= 0.05, "the start included"


def test_what_is_not_tried_proves_nothing() -> None:
    policy = Aimd(floor="1/second", ceiling="100/second")
    estimate = started(policy, 0)._replace(rate=50.0, step=2.0, fell_us=-COOLDOWN_US)
    assert adapted(policy, estimate, Report(answered=5), SECOND_US, 100).rate == 50
    assert adapted(policy, estimate, Report(answered=5, is_waiting=True), SECOND_US, 100).rate == 52
    assert adapted(policy, estimate, Report(answered=45), SECOND_US, 100).rate == 52


def test_it_begins_between_floor_and_ceiling_and_grows_by_half_a_second_until_the_first_trouble() -> None:
    policy = Aimd(floor="4/second", ceiling="100/second")
    estimate = adapted(policy, started(policy, 0), Report(answered=20, is_waiting=True), SECOND_US, 100)
    assert (started(policy, 0).rate, estimate.rate) == (20, 30)
    fallen = adapted(policy, estimate, Report(answered=25, throttled=5), 2 * SECOND_US, 100)
    later = adapted(policy, fallen, Report(), 3 * SECOND_US, 100)
    risen = adapted(policy, later, Report(answered=22, is_waiting=True), 4 * SECOND_US, 100)
    assert (fallen.rate, risen.rate) == (22.5, 22.5 * 1.045)


def test_errors_and_a_slow_answer_are_trouble_too() -> None:
    policy = Aimd(floor="1/second", ceiling="100/second", decrease=0.5, slow=3.0)
    estimate = started(policy, 0)._replace(rate=100.0, base_us=10_000.0)
    assert adapted(policy, estimate, Report(answered=80, failed=20), SECOND_US, 100).rate == 50
    assert adapted(policy, estimate, Report(answered=100, failed=2), SECOND_US, 100).rate == 100
    assert adapted(policy, estimate, Report(answered=100, latency_us=4_000_000), SECOND_US, 100).rate == 50
    ignoring = Aimd(floor="1/second", ceiling="100/second", slow=None)
    assert adapted(ignoring, estimate, Report(answered=100, latency_us=4_000_000), SECOND_US, 100).rate == 100


def test_calls_that_left_before_a_fall_do_not_count_again() -> None:
    policy = Aimd(floor="1/second", ceiling="100/second")
    fallen = adapted(policy, started(policy, 0)._replace(rate=100.0), Report(answered=50, throttled=50), SECOND_US, 100)
    assert fallen.rate == 50
    late = adapted(policy, fallen, Report(throttled=50), SECOND_US + COOLDOWN_US - 1, 100)
    assert late.rate == fallen.rate


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"floor": "60/second"}, "adapt.floor"),
        ({"floor": "slow"}, "adapt.floor"),
        ({"ceiling": "0/second"}, "adapt.ceiling"),
        ({"decrease": 1.0}, "adapt.decrease"),
        ({"increase": "much"}, "adapt.increase"),
        ({"slow": 1}, "adapt.slow"),
        ({"errors": -1}, "adapt.errors"),
    ],
)
def test_a_wrong_value_is_named(options: dict[str, object], field: str) -> None:
    with pytest.raises(ConfigurationError) as wrong:
        Aimd(**{"floor": "5/second", "ceiling": "50/second", **options})  # type: ignore[arg-type]
    assert wrong.value.field == field
