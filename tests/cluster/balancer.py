"""A load balancer for TCP, in front of the frontends of a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Sequence

from tests.thread_server import ThreadServer


class Balancer(ThreadServer):
    """Forwards each connection to the next address that accepts it. When either side ends, so does the other."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._targets = [(host, int(port)) for host, _, port in (address.partition(":") for address in addresses)]
        self._turn = itertools.count()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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
