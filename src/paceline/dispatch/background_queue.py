"""The base of `BlockingDispatchQueue`: a `DispatchQueue` on an event loop in the background."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from paceline.background import Background, OpenedOnce
from paceline.dispatch.queue import DispatchQueue, OpenOptions
from paceline.errors import InvalidInput

R = TypeVar("R")


class BackgroundQueue:
    """Calls from any number of threads share one `DispatchQueue` and its transactions. A forked child opens its own."""

    def __init__(self, url: str, **options: Unpack[OpenOptions]) -> None:
        self._background = Background(lambda: OpenedOnce(lambda: DispatchQueue.open(url, **options)))
        try:
            self._run(_nothing)
        except BaseException:
            self._background.close()
            raise

    @classmethod
    def open(cls, url: str, **options: Unpack[OpenOptions]) -> Self:
        """A queue on the database at `url`, migrated and ready. Use it in a `with` block, or close it.

        Raises:
            ConfigurationError: the URL is wrong.
            StoreUnavailable: the store does not answer.
        """
        return cls(url, **options)

    def close(self) -> None:
        """Lets accepted items be written, then closes the store. A later call opens it again."""
        self._background.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, call: Callable[[DispatchQueue], Coroutine[Any, Any, R]]) -> R:
        async def work(opened: OpenedOnce[DispatchQueue]) -> R:
            return await call(await opened.get())

        return self._background.run(work)

    def _run_within(
        self, connection: Any, item_type: str, call: Callable[[DispatchQueue], Coroutine[Any, Any, R]]
    ) -> R:
        """With a connection, `call` runs in this thread: Django's and sqlite3's may be used in no other."""
        if connection is None:
            return self._run(call)
        check_blocking(connection)

        async def work(opened: OpenedOnce[DispatchQueue]) -> DispatchQueue:
            queue = await opened.get()
            await queue.config(item_type)
            return queue

        return run_inline(call(self._background.run(work)))


def check_blocking(connection: Any) -> None:
    """Raises `InvalidInput` if only an event loop can use the connection."""
    if any(kind.__name__.lower().startswith("async") for kind in type(connection).__mro__):
        raise InvalidInput("connection", "is asynchronous; await the asynchronous form, or give a blocking one")


def run_inline(running: Coroutine[Any, Any, R]) -> R:
    """The result of a call on a blocking connection, in this thread: it never suspends, so one `send` runs it."""
    try:
        running.send(None)
    except StopIteration as end:
        result: R = end.value
        return result
    finally:
        running.close()
    raise RuntimeError("a call in the caller's transaction waited for an event loop")


async def _nothing(_queue: DispatchQueue) -> None:
    """Only opens the queue."""
