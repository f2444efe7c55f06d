"""The open streams of a process, which would block its shutdown."""

from __future__ import annotations

import asyncio


class Streams:
    """Counts open streams, and ends them: uvicorn's shutdown waits for responses in progress."""

    def __init__(self) -> None:
        self.open = 0
        self.ended = asyncio.Event()
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop of the streams."""

    def end(self) -> None:
        """Ends all streams, so that the process can end. May be called by a signal handler."""
        if self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.ended.set)
