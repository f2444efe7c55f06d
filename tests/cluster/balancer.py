"""A load balancer for TCP, as stands in front of the frontends of a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Sequence
from typing import Self


class Balancer:
    """Forwards each connection to the next address that accepts it. When either side ends, so does the other."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._targets = [(host, int(port)) for host, _, port in (address.partition(":") for address in addresses)]
        self._turn = itertools.count()
        self.address = ""

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(ready,), daemon=True)
        self._thread.start()
        assert ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _serve(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._forward, "127.0.0.1", 0))
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ready.set()
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = next(self._turn)
        for number in range(len(self._targets)):
            with contextlib.suppress(OSError):
                host, port = self._targets[(first + number) % len(self._targets)]
                far_reader, far_writer = await asyncio.open_connection(host, port)
                break
        else:
            writer.close()
            return
        copies = {
            asyncio.ensure_future(_copy(reader, far_writer)),
            asyncio.ensure_future(_copy(far_reader, writer)),
        }
        try:
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for copy in copies:
                copy.cancel()
            writer.close()
            far_writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
