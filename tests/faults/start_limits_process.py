"""A worker whose items tell a recorder when they begin: tasks with a rate, in this process or on Temporal. Run by the
tests:

    python -m tests.faults.start_limits_process URL RECORDER-PORT [TEMPORAL-ADDRESS NAMESPACE]

It prints a line when it works. `banked` is for `paceline worker`, with the recorder's port in `RECORDER`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time

from paceline import Downstream, Tasks
from paceline.dispatch.engines.temporal.client import TemporalConnection
from paceline.server.settings import Settings
from tests.faults.recorder import report

RATE = 10
OTHER_SIDE = 15
PLAN, PLAN_LIMIT, PLAN_SECONDS = "bank", 50, 5


def shop(url: str, port: int) -> Tasks:
    """The tasks; the port may be 0 where nothing runs."""
    tasks = Tasks(url, threads=4)
    downstream = Downstream("other-side", url, rate=f"{OTHER_SIDE}/second", call_timeout=2)

    @tasks.task(name="BUSY")
    def busy(seconds: float) -> None:
        report(port, "BUSY")
        time.sleep(seconds)

    @tasks.task(name="RATED", rate=f"{RATE}/second")
    def rated(number: int) -> None:
        report(port, "RATED")

    @tasks.task(name="BOTH", rate=f"{RATE}/second", downstream=downstream)
    def both(number: int) -> None:
        report(port, "BOTH")

    @tasks.task(name="CALL", downstream=downstream)
    def call(number: int) -> None:
        report(port, "CALL")

    @tasks.task(name="SLOW", rate="2/hour", retries=0)
    def slow(number: int) -> None:
        report(port, "SLOW")

    return tasks


def banked(settings: Settings) -> Tasks:
    """Tasks on the service's database, for `paceline worker`."""
    tasks = Tasks(settings.database_url)

    @tasks.task(name="BANKED")
    def call(number: int) -> None:
        report(int(os.environ["RECORDER"]), "BANKED")

    return tasks


async def main(url: str, port: int, temporal: TemporalConnection | None) -> None:
    async with shop(url, port) as tasks, tasks.running(temporal=temporal):
        print("works", flush=True)  # noqa: T201
        await asyncio.Event().wait()


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    temporal = TemporalConnection(sys.argv[3], sys.argv[4]) if sys.argv[3:] else None
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), temporal))
