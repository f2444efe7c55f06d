"""Batching (group commit): callers who arrive while a transaction is in flight share the next one.

A lone caller does not wait: with nothing in flight its work starts at once. Under load, batches grow with the store's
latency, so throughput rises with the number of callers and the store has one writer per key and process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextvars import Context
from itertools import islice
from typing import Generic, TypeVar

Work = TypeVar("Work")
Outcome = TypeVar("Outcome")


class Batcher(Generic[Work, Outcome]):
    """Passes submitted work to `flush` in batches, one batch at a time, in order of arrival.

    `flush` returns one outcome per piece of work, in order; an outcome that is an exception is raised to its own
    caller. An exception from `flush` itself is raised to every caller of that batch only.

    If a waiting caller is cancelled, its work is not: the batch continues.

    With `linger`, each batch waits for one iteration of the event loop: callers of the last batch can join it.
    """

    __slots__ = ("_closed", "_flush", "_linger", "_max_batch", "_task", "_waiting", "is_busy", "when_idle")

    def __init__(
        self,
        flush: Callable[[Sequence[Work]], Awaitable[Sequence[Outcome | BaseException]]],
        *,
        max_batch: int = 1000,
        linger: bool = False,
    ) -> None:
        self._flush = flush
        self._max_batch = max_batch
        self._linger = linger
        self._waiting: list[tuple[Work, asyncio.Future[Outcome]]] = []
        """Work for the next batch."""
        self.is_busy = False
        """Whether a batch is in flight or about to be."""
        self.when_idle: Callable[[], None] | None = None
        """Called once, when all accepted work is done."""
        self._closed = False
        self._task: asyncio.Task[None] | None = None
        """The last drain. Held here: the loop itself keeps only weak references to tasks."""

    def submit(self, work: Work) -> asyncio.Future[Outcome]:
        """The outcome of `work`, which is accepted at once, when its batch is flushed.

        Raises:
            RuntimeError: the batcher is closed.
        """
        if self._closed:
            raise RuntimeError("closed: no further work is taken")
        if self.is_busy and self._task is not None:
            # Not `get_running_loop`, which asks the system for the process's id.
            future: asyncio.Future[Outcome] = self._task.get_loop().create_future()
        else:
            loop = asyncio.get_running_loop()
            future = loop.create_future()
            self.is_busy = True
            # In its own context: a batch is not part of its first caller's trace.
            self._task = loop.create_task(self._drain(), context=Context())
        self._waiting.append((work, future))
        return future

    async def close(self) -> None:
        """Takes no further work and returns when all accepted work is done."""
        self._closed = True
        await self.settled()

    async def settled(self) -> None:
        """Returns when all accepted work is done."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _drain(self) -> None:
        futures: Sequence[asyncio.Future[Outcome]] = ()
        try:
            while self._waiting:
                if self._linger:
                    await asyncio.sleep(0)
                pairs, self._waiting = self._waiting[: self._max_batch], self._waiting[self._max_batch :]
                futures = [future for _, future in pairs]
                batch = [work for work, _ in pairs]
                try:
                    outcomes = await self._flush(batch)
                except Exception as error:
                    outcomes = [error] * len(batch)
                for future, outcome in zip(futures, outcomes, strict=True):
                    if future.done():
                        continue
                    if isinstance(outcome, BaseException):
                        future.set_exception(outcome)
                    else:
                        future.set_result(outcome)
        finally:
            self.is_busy = False
            # Cancelled, or too few outcomes: callers must not wait for ever.
            for future in futures:
                future.cancel()
            for _, future in self._waiting:
                future.cancel()
            self._waiting.clear()
            if self.when_idle is not None:
                self.when_idle()
                self.when_idle = None


async def in_batches(work: AsyncIterable[Work] | Iterable[Work], size: int) -> AsyncIterator[list[Work]]:
    """The work in order, `size` at a time; the last batch may be smaller."""
    batch: list[Work] = []
    if isinstance(work, AsyncIterable):
        async for piece in work:
            batch.append(piece)
            if len(batch) >= size:
                yield batch
                batch = []
        if batch:
            yield batch
    else:
        supply = iter(work)
        while batch := list(islice(supply, size)):
            yield batch
