"""A worker that claims all there is of PAY, and does nothing: `python -m tests.integration.claiming_process URL`.

What is due begins with the claim, the rest waits. It prints a line then, and ends with its standard input.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta

from paceline.dispatch.queue import DispatchQueue
from paceline.dispatch.worker.heartbeats import LOCAL, WorkerInfo


async def main(url: str) -> None:
    async with DispatchQueue.open(url) as queue:
        await queue.store.workers.beat(WorkerInfo.here(LOCAL, ("dispatch", "exec"), ["PAY"]), 1)
        batch = await queue.store.claim("PAY", 10, timedelta(hours=1), begins=True)
        print(len(batch.items), flush=True)  # noqa: T201
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
