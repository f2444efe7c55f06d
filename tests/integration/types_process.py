"""A worker that serves many task types, and has nothing to do: `python -m tests.integration.types_process URL COUNT`.

It prints a line when it works, and stops on SIGTERM.
"""

from __future__ import annotations

import asyncio
import signal
import sys

from paceline import Tasks


async def main(url: str, count: int) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with Tasks(url) as tasks:
        for number in range(count):

            @tasks.task(name=f"TYPE_{number}")
            async def work(value: int) -> None: ...

        async with tasks.running():
            print("works", flush=True)  # noqa: T201
            await stop.wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
