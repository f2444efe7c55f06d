"""A worker of a task with a rate, as a process of its own. Run by the tests:

    python -m tests.integration.rated_process URL ITEMS

It ends when all items are completed, by any process, and prints when its executions began, in nanoseconds of the
host's monotonic clock, which all processes share.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from paceline import Tasks
from paceline.dispatch.status import Status
from paceline.testing import eventually

LIMIT = 20


async def main(url: str, items: int) -> None:
    starts: list[int] = []
    tasks = Tasks(url)

    # Few are in flight at once, so that no worker claims all of them.
    @tasks.task(name="RATED", rate=f"{LIMIT}/second", concurrency=8)
    async def rated(number: int) -> None:
        starts.append(time.monotonic_ns())

    async with tasks:
        queue = await tasks.queue()
        async with tasks.running():

            async def all_completed() -> bool:
                return (await queue.stats("RATED")).depth == {Status.COMPLETED: items}

            await eventually(all_completed, within=60, every=0.1)
    print(json.dumps(starts))  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
