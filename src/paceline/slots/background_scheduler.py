"""The base of `BlockingSlotScheduler`: a `SlotScheduler` on an event loop in the background."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Self, TypeVar, Unpack

from paceline.background import Background, OpenedOnce
from paceline.slots.booking.packing import Booking
from paceline.slots.config_names import booking_names
from paceline.slots.model import SlotRequest
from paceline.slots.scheduler import BULK_BATCH, OpenOptions, SlotScheduler

T = TypeVar("T")


class BackgroundScheduler:
    """Calls from any number of threads share one `SlotScheduler` and its transactions. A forked child opens its own."""

    def __init__(self, url: str, **options: Unpack[OpenOptions]) -> None:
        self._bulk_batch = options.get("bulk_batch", BULK_BATCH)
        self._background = Background(lambda: OpenedOnce(lambda: SlotScheduler.open(url, **options)))
        try:
            self._run(_nothing)
        except BaseException:
            self._background.close()
            raise

    @classmethod
    def open(cls, url: str, **options: Unpack[OpenOptions]) -> Self:
        """A scheduler on the database at `url`, migrated and ready. Use it in a `with` block, or close it.

        Raises:
            ConfigurationError: the URL is not a database's, its driver is not installed, or an option can't be used.
            StoreUnavailable: the database does not answer.
        """
        return cls(url, **options)

    def assign_stream(
        self,
        requests: Iterable[SlotRequest],
        config_name: str | Sequence[str] = (),
        *,
        config_names: Sequence[str] = (),
    ) -> Iterator[list[Booking]]:
        """Books an endless supply in constant memory, and yields the outcomes of each batch."""
        names, supply = booking_names(config_name, config_names), iter(requests)
        # Read in this thread: what reads from a connection of Django's or sqlite3's may run in no other.
        while batch := list(islice(supply, self._bulk_batch)):
            yield self._book(batch, names)

    def flush(self) -> None:
        """Empties the cache of policies; the next look-up loads them from the store."""

        async def flush(scheduler: SlotScheduler) -> None:
            scheduler.flush()

        self._run(flush)

    def close(self) -> None:
        """Closes the store. A later call opens it again."""
        self._background.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _book(self, batch: list[SlotRequest], names: str | Sequence[str]) -> list[Booking]:
        return self._run(lambda slots: slots.book(batch, names))

    def _run(self, call: Callable[[SlotScheduler], Coroutine[Any, Any, T]]) -> T:
        async def work(opened: OpenedOnce[SlotScheduler]) -> T:
            return await call(await opened.get())

        return self._background.run(work)


async def _nothing(_slots: SlotScheduler) -> None:
    """Only opens the store."""
