"""Somebody else's system, as a process of its own: `python -m tests.faults.recorder LATENCY`.

It prints its port, answers each line that it receives with another one, and each GET with a 204, after so many
seconds, and prints when each arrived (seconds, by the machine's monotonic clock), and the line, when its standard input
is closed.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

COUNT = b"count\n"
"""A line that is no call: it is answered by the number of calls."""


async def main(latency: float) -> None:
    arrivals: list[tuple[float, str]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            if line == COUNT:
                writer.write(b"%d\n" % len(arrivals))
                continue
            arrivals.append((time.monotonic(), line.decode().strip()))
            is_http = line.startswith(b"GET ")
            while is_http and await reader.readline() != b"\r\n":
                pass  # its fields
            await asyncio.sleep(latency)
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n" if is_http else b"done\n")

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201
    await asyncio.to_thread(sys.stdin.read)
    print(json.dumps(arrivals), flush=True)  # noqa: T201


class Recorder:
    """A recorder that runs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert process.stdout is not None
        self.port = int(process.stdout.readline())

    def count(self) -> int:
        """How many calls have arrived."""
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            connection.sendall(COUNT)
            return int(connection.recv(16))

    def arrivals(self) -> list[float]:
        """When calls arrived, in order. It ends then."""
        return [at for at, _ in self.lines()]

    def lines(self) -> list[tuple[float, str]]:
        """When each call arrived, and what it said, in order. It ends then."""
        out, _ = self._process.communicate(timeout=30)
        return sorted((at, line) for at, line in json.loads(out))


def report(port: int, line: str) -> None:
    """Tells the recorder at this port, and waits for its answer."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(line.encode() + b"\n")
        connection.recv(16)


@contextmanager
def recording(latency: float) -> Iterator[Recorder]:
    command = [sys.executable, "-m", "tests.faults.recorder", str(latency)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield Recorder(process)
    finally:
        process.kill()
        process.communicate()


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1])))
