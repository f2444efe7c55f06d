"""A slot on the wire: its request, alone and in batches, and what is answered."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from headgate import slots
from headgate.durations import format_instant, from_ms, parse_instant, to_ms
from headgate.server.shapes.members import CONFIG_NAME, EVENT_ID, INSTANT
from headgate.server.shapes.shape import Expects, Shape
from headgate.slots.model import checked_id

EventId = Annotated[str, WithJsonSchema(EVENT_ID), Expects("a string")]
RequestedTime = Annotated[str, WithJsonSchema(INSTANT), Expects("a string such as 2027-03-01T16:00:00Z")]
ConfigName = Annotated[
    Annotated[str, Field(min_length=1)] | None,
    WithJsonSchema(CONFIG_NAME | {"type": ["string", "null"]}),
    Expects("a text of 1 to 128 characters"),
]


class BatchEvent(Shape):
    """An event of a batch."""

    # The rules for ids, names and times are the domain's.
    event_id: EventId
    requested_time: RequestedTime

    def request(self, prefix: str = "") -> slots.SlotRequest:
        """The domain's request; `prefix` is the path of the event in its document.

        Raises:
            InvalidInput: the id or the time is wrong.
        """
        requested = parse_instant(self.requested_time, f"{prefix}requestedTime")
        return slots.SlotRequest(checked_id(self.event_id, f"{prefix}eventId"), to_ms(requested))


class SlotRequest(BatchEvent):
    """An event that wants a time."""

    config_name: ConfigName = None


class BatchRequest(Shape):
    """Many events for one config."""

    config_name: ConfigName = None
    # Each is parsed as a `BatchEvent` by itself, so that an error has its path: events[3].eventId.
    events: Annotated[
        list[Any],
        WithJsonSchema({"type": "array", "maxItems": 10_000, "items": BatchEvent.request_schema()}),
        Expects("a list of events"),
    ]


class Slot(Shape):
    """A booked time."""

    event_id: str
    scheduled_time: str
    delay_ms: int
    window_start: str
    config_name: str
    config_version: int
    existing: bool
    owner: str | None = None

    @classmethod
    def of_slot(cls, slot: slots.AssignedSlot) -> Slot:
        """`of`, several times as fast."""
        shape = cls(
            event_id=slot.event_id,
            scheduled_time=format_instant(from_ms(slot.scheduled_ms)),
            delay_ms=slot.scheduled_ms - slot.requested_ms,
            window_start=_window_start(slot.window_start_ms),
            config_name=slot.config_name,
            config_version=slot.config_version,
            existing=slot.existing,
        )
        if slot.owner is not None:
            shape.owner = slot.owner
        return shape


class FailedEvent(Shape):
    """An event of a batch that has no slot."""

    event_id: str | None = None
    line: int | None = None
    error: dict[str, Any]


class FailedLine(Shape):
    """An event of a command's file that has no slot; `earliest` if none was free before the horizon."""

    event_id: str
    line: int
    error: str
    earliest: str | None = None


class BatchResult(Shape):
    """What came of each event, in the order they were sent."""

    results: list[Slot | FailedEvent]


@lru_cache(4096)
def _window_start(ms: int) -> str:
    """Many slots share a window, and formatting its start costs as much as all other members."""
    return format_instant(from_ms(ms))
