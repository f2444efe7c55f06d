"""An adaptive rate against a simulated downstream, in virtual time: what it finds, and what it costs.

`python -m benchmarks.adaptive_rate docs/images/adaptive-rate.png` draws the picture of the how-to.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise
from math import sin, tau
from random import Random
from typing import NamedTuple

from paceline.downstream.adaptation import SECOND_US, Aimd, Report, adapted, started

TICK = 0.05
REPORT_EVERY = 0.25


class Second(NamedTuple):
    """One simulated second."""

    at: int
    capacity: float
    rate: float
    """The estimate at its end."""
    sent: int
    refused: int


def simulate(
    policy: Aimd,
    capacity: Callable[[float], float],
    seconds: int,
    *,
    noise: float = 0.0,
    processes: int = 3,
    latency: float = 0.05,
    seed: int = 1,
) -> list[Second]:
    """Seconds of a fleet that always has something to send. The downstream takes `capacity(t)` calls per second, each
    tick's varied by `noise`, and refuses others with a 429. Processes report in turn, each a little late."""
    rng, estimate, most = Random(seed), started(policy, 0), policy.highest
    rates = [estimate.rate] * processes
    reports = [Report()] * processes
    budget, due, log = 0.0, [0.0] * processes, list[Second]()
    sent = refused = 0
    for tick in range(round(seconds / TICK)):
        now = tick * TICK
        true = max(capacity(now) * (1 + noise * rng.uniform(-1, 1)), 0.0)
        budget = min(budget + true * TICK, max(true * 0.2, 1.0))
        for process in range(processes):
            due[process] += rates[process] / processes * TICK
            calls = int(due[process])
            due[process] -= calls
            taken = min(calls, int(budget))
            budget -= taken
            sent, refused = sent + calls, refused + calls - taken
            seen = reports[process]
            reports[process] = Report(
                seen.answered + taken,
                seen.throttled + calls - taken,
                0,
                seen.latency_us + round(taken * latency * 1e6),
                True,
            )
            if (tick + process) % round(REPORT_EVERY / TICK) == 0:
                estimate = adapted(policy, estimate, reports[process], round(now * SECOND_US), most)
                reports[process], rates[process] = Report(), estimate.rate
        if (tick + 1) % round(1 / TICK) == 0:
            log.append(Second(round(now), capacity(now), estimate.rate, sent, refused))
            sent = refused = 0
    return log


POLICY = Aimd(floor="5/second", ceiling="200/second")
SECONDS = 60


def halves(now: float) -> float:
    """100 calls a second, and 50 after 20 seconds."""
    return 100.0 if now < 20 else 50.0


def doubles(now: float) -> float:
    """50 calls a second, and 100 after 20 seconds."""
    return 50.0 if now < 20 else 100.0


def drifts(now: float) -> float:
    """Between 60 and 140 calls a second, once a minute up and down."""
    return 100.0 + 40.0 * sin(tau * now / SECONDS)


def steady(now: float) -> float:
    """80 calls a second."""
    return 80.0


RUNS: dict[str, tuple[Callable[[float], float], float]] = {
    "it halves": (halves, 0.0),
    "it doubles": (doubles, 0.0),
    "it drifts": (drifts, 0.0),
    "it is noisy": (steady, 0.3),
}


def seconds_to_reach(log: list[Second], since: int, share: float = 0.9) -> int | None:
    """Seconds after `since` until as many calls were taken as `share` of the capacity, averaged over two seconds, with
    the rate at most a tenth above it."""
    for before, now in pairwise(log):
        taken = (before.sent - before.refused + now.sent - now.refused) / 2
        if before.at >= since and taken >= share * now.capacity and now.rate <= 1.1 * now.capacity:
            return now.at + 1 - since
    return None


def refused_share(log: list[Second]) -> float:
    """The share of calls that were answered 429."""
    return sum(second.refused for second in log) / max(sum(second.sent for second in log), 1)


def draw(path: str) -> None:
    """Draws capacity, rate and 429s of all runs."""
    import matplotlib.pyplot as plt  # only here: it takes a second to load

    figure, panels = plt.subplots(2, 2, figsize=(11, 6), sharex=True)
    for panel, (title, (capacity, noise)) in zip(panels.flat, RUNS.items(), strict=True):
        log = simulate(POLICY, capacity, SECONDS, noise=noise)
        at = [second.at for second in log]
        panel.step(at, [second.capacity for second in log], where="post", color="0.6", label="capacity")
        panel.plot(at, [second.rate for second in log], color="#1f6feb", label="effective rate")
        panel.bar(at, [second.refused for second in log], color="#d1242f", label="429s")
        panel.set_title(f"{title}: {refused_share(log):.1%} of the calls were 429s", fontsize=10)
        panel.set_ylim(0, 210)
    panels[0][0].legend(fontsize=8)
    figure.supxlabel("seconds")
    figure.supylabel("calls per second")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    draw(sys.argv[1])
