"""Streams whose response is settled when they end: after the last part, and before the client can know that it was the
last; or when the stream fails, or is closed because the client disconnected."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Iterator
from typing import Any

from paceline.integrations.limit import Response


class SettlingIterator:
    """An iterator that calls `settle` once when it ends, also by an error."""

    def __init__(self, parts: Iterable[Any], settle: Callable[[], None], response: Response) -> None:
        self._parts = parts
        self._iterator: Iterator[Any] | None = None
        self._settle: Callable[[], None] | None = settle
        self._response = response

    def __iter__(self) -> SettlingIterator:
        return self

    def __next__(self) -> Any:
        if self._iterator is None:
            self._iterator = iter(self._parts)
        try:
            return next(self._iterator)
        except StopIteration:
            self._end(True)
            raise
        except BaseException:
            self._end(False)
            raise

    def close(self) -> None:
        """Ends the stream early. Servers call it after the last part too."""
        try:
            close = getattr(self._iterator if self._iterator is not None else self._parts, "close", None)
            if close is not None:
                close()
        finally:
            self._end(False)

    def _end(self, completed: bool) -> None:
        settle, self._settle = self._settle, None
        if settle is not None:
            self._response.completed = completed
            settle()


class AsyncSettlingIterator:
    """The same for an asynchronous stream. `close` may be called in another thread."""

    def __init__(self, parts: AsyncIterable[Any], settle: Callable[[], Coroutine[Any, Any, None]], response: Response):
        self._parts = parts
        self._iterator: AsyncIterator[Any] | None = None
        self._settle: Callable[[], Coroutine[Any, Any, None]] | None = settle
        self._response = response
        self._loop: asyncio.AbstractEventLoop | None = None

    def __aiter__(self) -> AsyncSettlingIterator:
        return self

    async def __anext__(self) -> Any:
        if self._iterator is None:
            self._iterator, self._loop = aiter(self._parts), asyncio.get_running_loop()
        try:
            return await anext(self._iterator)
        except StopAsyncIteration:
            await self._end(True)
            raise
        except BaseException:
            await self._end(False)
            raise

    def close(self) -> None:
        """Ends the stream early; one that never began stays charged as reserved. Servers call it after the last part
        too."""
        if self._settle is not None and self._loop is not None:
            asyncio.run_coroutine_threadsafe(self._end(False), self._loop)

    async def _end(self, completed: bool) -> None:
        settle, self._settle = self._settle, None
        if settle is not None:
            self._response.completed = completed
            await settle()
