"""The effective rate towards a downstream whose capacity nobody knows exactly, and which changes. Pure.

Additive increase, multiplicative decrease. While the other side is well and calls wait, the rate rises by a constant
step each second. When it throttles, fails or slows down, the rate falls to what it has really answered, times
`decrease`; what calls say that left before the fall does not count again. There is one estimate for all processes, in
the store; each reports what it saw.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, sqrt
from typing import NamedTuple

from paceline.errors import ConfigurationError
from paceline.limits.rate_text import parse_rate
from paceline.options import is_number

SECOND_US = 1_000_000
INTERVAL_US = SECOND_US
"""How long is observed before the rate rises by one step."""
COOLDOWN_US = SECOND_US
"""After a fall, for so long what is reported belongs to the rate before it."""
SHORTEST_US = SECOND_US // 4
"""Shorter observations tell nothing about the rate of answers."""
ENOUGH = 10
"""Answers, from which on their rate is believed."""
LARGEST_FALL = 0.5
"""Of one step: other callers of the same system may cause a few refusals while we hardly call it."""
PROBING = 1.5
"""The factor per second by which the rate rises before its first fall."""
USED = 0.7
"""Share of the rate that must be used, if no call waits, before it rises: what is not tried proves nothing."""
BASE_GAIN = 0.02
"""By how much per second the usual latency may rise: it is the least that was seen of late."""


@dataclass(frozen=True)
class Aimd:
    """An adaptive rate between a floor and a ceiling.

        Downstream("api", "redis://…", adapt=Aimd(floor="5/second", ceiling="50/second"))

    `decrease` is the factor of a fall, `increase` the share of the rate after the last fall that is added per second.
    The other side slows down if its latency exceeds the usual one by the factor `slow` (None: latency is ignored), and
    fails if more than the share `errors` of its answers are errors.

    Raises:
        ConfigurationError: a value can't be used, or the floor is above the ceiling.
    """

    floor: str
    ceiling: str
    decrease: float = 0.9
    increase: float = 0.045
    slow: float | None = 3.0
    errors: float = 0.1

    def __post_init__(self) -> None:
        if self.lowest > self.highest:
            raise ConfigurationError("adapt.floor", f"{self.floor} is above the ceiling {self.ceiling}")
        for name, value, low, high in (
            ("decrease", self.decrease, 0.1, 0.99),
            ("increase", self.increase, 0.001, 1.0),
            ("slow", 2.0 if self.slow is None else self.slow, 1.1, 1000.0),
            ("errors", self.errors, 0.0, 1.0),
        ):
            if not is_number(value) or not low <= value <= high:
                raise ConfigurationError(f"adapt.{name}", f"{value!r} is not a number from {low} to {high}")

    @property
    def lowest(self) -> float:
        """The floor, per second."""
        return float(parse_rate(self.floor, "adapt.floor", "5/second").per_second)

    @property
    def highest(self) -> float:
        """The ceiling, per second."""
        return float(parse_rate(self.ceiling, "adapt.ceiling", "50/second").per_second)


class Report(NamedTuple):
    """What one process saw since its last report."""

    answered: int = 0
    """Calls that were answered and not refused, errors included."""
    throttled: int = 0
    failed: int = 0
    latency_us: int = 0
    """The sum over those that were answered."""
    is_waiting: bool = False
    """Calls wait for their turn."""


class Estimate(NamedTuple):
    """The rate, and what was reported since `since_us`. Times are microseconds of the store's clock."""

    rate: float
    """Calls per second."""
    step: float
    """By which it rises per second."""
    since_us: int
    fell_us: int = 0
    answered: int = 0
    throttled: int = 0
    failed: int = 0
    latency_us: int = 0
    is_waiting: bool = False
    base_us: float = 0.0
    """The usual latency; 0 if none is known."""


