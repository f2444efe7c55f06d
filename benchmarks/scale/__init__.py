"""Table "Scale": how long batches of bookings take, and a simulation of bookings beside a real run of them.

`benchmarks.scale.answers` goes on from here to loads that this machine can't make: `make scale`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Coroutine, Mapping
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, TypeVar

from benchmarks.measure import Row, Spread, Table, Target
from benchmarks.scale.model import POINTS, BatchTimes
from benchmarks.scale.service_times import Measured, http_cpu, machine_cpu, measure, server_cpu
from benchmarks.scale.validation import precise_loop, predict, run
from paceline.testing.servers.postgres import PostgresServer

LOADS = (0.5, 0.8)
"""Shares of the rate at which one process books with its largest batches."""
WITHIN = Target(least=0.8, most=1.2)
Returned = TypeVar("Returned")
ROUNDS, ATTEMPTS = 5, 10
UNDISTURBED = 0.05
"""A round in which other programs used more of the machine's CPU is repeated, as often as there are attempts."""
LONGEST = 150
"""Seconds after which no further attempt is made, on a machine that is never quiet."""


@dataclass(frozen=True, slots=True)
class Round:
    """Batches that were measured, and what they predicted beside what came."""

    times: Measured
    compared: Mapping[str, tuple[float, float]]
    """Figure → (predicted, measured)."""
    others: float
    """The share of the machine's CPU that other programs used meanwhile."""


def tables(quick: bool) -> list[Table]:
    """Measures batches and compares, round by round; `quick` shows that it runs, not how well it predicts."""
    rounds, attempts = (1, 1) if quick else (ROUNDS, ATTEMPTS)
    batch_seconds, run_seconds = (0.2, 1.0) if quick else (0.6, 3.0)
    played: list[Round] = []
    started = time.perf_counter()
    with PostgresServer(fsync=True) as postgres:
        for number in range(attempts):
            played.append(_play(postgres, batch_seconds, run_seconds, number))
            calm_enough = sum(each.others <= UNDISTURBED for each in played) >= rounds
            if calm_enough or (len(played) >= rounds and time.perf_counter() - started > LONGEST):
                break
        http = http_cpu(postgres.url, 500 if quick else 5000)
    calm = sorted(played, key=lambda each: each.others)[:rounds]
    batches = _batches(merged([each.times.alone for each in calm]), http)
    return [batches, _comparison(calm, len(played), run_seconds)]


def _play(postgres: PostgresServer, batch_seconds: float, run_seconds: float, number: int) -> Round:
    busy, own, started = machine_cpu(), _own_cpu(postgres), time.perf_counter()
    times = _run(measure(postgres.url, postgres.pid, batch_seconds))
    here = times.here
    compared = {}
    for load in LOADS:
        rate = load * here.capacity()
        real = _run(run(postgres.url, rate, run_seconds, seed=number))
        expected = predict(here, rate, run_seconds)
        compared[f"{load:.0%} load: throughput"] = expected.throughput, real.throughput
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            compared[f"{load:.0%} load: {name} of the delay"] = expected.delay(share), real.delay(share)
    cores = (time.perf_counter() - started) * (os.cpu_count() or 1)
    others = (machine_cpu() - busy) - (_own_cpu(postgres) - own)
    return Round(times, compared, others / cores)


def _own_cpu(postgres: PostgresServer) -> float:
    return time.process_time() + server_cpu(postgres.pid)


def merged(measured: list[BatchTimes]) -> BatchTimes:
    """The mean of several measurements, quantile by quantile."""
    return BatchTimes(
        measured[0].sizes,
        [
            [fmean(times.seconds[index][point] for times in measured) for point in range(POINTS)]
            for index in range(len(measured[0].sizes))
        ],
        [fmean(figures) for figures in zip(*(times.cpu for times in measured), strict=True)],
        [fmean(figures) for figures in zip(*(times.database_cpu for times in measured), strict=True)],
        fmean(times.call_cpu for times in measured),
        [fmean(figures) for figures in zip(*(times.deaf for times in measured), strict=True)],
    )


def _run(work: Coroutine[Any, Any, Returned]) -> Returned:
    with asyncio.Runner(loop_factory=precise_loop) as runner:
        return runner.run(work)


def _batches(times: BatchTimes, http: float) -> Table:
    table = Table("Scale: a batch of bookings, one process, PostgreSQL")
    for index, size in enumerate(times.sizes):
        points = [seconds * 1000 for seconds in times.seconds[index]]
        cpu, database = times.cpu[index] * 1000, times.database_cpu[index] * 1000
        against = f"CPU: process {cpu:.2g} ms, database {database:.2g} ms"
        spread = Spread(points[POINTS // 2], points[1], points[POINTS - 2])
        table.add(Row(f"a batch of {size}", f"{spread.median:.2f} ms", against, spread))
    shown = "CPU of its worker, the booking included"
    table.add(Row("a request over HTTP", f"{http * 1000:.2f} ms", shown, Spread.of([http * 1000])))
    table.note("durations leave out the time in which other programs had the cores")
    table.note("the spread is from the first to the 99th percentile, in milliseconds")
    table.note(f"a call costs {times.call_cpu * 1e6:.0f} µs of CPU outside of its batch")
    table.figures = {"batches": asdict(times), "http": http}
    table.close()
    return table


def _comparison(rounds: list[Round], attempts: int, seconds: float) -> Table:
    table = Table("Scale: prediction ÷ real run")
    for figure in rounds[0].compared:
        pairs = [each.compared[figure] for each in rounds]
        predicted, measured = (_shown(figure, fmean(values)) for values in zip(*pairs, strict=True))
        ratio = Spread.of([ours / theirs for ours, theirs in pairs])
        table.add(Row(figure, predicted, f"measured {measured}", ratio, WITHIN))
    table.note(f"calls come at random for {seconds:g} s; batches were measured anew before every round")
    others = ", ".join(f"{each.others:.0%}" for each in rounds)
    table.note(f"the {len(rounds)} calmest of {attempts} rounds: other programs used {others} of the machine's CPU")
    table.close()
    return table


def _shown(figure: str, value: float) -> str:
    return f"{value:,.0f}/s" if "throughput" in figure else f"{value * 1000:.2f} ms"
