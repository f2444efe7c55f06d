"""Bookings as a discrete-event simulation: arrivals, HTTP workers, batches, the config's row. Pure: nothing is run.

A call arrives at one of several workers, is read there (one at a time), and waits for the next batch of its worker and
config, which have one batch in flight. The last part of a batch holds the config's row, which one worker at a time has.
The call is answered when its batch is committed.

It is written by hand because batches are its only events: a general library for simulation makes several events of
every call, and takes minutes for what takes seconds here.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import ceil, inf

MAX_BATCH = 1000
POINTS = 101
"""Quantiles that are kept of a measured duration: 0 %, 1 % … 100 %."""


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """How long batches take, by their size, as they were measured."""

    sizes: Sequence[int]
    seconds: Sequence[Sequence[float]]
    """By size: the quantiles of a batch's duration."""
    cpu: Sequence[float]
    """By size: CPU seconds of the process per batch."""
    database_cpu: Sequence[float]
    """By size: CPU seconds of the database per batch."""
    call_cpu: float
    """CPU seconds of the process per call outside of the batch: making the call and taking its answer."""
    deaf: Sequence[float]
    """By size: seconds at a batch's end in which the process only computes. Calls that come then miss the next one."""

    def duration(self, size: int, quantile: float) -> float:
        """Seconds from a batch's start to its answers, in an open system.

        Measured batches contain the CPU time of their callers, which waited for nothing else. In an open system
        callers arrive while the batch before waits for the database, so that part overlaps.
        """
        position = quantile * (POINTS - 1)
        low = int(position)
        high = min(low + 1, POINTS - 1)
        below, above, share = self._between(size)
        seconds = 0.0
        for index, weight in ((below, 1 - share), (above, share)):
            points = self.seconds[index]
            seconds += weight * (points[low] + (position - low) * (points[high] - points[low]))
        return seconds - min(self.call_cpu * size, max(seconds - self.of(self.cpu, size), 0.0))

    def own_cpu(self, size: int) -> float:
        """CPU seconds of a batch in its process, its callers' left out."""
        return max(self.of(self.cpu, size) - self.call_cpu * size, 0.0)

    def of(self, figures: Sequence[float], size: int) -> float:
        """A figure by size, between the sizes that were measured."""
        below, above, share = self._between(size)
        return figures[below] * (1 - share) + figures[above] * share

    def capacity(self) -> float:
        """Calls per second of one process whose batches are as large as the largest measured."""
        median = self.seconds[-1][POINTS // 2]
        return self.sizes[-1] / median

    def _between(self, size: int) -> tuple[int, int, float]:
        """The measured sizes around this one, and where it lies between them; beyond the last the line goes on."""
        above = min(max(bisect_left(self.sizes, size), 1), len(self.sizes) - 1)
        below = above - 1
        return below, above, max((size - self.sizes[below]) / (self.sizes[above] - self.sizes[below]), 0.0)


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is simulated."""

    rate: float
    """Calls per second, all workers together; arrivals are random (Poisson)."""
    seconds: float
    workers: int
    http_seconds: float
    """CPU seconds of a worker per request, its share of a batch included; 0 for callers inside the process."""
    configs: int = 1
    """Over how many configs, each with a row of its own, calls are spread."""
    tick: float = 0.0
    """Calls come in groups so many seconds apart; 0 for one by one."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results."""

    throughput: float
    """Calls per second from the first to the last answer."""
    steady: float
    """Answers per second in the second half of the time: the rate of arrivals, unless something is saturated."""
    delays: Sequence[float]
    """Seconds from arrival to answer, sorted."""
    worker_busy: float
    """The share of time in which a worker's core works."""
    row_busy: float
    """The share of time in which a config's row is locked."""
    database_cores: float
    connections: float
    """Connections in use, on average."""
    mean_batch: float

    def delay(self, share: float) -> float:
        """A percentile of the delay: `delay(0.99)`."""
        return self.delays[min(int(len(self.delays) * share), len(self.delays) - 1)]


def simulate(scenario: Scenario, times: BatchTimes, seed: int = 1) -> Outcome:
    """Plays the scenario. The same seed gives the same outcome."""
    chance = random.Random(seed)
    writers = [writer for _ in range(scenario.workers) for writer in _writers(scenario, chance)]
    taken = [0] * len(writers)
    row_free = [0.0] * scenario.configs
    ready = [(calls[0][0], number, calls[0][0]) for number, calls in enumerate(writers) if calls]
    heapify(ready)
    delays: list[float] = []
    half = scenario.seconds / 2
    late = 0
    batches, row_busy, in_use, cpu, database_cpu, ended = 0, 0.0, 0.0, 0.0, 0.0, scenario.seconds
    while ready:
        start, number, heard = heappop(ready)
        calls, first, config = writers[number], taken[number], number % scenario.configs
        last = min(bisect_right(calls, (heard, inf), first), first + MAX_BATCH)
        size = last - first
        seconds = times.duration(size, chance.random())
        own = min(times.own_cpu(size), seconds)
        locked = max(start + own, row_free[config])
        row_free[config] = end = locked + seconds - own
        delays += [end - arrived for _, arrived in calls[first:last]]
        batches += 1
        row_busy += seconds - own
        in_use += end - start
        cpu += size * scenario.http_seconds or own
        database_cpu += times.of(times.database_cpu, size)
        ended = max(ended, end)
        late += size if half <= end < scenario.seconds else 0
        taken[number] = last
        if last < len(calls):
            heard = end - times.of(times.deaf, size)
            if calls[last][0] > heard:  # nobody was heard: the next batch begins with those who are heard first
                heard = max(end, calls[last][0])
            heappush(ready, (max(end, heard), number, heard))
    delays.sort()
    return Outcome(
        len(delays) / ended,
        late / half,
        delays,
        cpu / scenario.workers / ended,
        row_busy / scenario.configs / ended,
        database_cpu / ended,
        in_use / ended,
        len(delays) / max(batches, 1),
    )


def _writers(scenario: Scenario, chance: random.Random) -> list[list[tuple[float, float]]]:
    """The calls that come to one worker, by config: when each was read, and when it came.

    Requests are read one at a time, in order. Reading times vary exponentially: more than measured, so queues come out
    rather too long than too short.
    """
    writers: list[list[tuple[float, float]]] = [[] for _ in range(scenario.configs)]
    arrived = free = 0.0
    rate = scenario.rate / scenario.workers
    while (arrived := arrived + chance.expovariate(rate)) < scenario.seconds:
        came = ceil(arrived / scenario.tick) * scenario.tick if scenario.tick else arrived
        free = max(free, came)
        if scenario.http_seconds:
            free += chance.expovariate(1 / scenario.http_seconds)
        writers[chance.randrange(scenario.configs)].append((free, came))
    return writers
