"""A worker whose tasks tell a recorder when they begin. Run by the tests:

    python -m tests.faults.places_process RECORDER-PORT CONCURRENCY THREADS URL [TEMPORAL NAMESPACE]

It prints a line when it works, and stops on SIGTERM. `service_shop` is for `paceline worker`, with the
recorder's port in `RECORDER`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from pathlib import Path

from paceline import Tasks
from paceline.dispatch.worker.dispatching import ThreadsExhausted
from paceline.server.settings import Settings
from paceline.server.worker import end_process
from tests.faults.recorder import report
from tests.faults.task_sites import temporal_of

RATE = 10
QUICK_SECONDS = 0.05
"""What the body of QUICK takes: of many, some are under way at any time."""
HEALED = os.environ.get("HEALED") or "none"
"""A file: while it exists, HANG does not hang."""


def shop(url: str, port: int, concurrency: int = 100, threads: int = 2) -> Tasks:
    """The tasks; `recorder` may be 0 where nothing runs."""
    tasks = Tasks(url, concurrency=concurrency, threads=threads)

    def began(name: str) -> None:
        report(port, f"{name} {os.getpid()}")

    @tasks.task(name="BUSY")
    def busy(seconds: float) -> None:
        began("BUSY")
        time.sleep(seconds)

    @tasks.task(name="RATED", rate=f"{RATE}/second")
    def rated(number: int) -> None:
        began("RATED")

    @tasks.task(name="SECOND")
    async def second(number: int) -> None:
        await asyncio.to_thread(began, "SECOND")
        await asyncio.sleep(1)

    @tasks.task(name="LONG", retries=0)
    async def long(number: int) -> None:
        await asyncio.to_thread(began, f"LONG {number}")
        await asyncio.sleep(600)

    @tasks.task(name="SHARED", concurrency=2, retries=0)
    async def shared(number: int, seconds: float) -> None:
        await asyncio.to_thread(began, f"SHARED {number}")
        await asyncio.sleep(seconds)

    @tasks.task(name="INVOICE", retries=0)
    async def pay(number: int, invoice: int, seconds: float) -> None:
        await asyncio.to_thread(began, f"INVOICE {number} {invoice} begins")
        await asyncio.sleep(seconds)
        await asyncio.to_thread(began, f"INVOICE {number} {invoice} ends")

    @tasks.task(name="QUICK")
    async def quick(number: int) -> None:
        await asyncio.to_thread(began, f"QUICK {number}")
        await asyncio.sleep(QUICK_SECONDS)

    @tasks.task(name="BLOCK", timeout=60)
    async def block(seconds: float) -> None:
        began("BLOCK")
        time.sleep(seconds)  # noqa: ASYNC251 - it blocks the event loop

    @tasks.task(name="HANG", timeout=0.5)
    def hang(number: int) -> None:
        began("HANG")
        time.sleep(0 if Path(HEALED).exists() else 600)

    return tasks


def service_shop(settings: Settings) -> Tasks:
    """The tasks on the service's database."""
    return shop(settings.database_url, int(os.environ["RECORDER"]))


async def main(port: int, concurrency: int, threads: int, url: str, *temporal: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with shop(url, port, concurrency, threads) as tasks, tasks.running(temporal=temporal_of(temporal)):
        print("works", flush=True)  # noqa: T201
        await stop.wait()


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    try:
        port, concurrency, threads = map(int, sys.argv[1:4])
        asyncio.run(main(port, concurrency, threads, *sys.argv[4:]))
    except ThreadsExhausted:
        end_process(1)
    end_process()
