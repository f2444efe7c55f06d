"""How many items a process holds beyond those that it runs."""

from __future__ import annotations

from paceline.dispatch.worker.pace import MAX_PREFETCH, Pace


def test_a_process_holds_what_it_will_start_within_half_a_second() -> None:
    now = 100.0
    pace = Pace(clock=lambda: now)
    assert pace.prefetch("WORK") == 0
    for _ in range(40):
        pace.ended("WORK")
    assert (pace.prefetch("WORK"), pace.prefetch("OTHER")) == (20, 0)
    now = 101.5
    assert pace.prefetch("WORK") == 10
    now = 103.0
    assert pace.prefetch("WORK") == 0


def test_a_bound_holds_at_any_pace() -> None:
    pace, bounded = Pace(clock=lambda: 0.0), Pace(7, clock=lambda: 0.0)
    for _ in range(3 * MAX_PREFETCH):
        pace.ended("WORK")
        bounded.ended("WORK")
    assert (pace.prefetch("WORK"), bounded.prefetch("WORK")) == (MAX_PREFETCH, 7)
