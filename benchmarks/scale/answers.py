"""A hundred million a day, half of it in two hours: what the simulation says with the stored service times."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from benchmarks.results import Result
from benchmarks.scale.model import POINTS, BatchTimes, Outcome, Scenario, simulate

DAILY = 100_000_000
PEAK_SECONDS = 2 * 3600
DAY_SECONDS = 24 * 3600
PEAK = DAILY / 2 / PEAK_SECONDS
QUIET = DAILY / 2 / (DAY_SECONDS - PEAK_SECONDS)
PEAK_BEGINS = 9 * 3600
SIMULATED_SECONDS = 30.0
WORKERS = (1, 2, 3, 4, 6, 8)
MULTIPLES = (0.25, 0.5, 1, 2, 4, 6, 8, 12, 16)
"""Multiples of the peak rate, to see what gives way first."""
COMFORTABLE = 0.7
"""The share of its time that a worker of these is busy: there are as many as that takes."""
SEVERAL = 4
"""Configs over which a busy one would be split."""
DOWNSTREAM = (1_300, 2_000, 4_000, 7_000)
FULL = 0.97
"""A resource that is busy for this share of the time is saturated."""
STORED = Path(__file__).with_name("simulation.json")


@dataclass(frozen=True, slots=True)
class Inputs:
    """The measured figures that the simulation stands on."""

    times: BatchTimes
    http_seconds: float

    @classmethod
    def of(cls, results: Mapping[str, Result]) -> Inputs:
        """From the stored result of the benchmark `scale`."""
        figures = results["scale"].tables[0].figures
        return cls(BatchTimes(**figures["batches"]), figures["http"])

    def to_json(self) -> dict[str, Any]:
        """A fingerprint of these inputs."""
        return {"http": self.http_seconds, "batches": [points[POINTS // 2] for points in self.times.seconds]}


def answers(inputs: Inputs, seconds: float = SIMULATED_SECONDS) -> dict[str, Any]:
    """Everything that scale.md shows, as JSON."""
    return {
        "inputs": inputs.to_json(),
        "simulatedSeconds": seconds,
        "workers": [_played(inputs, PEAK, workers, 1, seconds) for workers in WORKERS],
        "quiet": [_played(inputs, QUIET, workers, 1, seconds) for workers in (1, 2)],
        "rates": [
            _played(inputs, PEAK * multiple, enough(inputs, PEAK * multiple), configs, seconds / 10)
            for configs in (1, SEVERAL)
            for multiple in MULTIPLES
        ],
        "downstream": [backlog(rate) for rate in DOWNSTREAM],
    }


def enough(inputs: Inputs, rate: float) -> int:
    """So many workers that none is busier than is comfortable."""
    return ceil(rate * inputs.http_seconds / COMFORTABLE)


def store(document: Mapping[str, Any], path: Path = STORED) -> None:
    """Keeps what was simulated, for the page."""
    path.write_text(json.dumps(document, indent=1) + "\n", "utf-8")


def load(path: Path = STORED) -> dict[str, Any]:
    """What was simulated last."""
    document: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return document


def are_old(results: Mapping[str, Result]) -> bool:
    """Whether the batches were measured again since the last simulation."""
    return "scale" in results and (not STORED.exists() or load()["inputs"] != Inputs.of(results).to_json())


def saturated(outcome: Mapping[str, Any]) -> str:
    """The resource that gives way first, or an empty text."""
    if outcome["worker"] >= FULL:
        return "a worker's core"
    # A row that is always locked makes batches larger. It gives way only when that gains nothing more.
    return "the config's row" if outcome["answered"] < FULL * outcome["rate"] else ""


def backlog(rate: float, step: int = 60) -> dict[str, Any]:
    """A day at a downstream that takes `rate` a second: events that wait for their time, minute by minute, and the
    longest wait. Arithmetic, because slots leave no window empty while an event waits."""
    waiting, most, minutes = 0.0, 0.0, []
    for at in range(0, DAY_SECONDS, step):
        peak = PEAK_BEGINS <= at < PEAK_BEGINS + PEAK_SECONDS
        waiting = max(waiting + step * ((PEAK if peak else QUIET) - rate), 0.0)
        most = max(most, waiting)
        minutes.append(round(waiting))
    emptied = next((index for index, left in enumerate(minutes) if index * step > PEAK_BEGINS and left == 0), None)
    return {
        "rate": rate,
        "most": round(most),
        "longestSeconds": round(most / rate),
        "emptyAgainSeconds": None if emptied is None else emptied * step - PEAK_BEGINS,
        "minutes": minutes[::10],
    }


def _played(inputs: Inputs, rate: float, workers: int, configs: int, seconds: float) -> dict[str, Any]:
    outcome = simulate(Scenario(rate, seconds, workers, inputs.http_seconds, configs), inputs.times)
    return {"rate": round(rate, 1), "workers": workers, "configs": configs, **_figures(outcome)}


def _figures(outcome: Outcome) -> dict[str, float]:
    delays: Sequence[tuple[str, float]] = (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))
    return {
        "answered": round(outcome.steady, 1),
        "worker": round(outcome.worker_busy, 4),
        "row": round(outcome.row_busy, 4),
        "databaseCores": round(outcome.database_cores, 3),
        "connections": round(outcome.connections, 2),
        "batch": round(outcome.mean_batch, 2),
        **{name: round(outcome.delay(share), 6) for name, share in delays},
    }
