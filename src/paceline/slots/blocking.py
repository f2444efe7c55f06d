"""`BlockingSlots`: the scheduler for scripts without an event loop."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, TypeVar, Unpack

from paceline.background import Background, OpenedOnce
from paceline.slots.config_names import ConfigNames, booking_names
from paceline.slots.forecast import Forecast
from paceline.slots.model import AssignedSlot, PolicyVersion, SlotRequest, WindowPolicy
from paceline.slots.packing import Booking
from paceline.slots.scheduler import BULK_BATCH, EventTime, SchedulerOptions, SlotScheduler

T = TypeVar("T")


class BlockingSlots:
    """A `SlotScheduler` whose calls block until they are done.

        with BlockingSlots("sqlite:///slots.db") as slots:
            slots.configure("default", WindowPolicy(max_per_window=100, window="PT4S"))
            slot = slots.assign("pay-123", "default", "2027-03-01T16:00:00Z")

    Any number of threads may call it. Their calls share transactions. A forked process opens its own connections.
    """

    def __init__(self, url: str, **options: Unpack[SchedulerOptions]) -> None:
        self._bulk_batch = options.get("bulk_batch", BULK_BATCH)
        self._background = Background(lambda: OpenedOnce(lambda: SlotScheduler.open(url, **options)))
        try:
            self._run(_nothing)
        except BaseException:
            self._background.close()
            raise

    def configure(self, name: str, policy: WindowPolicy) -> PolicyVersion:
        """Makes `policy` the active version of `name`."""
        return self._run(lambda slots: slots.configure(name, policy))

    def policy(self, name: str) -> PolicyVersion:
        """The active policy."""
        return self._run(lambda slots: slots.policy(name))

    def assign(
        self,
        event_id: str,
        config_name: str | Sequence[str] = (),
        requested_time: datetime | str = "",
        *,
        config_names: Sequence[str] = (),
    ) -> AssignedSlot:
        """The event's slot: the one it has, or else the earliest free one."""
        return self._run(lambda slots: slots.assign(event_id, config_name, requested_time, config_names=config_names))

    def assign_many(
        self,
        events: Iterable[EventTime],
        config_name: str | Sequence[str] = (),
        *,
        config_names: Sequence[str] = (),
    ) -> list[AssignedSlot]:
        """A slot for each event, in order."""
        events = [*events]  # read in this thread: see `assign_stream`
        return self._run(lambda slots: slots.assign_many(events, config_name, config_names=config_names))

    def assign_stream(
        self,
        requests: Iterable[SlotRequest],
        config_name: str | Sequence[str] = (),
        *,
        config_names: Sequence[str] = (),
    ) -> Iterator[list[Booking]]:
        """Books an endless supply in constant memory; yields each batch's outcomes."""
        names, supply = booking_names(config_name, config_names), iter(requests)
        # Read in this thread: what reads from a connection of Django's or sqlite3's may run in no other.
        while batch := list(islice(supply, self._bulk_batch)):
            yield self._book(batch, names)

    def find(self, event_id: str) -> AssignedSlot:
        """The event's slot."""
        return self._run(lambda slots: slots.find(event_id))

    def cancel(self, event_id: str) -> AssignedSlot:
        """Gives the event's slot back."""
        return self._run(lambda slots: slots.cancel(event_id))

    def forecast(
        self,
        config_name: str | Sequence[str],
        events: int = 1,
        at: datetime | str | None = None,
        *,
        max_per_window: int | None = None,
    ) -> Forecast:
        """When that many events would land, without booking anything; with `max_per_window`, as if that were the
        limit already."""
        return self._run(lambda slots: slots.forecast(config_name, events, at, max_per_window=max_per_window))

    def close(self) -> None:
        """Closes the store. A later call opens it again."""
        self._background.close()

    def __enter__(self) -> BlockingSlots:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _book(self, batch: list[SlotRequest], names: ConfigNames) -> list[Booking]:
        return self._run(lambda slots: slots.book(batch, names))

    def _run(self, call: Callable[[SlotScheduler], Coroutine[Any, Any, T]]) -> T:
        async def work(opened: OpenedOnce[SlotScheduler]) -> T:
            return await call(await opened.get())

        return self._background.run(work)


async def _nothing(_slots: SlotScheduler) -> None:
    """Only opens the store."""
