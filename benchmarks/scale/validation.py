"""A real run beside its prediction: calls that come at random times, whether or not earlier ones were answered."""

from __future__ import annotations

import asyncio
import random
import selectors
import time
from dataclasses import dataclass

from benchmarks.scale.model import BatchTimes, Outcome, Scenario, simulate
from benchmarks.scale.service_times import Caller
from paceline.slots import SlotScheduler

TICK = 0.001
"""Calls come in groups, as from a network card: at whole milliseconds. One by one, making the calls would cost this
process more than answering them."""


@dataclass(frozen=True, slots=True)
class Run:
    """What was measured: answers per second, and the delays from the planned arrival to the answer, sorted."""

    throughput: float
    delays: list[float]

    def delay(self, share: float) -> float:
        return self.delays[min(int(len(self.delays) * share), len(self.delays) - 1)]


async def run(url: str, rate: float, seconds: float, seed: int = 1) -> Run:
    """Books at `rate` for `seconds`. A call that can't be made in time counts from the time at which it should have
    been made."""
    chance = random.Random(seed)
    async with SlotScheduler.open(url) as slots:
        caller = await Caller.open(slots)
        started = time.perf_counter()
        planned = chance.expovariate(rate)
        async with asyncio.TaskGroup() as calls:
            for tick in range(1, int(seconds / TICK) + 1):
                came = started + tick * TICK
                if (wait := came - time.perf_counter()) > 0:
                    await asyncio.sleep(wait)
                while planned <= tick * TICK:
                    calls.create_task(caller.call(came))
                    planned += chance.expovariate(rate)
        ended = time.perf_counter()
    return Run(len(caller.delays) / (ended - started), sorted(caller.delays))


def precise_loop() -> asyncio.AbstractEventLoop:
    """An event loop that sleeps to the microsecond; the usual ones wake up on whole milliseconds."""
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


def predict(times: BatchTimes, rate: float, seconds: float) -> Outcome:
    """The same run, simulated."""
    return simulate(Scenario(rate, seconds, workers=1, http_seconds=0.0, tick=TICK), times)
