"""Calls a recorder at its pace, until it is ended.

    python -m tests.faults.downstream_process URL PORT RATE COUNTED KIND


KIND is `async` for `async with`, or `def` for threads. Each call is a line on a connection of its own.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import threading

from paceline import BlockingDownstream, Downstream

CALLERS = 8
TIMEOUT = 1.0


async def call_at_its_pace(url: str, port: int, rate: str, counted: str) -> None:
    async with Downstream("recorder", url, rate=rate, counted=counted, call_timeout=TIMEOUT) as downstream:  # type: ignore[arg-type]

        async def caller() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            while True:
                async with downstream.call(timeout=None):
                    writer.write(b"call\n")
                    await reader.readline()

        await asyncio.gather(*(caller() for _ in range(CALLERS)))


def call_in_threads(url: str, port: int, rate: str, counted: str) -> None:
    downstream = BlockingDownstream("recorder", url, rate=rate, counted=counted, call_timeout=TIMEOUT)  # type: ignore[arg-type]

    def caller() -> None:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            while True:
                with downstream.call(timeout=None):
                    connection.sendall(b"call\n")
                    connection.recv(16)

    threads = [threading.Thread(target=caller) for _ in range(CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    url, port, rate, counted, kind = sys.argv[1:]
    if kind == "async":
        asyncio.run(call_at_its_pace(url, int(port), rate, counted))
    else:
        call_in_threads(url, int(port), rate, counted)
