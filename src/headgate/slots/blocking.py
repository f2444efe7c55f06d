"""`BlockingSlots`: the scheduler for scripts without an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, TypeVar, Unpack

from headgate.slots.forecast import Forecast
from headgate.slots.model import AssignedSlot, PolicyVersion, SlotRequest, WindowPolicy
from headgate.slots.packing import Booking
from headgate.slots.scheduler import EventTime, SchedulerOptions, SlotScheduler

T = TypeVar("T")


class BlockingSlots:
    """A `SlotScheduler` whose calls block until they are done. For one thread, and not inside a running event loop.

    with BlockingSlots("sqlite:///slots.db") as slots:
        slots.configure("default", WindowPolicy(max_per_window=100, window="PT4S"))
        slot = slots.assign("pay-123", "default", "2027-03-01T16:00:00Z")
    """

    def __init__(self, url: str, **options: Unpack[SchedulerOptions]) -> None:
        self._runner = asyncio.Runner()
        self._opening = SlotScheduler.open(url, **options)
        try:
            self._slots: SlotScheduler = self._run(self._opening.__aenter__())
        except BaseException:
            self._runner.close()
            raise

    def configure(self, name: str, policy: WindowPolicy) -> PolicyVersion:
        """Makes `policy` the active version of `name`."""
        return self._run(self._slots.configure(name, policy))

    def policy(self, name: str) -> PolicyVersion:
        """The active policy."""
        return self._run(self._slots.policy(name))

    def assign(
        self,
        event_id: str,
        config_name: str | Sequence[str] = (),
        requested_time: datetime | str = "",
        *,
        config_names: Sequence[str] = (),
    ) -> AssignedSlot:
        """The event's slot: the one it has, or else the earliest free one."""
        return self._run(self._slots.assign(event_id, config_name, requested_time, config_names=config_names))

    def assign_many(
        self,
        events: Iterable[EventTime],
        config_name: str | Sequence[str] = (),
        *,
        config_names: Sequence[str] = (),
    ) -> list[AssignedSlot]:
        """A slot for each event, in order."""
        return self._run(self._slots.assign_many(events, config_name, config_names=config_names))

    def assign_stream(
        self,
        requests: Iterable[SlotRequest],
        config_name: str | Sequence[str] = (),
        *,
        config_names: Sequence[str] = (),
    ) -> Iterator[list[Booking]]:
        """Books an endless supply in constant memory; yields each batch's outcomes."""
        batches: AsyncIterator[list[Booking]] = self._slots.assign_stream(
            requests, config_name, config_names=config_names
        )
        while (batch := self._run(_next(batches))) is not None:
            yield batch

    def find(self, event_id: str) -> AssignedSlot:
        """The event's slot."""
        return self._run(self._slots.find(event_id))

    def cancel(self, event_id: str) -> AssignedSlot:
        """Gives the event's slot back."""
        return self._run(self._slots.cancel(event_id))

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
        return self._run(self._slots.forecast(config_name, events, at, max_per_window=max_per_window))

    def close(self) -> None:
        """Closes the store and the loop."""
        self._run(self._opening.__aexit__(None, None, None))
        self._runner.close()

    def __enter__(self) -> BlockingSlots:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)


async def _next(batches: AsyncIterator[T]) -> T | None:
    return await anext(batches, None)
