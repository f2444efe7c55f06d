"""Files of slot requests: JSON lines, each with its own config or that of the command."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import IO, Any, NamedTuple

from headgate.errors import InvalidInput
from headgate.server.shapes import slots as shapes
from headgate.slots import SlotRequest, SlotScheduler
from headgate.slots.config_names import ConfigNames
from headgate.slots.packing import Booking

LONGEST_LINE = 64 * 1024


class Event(NamedTuple):
    """A line with a slot request."""

    line: int
    config_names: ConfigNames
    request: SlotRequest


class EventFile:
    """Reads events in batches; invalid lines are passed to `refuse`, with their number."""

    def __init__(
        self, file: IO[bytes], names: ConfigNames, at: str | None, refuse: Callable[[int, InvalidInput], None]
    ) -> None:
        """`names` and `at` are for lines that name none."""
        self._file = file
        self._names = names
        self._at = at
        self._refuse = refuse
        self.lines = 0
        self.position = 0
        """How many bytes are read."""

    def batches(self, max_batch: int) -> Iterator[list[Event]]:
        """Events in the order of their lines, so many at a time."""
        batch: list[Event] = []
        configs: dict[str, ConfigNames] = {}
        for event in self._events():
            # A batch is booked config by config. An event that is repeated for another config waits for the next batch:
            # its slot is that of its first line.
            if configs.get(event.request.event_id, event.config_names) != event.config_names:
                yield batch
                batch, configs = [], {}
            batch.append(event)
            configs[event.request.event_id] = event.config_names
            if len(batch) >= max_batch:
                yield batch
                batch, configs = [], {}
        if batch:
            yield batch

    def _events(self) -> Iterator[Event]:
        for raw in self._raw():
            try:
                if raw.strip():
                    yield self._event(raw)
            except InvalidInput as error:
                self._refuse(self.lines, error)

    def _raw(self) -> Iterator[bytes]:
        """Lines; one that is too long is truncated, and rejected by its parser."""
        while raw := self._file.readline(LONGEST_LINE):
            self.lines += 1
            self.position += len(raw)
            yield raw
            while not raw.endswith(b"\n") and (raw := self._file.readline(LONGEST_LINE)):
                self.position += len(raw)

    def _event(self, raw: bytes) -> Event:
        try:
            value: Any = json.loads(raw)
        except (ValueError, RecursionError):
            raise InvalidInput("line", "is not valid JSON") from None
        if not isinstance(value, dict):
            raise InvalidInput("line", 'must be an object such as {"eventId": "pay-1", "requestedTime": "…"}')
        if value.setdefault("requestedTime", self._at) is None:
            raise InvalidInput("requestedTime", "is required, or --at for all lines without one")
        line = shapes.SlotRequest.parse(value)
        return Event(self.lines, line.names(self._names), line.request())


async def book(slots: SlotScheduler, events: list[Event]) -> list[Booking]:
    """The result of each event, in order."""
    by_config: dict[ConfigNames, list[int]] = {}
    for index, event in enumerate(events):
        by_config.setdefault(event.config_names, []).append(index)
    outcomes: dict[int, Booking] = {}
    for names, indexes in by_config.items():
        bookings = await slots.book([events[index].request for index in indexes], names)
        outcomes |= zip(indexes, bookings, strict=True)
    return [outcomes[index] for index in range(len(events))]
