"""A worker whose tasks call a recorder as their downstream. Run by the tests:

    python -m tests.faults.task_calls_process URL RECORDER-PORT DOWNSTREAM-URL

It prints a line when it works, and another one when an execution waits for its downstream; it ends when it is killed.
"""

from __future__ import annotations

import asyncio
import sys

from paceline import Downstream, Tasks
from paceline.testing import eventually
from tests.faults.recorder import report

RATE = 20


def recorder(url: str) -> Downstream:
    return Downstream("recorder", url, rate=f"{RATE}/second", call_timeout=2)


def calls(url: str, port: int, downstream: Downstream) -> Tasks:
    """The tasks; the port may be 0 where nothing runs."""
    tasks = Tasks(url)

    @tasks.task(name="CALL", downstream=downstream)
    async def call(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"call\n")
        await reader.readline()
        writer.close()

    @tasks.task(name="PLAIN_CALL", downstream=downstream)
    def plain_call(number: int) -> None:
        report(port, "plain call")

    return tasks


async def main(url: str, port: int, shared: str) -> None:
    downstream = recorder(shared)
    async with calls(url, port, downstream) as tasks, tasks.running():
        print("works", flush=True)  # noqa: T201
        await eventually(lambda: downstream.waiting > 0, within=60)
        print("waits", flush=True)  # noqa: T201
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
