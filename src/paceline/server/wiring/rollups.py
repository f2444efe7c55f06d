"""The recorder of a process: one per database, shared by all observers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

from paceline.server.rollups.reader import RollupReader
from paceline.server.rollups.recorder import Recorder
from paceline.server.rollups.stores.sql import SqlRollupStore
from paceline.server.settings import Settings
from paceline.server.wiring.database import embedded_url


class Recording:
    """A running recorder, and the number of its users in this process."""

    def __init__(self, settings: Settings) -> None:
        url = embedded_url(settings)
        self._in_memory = url.startswith(("sqlite://:", "sqlite:///:")) or url == "sqlite://"
        self.store = SqlRollupStore(url, pool_size=settings.database_pool_size)
        self.recorder = Recorder(self.store)
        self.holders = 0
        self._running = asyncio.create_task(self.recorder.run())

    async def close(self) -> None:
        self._running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._running
        # A closed in-memory database would be created only to be discarded.
        if self.store.is_open or not self._in_memory:
            await self.recorder.close()
        await self.store.close()


_recordings: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Recording]] = WeakKeyDictionary()


@asynccontextmanager
async def open_rollups(settings: Settings) -> AsyncIterator[RollupReader]:
    """The numbers of all processes that share the settings' database."""
    async with _recording(settings) as recording:
        await recording.store.open()
        yield RollupReader(recording.store, recording.recorder)


@asynccontextmanager
async def open_recorder(settings: Settings, *, lazily: bool = False) -> AsyncIterator[Recorder]:
    """The recorder of this event loop for the settings' database. The last user writes the rest on exit.

    With `lazily`, the database is not opened before there is something to write.
    """
    async with _recording(settings) as recording:
        if not lazily:
            await recording.store.open()
        yield recording.recorder


@asynccontextmanager
async def _recording(settings: Settings) -> AsyncIterator[Recording]:
    here = _recordings.setdefault(asyncio.get_running_loop(), {})
    url = embedded_url(settings)
    recording = here.get(url)
    if recording is None:
        recording = here[url] = Recording(settings)
    recording.holders += 1
    try:
        yield recording
    finally:
        recording.holders -= 1
        if not recording.holders:
            del here[url]
            await recording.close()
