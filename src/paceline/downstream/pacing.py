"""The rate and the departures of waiting calls under the hard limit, simulated in virtual time."""

from __future__ import annotations

from collections import deque

from paceline.downstream import permits
from paceline.downstream.permits import SECOND_US, Permits
from paceline.downstream.rate_gate import LimitAt, longest_hold, permit_policy


def sustained_rate(tps: int, latency: float, limit_at: LimitAt) -> float:
    """Calls per second, once all permits are in use."""
    return tps / (1 + latency) if limit_at == "answer" else float(tps)


def departures(tps: int, latency: float, limit_at: LimitAt, seconds: float) -> list[float]:
    """The departures of calls within `seconds`, if each response takes `latency` seconds."""
    policy, state, now, times = permit_policy(tps, 1), Permits({}), 0, list[float]()
    hold_us, end_us = round(longest_hold(latency) * SECOND_US), round(seconds * SECOND_US)
    counted_us = round(latency * SECOND_US) if limit_at == "answer" else 0
    events: deque[tuple[int, str]] = deque()
    """When a permit's call is counted, and whose it is."""
    while now < end_us:
        while events and events[0][0] <= now:
            at_us, holder = events.popleft()
            state = permits.free(state, holder, at_us + SECOND_US)
        state, grant = permits.take(state, policy, str(len(times)), hold_us, now)
        if grant.wait_us:
            now += min(grant.wait_us, max(1, events[0][0] - now)) if events else grant.wait_us
            continue
        left_us = now + grant.delay_us
        events.append((left_us + counted_us, str(len(times))))
        times.append(left_us / SECOND_US)
    return times
