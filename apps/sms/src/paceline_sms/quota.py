"""Quotas: what a user may send, decided by the limiter's own arithmetic (`paceline.limits.algorithms`).

A quota is a limiter's spec and state in a row of the gateway's own, because the decision, the message and the
idempotency key must be one transaction. Times are epoch milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache

from paceline.errors import ConfigurationError, InvalidInput, PacelineError
from paceline.limits.algorithms import State, at_opened, room, take
from paceline.limits.model import LONGEST, FixedWindow, SlidingLog, SlidingWindow, Spec, TokenBucket
from paceline_sms.model import Attempt, Verdict
from paceline_sms.recipients import NOBODY, Recipient

ALGORITHMS = ("fixed_window", "sliding_window", "sliding_log", "token_bucket")
_MOST_MINUTES = LONGEST // timedelta(minutes=1)


class Unit(StrEnum):
    """What a quota counts."""

    MESSAGE = "message"
    SEGMENT = "segment"


@dataclass(frozen=True, slots=True)
class Quota:
    """What one user may send, and has sent, in the window that began at `refreshed_ms`."""

    user_id: int
    rate_limit: int
    window_minutes: int
    count: int
    refreshed_ms: int
    version: int = 1
    """Grows with every configuration, so that an outdated copy is recognised."""
    algorithm: str = FixedWindow.algorithm
    unit: Unit = Unit.MESSAGE
    state: State | None = None
    """The limiter's state, unless the algorithm is a fixed window: then `count` and `refreshed_ms` are the state."""
    recipient: Recipient = NOBODY

    @property
    def spec(self) -> Spec:
        return quota_spec(self.algorithm, self.rate_limit, self.window_minutes)

    @property
    def is_plain(self) -> bool:
        """Whether a cache may count for the store: messages in a fixed window."""
        return self.algorithm == FixedWindow.algorithm and self.unit is Unit.MESSAGE

    @property
    def ends_ms(self) -> int:
        """The instant from which on a fixed window counts as elapsed."""
        return self.refreshed_ms + self.spec.life_us // 1000

    def cost(self, attempt: Attempt) -> int:
        return attempt.segments if self.unit is Unit.SEGMENT else 1

    def current(self, now_ms: int) -> Quota:
        """The quota as of now: a new, empty window if the old one has elapsed (lazy refresh)."""
        return self.with_state(self._view(now_ms), now_ms)

    def with_state(self, state: State, now_ms: int) -> Quota:
        """The quota with another state of the limiter."""
        if self.algorithm == FixedWindow.algorithm:
            _, start_us, used = state
            changed = (start_us // 1000, used) != (self.refreshed_ms, min(self.count, self.rate_limit))
            return replace(self, count=used, refreshed_ms=start_us // 1000) if changed else self
        remaining = room(self.spec, state, now_ms * 1000, 1).remaining
        return replace(self, count=self.rate_limit - remaining, state=state)

    def _view(self, now_ms: int) -> State:
        state = self.state
        if self.algorithm == FixedWindow.algorithm:
            state = (FixedWindow.tag, self.refreshed_ms * 1000, self.count)
        return at_opened(self.spec, state, now_ms * 1000)


@lru_cache(1024)
def quota_spec(algorithm: str, rate_limit: int, window_minutes: int) -> Spec:
    """The limiter's spec of a quota. A window of more than ten years ends after ten years.

    Raises:
        InvalidInput: The algorithm is unknown, or can't keep such numbers.
    """
    window = timedelta(minutes=min(window_minutes, _MOST_MINUTES))
    try:
        match algorithm:
            case "fixed_window":
                return FixedWindow(rate_limit, window)
            case "sliding_window":
                return SlidingWindow(rate_limit, window)
            case "sliding_log":
                return SlidingLog(rate_limit, window)
            case "token_bucket":
                return TokenBucket(rate_limit, Fraction(rate_limit, int(window.total_seconds())))
    except ConfigurationError as error:
        field = "rate_limit" if error.field in ("limit", "capacity", "per_second") else "time_window"
        raise InvalidInput(field, error.problem) from None
    raise InvalidInput("algorithm", f"must be one of {', '.join(ALGORITHMS)}")


def decide(quota: Quota, attempt: Attempt, now_ms: int) -> tuple[Quota, Verdict | PacelineError]:
    """The decision on one attempt, and the quota after it. A refusal changes nothing, nor does what a budget paid."""
    if attempt.prepaid:
        return quota, _verdict(quota.current(now_ms), attempt, now_ms, max(quota.ends_ms - now_ms, 0), allowed=True)
    spec, view, cost = quota.spec, quota._view(now_ms), quota.cost(attempt)
    if cost > spec.size:
        problem = f"takes {cost} segments, and the whole quota is {spec.size}; shorten it or raise the quota"
        return quota, InvalidInput("message", problem)
    _, retry_us, _ = room(spec, view, now_ms * 1000, cost)
    current = quota.with_state(view, now_ms)
    if retry_us:
        return quota, _verdict(current, attempt, now_ms, -(-retry_us // 1000), allowed=False)
    after = quota.with_state(take(spec, view, now_ms * 1000, cost), now_ms)
    reset_us = room(spec, after._view(now_ms), now_ms * 1000, 1).reset_after_us
    return after, _verdict(after, attempt, now_ms, reset_us // 1000, allowed=True)


def replay(quota: Quota, attempt: Attempt, now_ms: int) -> Verdict:
    """The verdict on an idempotency key that was sent before."""
    current = quota.current(now_ms)
    return _verdict(current, attempt, now_ms, max(current.ends_ms - now_ms, 0), allowed=True)._replace(replayed=True)


def _verdict(quota: Quota, attempt: Attempt, now_ms: int, reset_ms: int, *, allowed: bool) -> Verdict:
    return Verdict(
        allowed,
        attempt.message_id,
        quota.count,
        quota.rate_limit,
        reset_ms,
        now_ms,
        is_plain=quota.is_plain,
        unit=quota.unit,
    )


MAX_BUDGET = 1000


def lease(quota: Quota, callers: int, now_ms: int) -> tuple[Quota, int]:
    """The quota after a budget was leased from it, and the budget: a tenth of the limit, or one for each caller who
    waits; 0 if nothing is left. Only of a quota that `is_plain`."""
    current = quota.current(now_ms)
    budget = min(max(current.rate_limit // 10, callers, 1), MAX_BUDGET, current.rate_limit - current.count)
    return replace(current, count=current.count + max(budget, 0)), max(budget, 0)
