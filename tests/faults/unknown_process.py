"""A worker whose payments tell a recorder that they were sent, and then wait for ever. Run by the tests:

    python -m tests.faults.unknown_process RECORDER-PORT URL [TEMPORAL NAMESPACE]

It prints a line when it works, and stops on SIGTERM.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

from paceline import Done, NeverSeen, Tasks
from paceline.server.worker import end_process
from tests.faults.recorder import report
from tests.faults.task_sites import temporal_of


def payments(url: str, port: int) -> Tasks:
    """The tasks; `port` may be 0 where nothing runs."""
    tasks = Tasks(url, grace=0)

    async def sent(name: str) -> None:
        await asyncio.to_thread(report, port, name)
        await asyncio.sleep(600)

    async def found(item_id: str, number: int) -> Done | NeverSeen:
        await asyncio.to_thread(report, port, f"ASKED {item_id} {number}")
        return Done(f"found {number}") if number else NeverSeen()

    @tasks.task(name="HELD", on_unknown="hold")
    async def held(number: int) -> None:
        await sent(f"HELD {number}")

    @tasks.task(name="INQUIRED", on_unknown="inquire", inquire=found)
    async def inquired(number: int) -> None:
        await sent(f"INQUIRED {number}")

    @tasks.task(name="RETRIED")
    async def retried(number: int) -> None:
        await sent(f"RETRIED {number}")

    return tasks


async def main(port: int, url: str, *temporal: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with payments(url, port) as tasks, tasks.running(temporal=temporal_of(temporal)):
        print("works", flush=True)  # noqa: T201
        await stop.wait()


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    asyncio.run(main(int(sys.argv[1]), *sys.argv[2:]))
    end_process()
