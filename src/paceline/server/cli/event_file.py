"""Files of slot requests: JSON lines, each with its own config or that of the command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

from paceline.errors import InvalidInput
from paceline.server.shapes import slots as shapes
from paceline.slots import SlotRequest, SlotScheduler
from paceline.slots.booking.packing import Booking
from paceline.slots.config_names import ConfigNames, name_tuple
from paceline.slots.model import BookingGroup, checked_id

LONGEST_LINE = 64 * 1024


class Event(NamedTuple):
    """A line with a slot request."""

    line: int
    config_names: ConfigNames
    request: SlotRequest


class InvalidLine(NamedTuple):
    """A line that is no slot request."""

    line: int
    error: InvalidInput
    event_id: str | None = None
    """Its event, if it names one."""


class EventFile:
    """Reads events in batches; invalid lines are in them, in their place."""

    def __init__(self, file: IO[bytes], names: ConfigNames, at: str | None) -> None:
        """`names` and `at` are for lines that name none."""
        self._file = file
        self._names = names
        self._at = at
        self.lines = 0
        self.position = 0
        """How many bytes are read."""

    def batches(self, max_batch: int) -> Iterator[list[Event | InvalidLine]]:
        """Lines in their order, so many at a time; empty ones are left out."""
        batch: list[Event | InvalidLine] = []
        configs: dict[str, ConfigNames] = {}
        for event in self._events():
            if isinstance(event, Event):
                # A batch is booked config by config. An event that is repeated for another config waits for the next
                # batch: its slot is that of its first line.
                if configs.get(event.request.event_id, event.config_names) != event.config_names:
                    yield batch
                    batch, configs = [], {}
                configs[event.request.event_id] = event.config_names
            batch.append(event)
            if len(batch) >= max_batch:
                yield batch
                batch, configs = [], {}
        if batch:
            yield batch

    def _events(self) -> Iterator[Event | InvalidLine]:
        for raw in self._raw():
            if raw.strip():
                yield self._event(raw)

    def _raw(self) -> Iterator[bytes]:
        """Lines; one that is too long is truncated, and rejected by its parser."""
        while raw := self._file.readline(LONGEST_LINE):
            self.lines += 1
            self.position += len(raw)
            yield raw
            while not raw.endswith(b"\n") and (raw := self._file.readline(LONGEST_LINE)):
                self.position += len(raw)

    def _event(self, raw: bytes) -> Event | InvalidLine:
        value: Any = None
        try:
            value = _parsed(raw)
            # As for the config, null is as good as none.
            if value.get("requestedTime") is None:
                value["requestedTime"] = self._at
            if value["requestedTime"] is None:
                raise InvalidInput("requestedTime", "is required, or --at for all lines without one")
            line = shapes.SlotRequest.parse(value)
            return Event(self.lines, line.names(self._names), line.request())
        except InvalidInput as error:
            return InvalidLine(self.lines, error, _event_id(value))


def _parsed(raw: bytes) -> dict[str, Any]:
    try:
        value: Any = json.loads(raw)
    except (ValueError, RecursionError):
        raise InvalidInput("line", "is not valid JSON") from None
    if not isinstance(value, dict):
        raise InvalidInput("line", 'must be an object such as {"eventId": "order-1", "requestedTime": "…"}')
    return value


def _event_id(value: dict[str, Any] | None) -> str | None:
    """The id in an invalid line, if it is one."""
    try:
        return None if value is None else checked_id(value.get("eventId"))
    except InvalidInput:
        return None


async def book(slots: SlotScheduler, lines: list[Event | InvalidLine]) -> list[Booking]:
    """The result of each line, in order."""
    by_config: dict[ConfigNames, dict[int, SlotRequest]] = {}
    outcomes: dict[int, Booking] = {}
    for index, line in enumerate(lines):
        if isinstance(line, Event):
            by_config.setdefault(line.config_names, {})[index] = line.request
        else:
            outcomes[index] = line.error
    groups = [BookingGroup(name_tuple(names), list(requests.values())) for names, requests in by_config.items()]
    for requests, bookings in zip(by_config.values(), await slots.book_groups(groups), strict=True):
        outcomes |= zip(requests, bookings, strict=True)
    return [outcomes[index] for index in range(len(lines))]
