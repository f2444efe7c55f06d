"""Calls a recorder at its pace, until it is ended.

    python -m tests.faults.downstream_process URL PORT RATE COUNTED KIND


KIND is `async` for `async with`, or `def` for threads: each call is a line on a connection of its own; `httpx` and
`httpx-def` make them by a client under which the downstream lies.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import threading

import httpx2

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


async def call_by_transport(url: str, port: int, rate: str, counted: str) -> None:
    async with Downstream("recorder", url, rate=rate, counted=counted, call_timeout=TIMEOUT) as downstream:  # type: ignore[arg-type]
        transport = downstream.async_transport(timeout=None)
        async with httpx2.AsyncClient(transport=transport, base_url=f"http://127.0.0.1:{port}") as client:

            async def caller() -> None:
                while True:
                    await client.get("/")

            await asyncio.gather(*(caller() for _ in range(CALLERS)))


def call_by_transport_in_threads(url: str, port: int, rate: str, counted: str) -> None:
    downstream = BlockingDownstream("recorder", url, rate=rate, counted=counted, call_timeout=TIMEOUT)  # type: ignore[arg-type]
    client = httpx2.Client(transport=downstream.transport(timeout=None), base_url=f"http://127.0.0.1:{port}")

    def caller() -> None:
        while True:
            client.get("/")

    threads = [threading.Thread(target=caller) for _ in range(CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    url, port, rate, counted, kind = sys.argv[1:]
    arguments = url, int(port), rate, counted
    match kind:
        case "async":
            asyncio.run(call_at_its_pace(*arguments))
        case "httpx":
            asyncio.run(call_by_transport(*arguments))
        case "httpx-def":
            call_by_transport_in_threads(*arguments)
        case _:
            call_in_threads(*arguments)
