"""A process's estimate of its store's clock."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paceline.downstream.store_clock import StoreClock

NOON = 1_800_000_000.0


@given(
    st.floats(-1e4, 1e4),
    st.lists(st.tuples(st.floats(0, 5), st.floats(0, 0.3), st.floats(0, 0.3)), min_size=1, max_size=40),
)
def test_the_bounds_hold_and_are_as_tight_as_the_fastest_answer(
    offset: float, answers: list[tuple[float, float, float]]
) -> None:
    clock, now = StoreClock(), 100.0
    for passed, there, back in answers:
        now += passed
        read_at, answered_at = now + there, now + there + back
        clock.record(round((NOON + offset + read_at) * 1e6), requested_at=now, answered_at=answered_at)
        now = answered_at
    moment = round((NOON + offset + now) * 1e6)
    assert clock.earliest(moment) - 1e-5 <= now <= clock.latest(moment) + 1e-5
    assert moment - 10 <= clock.store_us(now) <= moment + (clock.latest(moment) - clock.earliest(moment)) * 1e6 + 10
    fastest = min(there + back for _, there, back in answers[-5:])
    assert clock.latest(moment) - clock.earliest(moment) <= fastest + 0.1, "five answers are half a minute, at most"


def test_a_clock_that_was_set_is_believed_at_once() -> None:
    clock = StoreClock()
    clock.record(1_000_000_000, requested_at=0.0, answered_at=0.001)
    clock.record(5_000_000_000, requested_at=1.0, answered_at=1.002)
    assert 1.0 - 1e-6 <= clock.earliest(5_000_000_000) <= clock.latest(5_000_000_000) <= 1.002 + 1e-6
