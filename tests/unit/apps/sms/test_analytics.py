"""Rates, peaks and anomalies from counted minutes."""

from __future__ import annotations

from paceline_sms.analytics import (
    MinuteCount,
    Peak,
    anomalies,
    baseline_since,
    by_user,
    recent_since,
    series,
    summary,
)
from paceline_sms.model import Outcome

MINUTE = 60_000
START = 1_800_000_000_000 // MINUTE * MINUTE
SENT, LIMITED, FAILED = Outcome.SENT, Outcome.RATE_LIMITED, Outcome.FAILED


def counted(user: int, minute: int, attempts: int, outcome: Outcome = SENT) -> MinuteCount:
    return MinuteCount(user, START + minute * MINUTE, outcome, attempts)


def test_a_summary_adds_up_and_finds_the_busiest_minute() -> None:
    counts = [counted(1, 0, 6), counted(1, 1, 4, LIMITED), counted(2, 1, 9), counted(2, 2, 1, FAILED)]
    total = summary(counts, 10)
    assert (total.attempts, total.sent, total.rate_limited, total.failed) == (20, 15, 4, 1)
    assert total.rate_limited_share == 0.2
    assert total.per_minute == 2.0
    assert total.peak == Peak(START + MINUTE, 13)


def test_no_attempts_have_no_peak_and_no_share() -> None:
    total = summary([], 10)
    assert (total.attempts, total.rate_limited_share, total.peak) == (0, 0.0, None)


def test_counts_are_grouped_by_minute_and_by_user() -> None:
    counts = [counted(2, 1, 3), counted(1, 0, 1), counted(1, 1, 2, LIMITED)]
    assert series(counts) == [
        (START, {SENT: 1, LIMITED: 0, FAILED: 0}),
        (START + MINUTE, {SENT: 3, LIMITED: 2, FAILED: 0}),
    ]
    assert set(by_user(counts)) == {1, 2}


def now_at(minute: int) -> int:
    return START + minute * MINUTE + 30_000


def test_a_user_far_above_the_own_baseline_is_flagged() -> None:
    steady = [counted(1, minute, 3) for minute in range(60)]
    sudden = [counted(2, minute, 3) for minute in range(55)] + [counted(2, 55 + n, 40) for n in range(5)]
    (anomaly,) = anomalies(steady + sudden, START, now_at(59))
    assert anomaly.user_id == 2
    assert anomaly.recent_per_minute == 40
    assert anomaly.baseline_per_minute == 3
    assert not anomaly.newly_limited


def test_a_user_who_is_limited_for_the_first_time_is_marked() -> None:
    counts = [counted(1, minute, 2) for minute in range(50)] + [counted(1, 58, 20), counted(1, 59, 60, LIMITED)]
    (anomaly,) = anomalies(counts, START, now_at(59))
    assert anomaly.newly_limited


def test_a_user_who_always_sends_much_is_not_unusual() -> None:
    bursts = [counted(1, minute, 100 if minute % 3 == 0 else 1) for minute in range(60)]
    assert anomalies(bursts, START, now_at(59)) == []


def test_a_new_user_and_a_few_messages_are_not_unusual() -> None:
    new = [counted(1, minute, 15) for minute in range(55, 60)]
    few = [counted(2, 0, 1), counted(2, 59, 5)]
    late = [counted(3, 52, 1), counted(3, 59, 90)]
    assert anomalies(new + few + late, START, now_at(59)) == []


def test_a_user_newly_limited_at_the_usual_rate_is_flagged() -> None:
    """15.7."""
    counts = [counted(1, minute, 3) for minute in range(58)] + [counted(1, 58, 3, LIMITED), counted(1, 59, 3, LIMITED)]
    (anomaly,) = anomalies(counts, START, now_at(59))
    assert anomaly.newly_limited
    always = [counted(1, minute, 3, LIMITED) for minute in range(60)]
    assert anomalies(always, START, now_at(59)) == []


def test_a_user_silent_for_the_whole_span_who_then_sends_much_is_flagged() -> None:
    """15.7."""
    (anomaly,) = anomalies([counted(1, 59, 2500)], START, now_at(59))
    assert (anomaly.user_id, anomaly.baseline_per_minute, anomaly.recent_per_minute) == (1, 0, 500)


def test_a_short_span_has_a_baseline_of_an_hour() -> None:
    """15.7: spans under 20 minutes never flagged a user."""
    now_ms = now_at(59)
    assert baseline_since(START + 55 * MINUTE, now_ms) == START
    assert baseline_since(START - 600 * MINUTE, now_ms) == START - 600 * MINUTE
    assert recent_since(now_ms) == START + 55 * MINUTE


def test_a_user_who_was_silent_before_and_sends_much_now_is_flagged() -> None:
    counts = [counted(1, 0, 1), counted(1, 59, 200)]
    assert [anomaly.user_id for anomaly in anomalies(counts, START, now_at(59))] == [1]
