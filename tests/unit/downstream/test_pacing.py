"""What the limit makes of calls that all wait, in both modes of counting."""

from __future__ import annotations

from bisect import bisect_right

import pytest

from paceline.downstream.pacing import departures, sustained_rate
from paceline.downstream.rate_gate import LimitAt


@pytest.mark.parametrize(("limit_at", "rate"), [("answer", 50 / 1.2), ("departure", 50.0)])
def test_a_minute_at_200_ms(limit_at: LimitAt, rate: float) -> None:
    times = departures(50, 0.2, limit_at, 60)
    assert sustained_rate(50, 0.2, limit_at) == pytest.approx(rate)
    assert len(times) / 60 == pytest.approx(rate, rel=0.01)
    assert max(index + 1 - bisect_right(times, at - 1.0 + 1e-6) for index, at in enumerate(times)) <= 50