def started(policy: Aimd, now_us: int) -> Estimate:
    """The first estimate: between floor and ceiling, as many times above the one as below the other. It grows by
    `PROBING` a second until the first trouble shows where the capacity is."""
    rate = sqrt(policy.lowest * policy.highest)
    return Estimate(rate, policy.increase * rate, now_us)


def adapted(policy: Aimd, estimate: Estimate, report: Report, now_us: int, most: float) -> Estimate:
    """The estimate after a report. `most` is the hard rate, per second: the estimate is never above it or the ceiling,
    and never below the floor, unless `most` is."""
    if not 0 <= now_us - estimate.fell_us < COOLDOWN_US:
        estimate = _added(estimate, report)
        elapsed_us = now_us - estimate.since_us
        if elapsed_us < 0:  # the store's clock was set back
            estimate = _observing(estimate, now_us)
        elif elapsed_us >= SHORTEST_US and _is_in_trouble(policy, estimate, elapsed_us):
            estimate = _fallen(policy, estimate, elapsed_us, now_us)
        elif elapsed_us >= INTERVAL_US:
            estimate = _risen(estimate, elapsed_us, now_us)
    else:
        estimate = _observing(estimate, now_us)
    return estimate._replace(rate=bounded(policy, estimate.rate, most))


def bounded(policy: Aimd, rate: float, most: float) -> float:
    """A rate within its bounds."""
    highest = min(policy.highest, most)
    return min(max(rate if isfinite(rate) else highest, policy.lowest), highest)


def _added(estimate: Estimate, report: Report) -> Estimate:
    return estimate._replace(
        answered=estimate.answered + report.answered,
        throttled=estimate.throttled + report.throttled,
        failed=estimate.failed + report.failed,
        latency_us=estimate.latency_us + report.latency_us,
        is_waiting=estimate.is_waiting or report.is_waiting,
    )


def _observing(estimate: Estimate, now_us: int) -> Estimate:
    """The estimate with nothing reported yet."""
    return estimate._replace(since_us=now_us, answered=0, throttled=0, failed=0, latency_us=0, is_waiting=False)


def _is_in_trouble(policy: Aimd, estimate: Estimate, elapsed_us: int) -> bool:
    if estimate.throttled:
        return True
    seen = estimate.answered + estimate.failed
    if estimate.failed and seen >= ENOUGH and estimate.failed > policy.errors * seen:
        return True
    if policy.slow is None or not estimate.base_us or estimate.answered < ENOUGH or elapsed_us < INTERVAL_US:
        return False
    return estimate.latency_us / estimate.answered > policy.slow * estimate.base_us


def _fallen(policy: Aimd, estimate: Estimate, elapsed_us: int, now_us: int) -> Estimate:
    taken = estimate.rate
    if estimate.throttled and estimate.answered >= ENOUGH:
        # Both say too little at times: one if little was observed, the other if refusals came late in it.
        share = estimate.answered / (estimate.answered + estimate.throttled)
        taken = min(taken, max(estimate.answered * SECOND_US / elapsed_us, taken * share))
    rate = max(taken * policy.decrease, estimate.rate * LARGEST_FALL)
    return _observing(estimate, now_us)._replace(rate=rate, step=policy.increase * rate, fell_us=now_us)


def _risen(estimate: Estimate, elapsed_us: int, now_us: int) -> Estimate:
    rate, seconds = estimate.rate, min(elapsed_us, 2 * INTERVAL_US) / SECOND_US
    if estimate.is_waiting or estimate.answered * SECOND_US >= USED * rate * elapsed_us:
        rate += estimate.step * seconds if estimate.fell_us else (PROBING - 1) * rate * seconds
    base_us = estimate.base_us
    if estimate.answered:
        latency_us = estimate.latency_us / estimate.answered
        base_us = min(base_us * (1 + BASE_GAIN * seconds), latency_us) if base_us else latency_us
    return _observing(estimate, now_us)._replace(rate=rate, base_us=base_us)
