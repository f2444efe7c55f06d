"""Analytics of the attempts: rates, the share that was limited, peaks, and users far above their own baseline.

Pure functions of counts per minute, which the store provides.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from paceline_sms.model import MINUTE_MS, Outcome

RECENT_MINUTES = 5
"""The last minutes, which are compared with the user's earlier ones."""
BASELINE_MINUTES = 60
"""The shortest baseline, however short the requested span is."""
LEAST_BASELINE_MINUTES = 5
LEAST_RECENT = 20
"""Fewer attempts are never an anomaly."""
LEAST_BURST = 100
"""More attempts of a user without a baseline are an anomaly."""
FAR = 4.0
"""Standard deviations above the baseline that count as far."""


class MinuteCount(NamedTuple):
    """Attempts of one user (-1: of all) in one minute with one outcome."""

    user_id: int
    minute_ms: int
    outcome: Outcome
    attempts: int


class Peak(NamedTuple):
    minute_ms: int
    attempts: int


class Summary(NamedTuple):
    """Attempts in a span, for one user or all."""

    attempts: int
    sent: int
    rate_limited: int
    failed: int
    rate_limited_share: float
    """Of all attempts; 0 if there were none."""
    per_minute: float
    peak: Peak | None


class Anomaly(NamedTuple):
    """A user that sends far more than before."""

    user_id: int
    recent_per_minute: float
    baseline_per_minute: float
    deviations: float
    newly_limited: bool
    """Is being limited now and was not before."""


def summary(counts: Iterable[MinuteCount], minutes: int) -> Summary:
    """The totals of `counts` over a span of `minutes`."""
    by_outcome: dict[Outcome, int] = defaultdict(int)
    by_minute: dict[int, int] = defaultdict(int)
    for count in counts:
        by_outcome[count.outcome] += count.attempts
        by_minute[count.minute_ms] += count.attempts
    attempts = sum(by_outcome.values())
    peak = max(by_minute.items(), key=lambda item: (item[1], -item[0]), default=None)
    return Summary(
        attempts,
        by_outcome[Outcome.SENT],
        by_outcome[Outcome.RATE_LIMITED],
        by_outcome[Outcome.FAILED],
        by_outcome[Outcome.RATE_LIMITED] / attempts if attempts else 0.0,
        attempts / minutes,
        Peak(*peak) if peak else None,
    )


def by_user(counts: Iterable[MinuteCount]) -> dict[int, list[MinuteCount]]:
    """The counts of each user."""
    users: dict[int, list[MinuteCount]] = defaultdict(list)
    for count in counts:
        users[count.user_id].append(count)
    return dict(users)


def series(counts: Iterable[MinuteCount]) -> list[tuple[int, dict[Outcome, int]]]:
    """Attempts by minute and outcome, oldest first; minutes without any are left out."""
    minutes: dict[int, dict[Outcome, int]] = defaultdict(lambda: dict.fromkeys(Outcome, 0))
    for count in counts:
        minutes[count.minute_ms][count.outcome] += count.attempts
    return sorted(minutes.items())


def recent_since(now_ms: int) -> int:
    """From which minute on attempts count as recent."""
    return (now_ms // MINUTE_MS - RECENT_MINUTES + 1) * MINUTE_MS


def baseline_since(since_ms: int, now_ms: int) -> int:
    """From which minute on attempts are compared with the recent ones."""
    return min(since_ms, (now_ms // MINUTE_MS - BASELINE_MINUTES + 1) * MINUTE_MS)


def anomalies(counts: Sequence[MinuteCount], since_ms: int, now_ms: int) -> list[Anomaly]:
    """Users whose last minutes lie far above their own earlier ones since `since_ms`, the farthest first."""
    candidates = (_anomaly(user_id, own, since_ms, now_ms) for user_id, own in by_user(counts).items())
    return sorted((anomaly for anomaly in candidates if anomaly is not None), key=lambda anomaly: -anomaly.deviations)


def _anomaly(user_id: int, counts: Sequence[MinuteCount], since_ms: int, now_ms: int) -> Anomaly | None:
    border = recent_since(now_ms)
    earlier: dict[int, int] = defaultdict(int)
    recent = limited_recently = limited_earlier = 0
    for _, minute_ms, outcome, count in counts:
        limited = count if outcome is Outcome.RATE_LIMITED else 0
        if minute_ms >= border:
            recent += count
            limited_recently += limited
        else:
            earlier[minute_ms] += count
            limited_earlier += limited
    newly_limited = limited_recently > 0 and limited_earlier == 0
    rate = recent / RECENT_MINUTES
    first = max(since_ms, min(earlier, default=since_ms))
    minutes = (border - first) // MINUTE_MS
    if not earlier or minutes < LEAST_BASELINE_MINUTES:
        # A user without a baseline is judged by the number of attempts alone.
        if recent < LEAST_BURST:
            return None
        return Anomaly(user_id, rate, 0.0, rate * math.sqrt(RECENT_MINUTES), newly_limited)
    mean = sum(earlier.values()) / minutes
    # Minutes without attempts are part of the baseline.
    variance = sum((count - mean) ** 2 for count in earlier.values()) + (minutes - len(earlier)) * mean**2
    # At least the spread of random arrivals, so that a perfectly regular user is not flagged for one more message.
    spread = max(math.sqrt(variance / minutes), math.sqrt(mean), 1.0) / math.sqrt(RECENT_MINUTES)
    deviations = (rate - mean) / spread
    far = recent >= LEAST_RECENT and deviations >= FAR and rate >= 2 * mean
    # A user that is limited for the first time is an anomaly at any rate.
    return Anomaly(user_id, rate, mean, deviations, newly_limited) if far or newly_limited else None
