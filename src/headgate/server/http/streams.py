"""The streams of a process, which would keep it from ending."""

from __future__ import annotations

import asyncio


class Streams:
    """Counts the streams that are open, and ends them: uvicorn waits for answers in progress."""

    def __init__(self) -> None:
        self.open = 0
        self.ended = asyncio.Event()
        self.loop: asyncio.AbstractEventLoop | None = None
        """On which `end` acts."""

    def end(self) -> None:
        """Ends all streams, so that the process can end. May be called by a signal handler."""
        if self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.ended.set)
