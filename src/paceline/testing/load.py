"""HTTP load on loopback: one connection, one request after another, as little client as possible.

A general HTTP client costs more per request than the service under test, and would be what is measured.
"""

from __future__ import annotations

import asyncio


class KeepAlive:
    """One HTTP/1.1 connection to 127.0.0.1. `ConnectionError` if the server goes away."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Status and body of the answer to a JSON body."""
        return await self.request("POST", path, body)

    async def request(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """As `post`, by any method whose answer has a body."""
        if self._reader is None or self._writer is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writer.write(
            b"%b %b HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (method.encode(), path.encode(), len(body), body)
        )
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            return int(head[9:12]), await self._reader.readexactly(length)
        except asyncio.IncompleteReadError as error:
            raise ConnectionResetError("the server closed the connection") from error

    async def close(self) -> None:
        """Closes the connection; the next request opens a new one."""
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None

    async def __aenter__(self) -> KeepAlive:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()
