"""A slot on the wire: its request, alone and in batches, and its response."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any

from pydantic import ConfigDict, Field, WithJsonSchema

from paceline import slots
from paceline.durations import format_instant, from_ms, parse_instant, to_ms
from paceline.server.shapes.members import BOOKED_NAME, CONFIG_NAMES, EVENT_ID, INSTANT
from paceline.server.shapes.shape import Expects, InvalidMember, Shape
from paceline.slots.model import checked_id, checked_name, checked_names
from paceline.slots.templates import refuse_template

EventId = Annotated[str, WithJsonSchema(EVENT_ID), Expects("a string")]
RequestedTime = Annotated[str, WithJsonSchema(INSTANT), Expects("a string such as 2027-03-01T16:00:00Z")]
ConfigName = Annotated[
    Annotated[str, Field(min_length=1)] | None,
    WithJsonSchema(BOOKED_NAME | {"type": ["string", "null"]}),
    Expects("a text of 1 to 128 characters"),
]


ConfigNames = Annotated[
    list[Any] | None,
    WithJsonSchema(CONFIG_NAMES | {"type": ["array", "null"]}),
    Expects("a list of 1 to 8 config names"),
]


class ConfigChoice(Shape):
    """Which configs to book under: one, several, or none for the default."""

    # Both may be null; only one may be more.
    model_config = ConfigDict(
        json_schema_extra={
            "not": {
                "required": ["configName", "configNames"],
                "properties": {"configName": {"type": "string"}, "configNames": {"type": "array"}},
            }
        }
    )

    config_name: ConfigName = None
    config_names: ConfigNames = None

    def names(self, default: str | tuple[str, ...]) -> str | tuple[str, ...]:
        """The chosen configs, checked; `default` if none is named.

        Raises:
            InvalidInput: a name is wrong or a template's, or both members are given.
        """
        if self.config_names is None:
            if self.config_name is None:
                return default
            return refuse_template(checked_name(self.config_name, "configName"), "configName")
        if self.config_name is not None:
            raise InvalidMember("configNames", "and configName are both given; give one of the two")
        names = checked_names(self.config_names, "configNames")
        for index, name in enumerate(names):
            refuse_template(name, f"configNames[{index}]")
        return names


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


class SlotRequest(ConfigChoice, BatchEvent):
    """A request for a slot."""


class BatchRequest(ConfigChoice):
    """Many events for one config, or all of them for the same several."""

    # Each is parsed as a `BatchEvent` by itself, so that an error has its path: events[3].eventId.
    events: Annotated[
        list[Any],
        WithJsonSchema({"type": "array", "maxItems": 10_000, "items": BatchEvent.request_schema()}),
        Expects("a list of events"),
    ]


class SlotWindow(Shape):
    """A window that a slot is charged in."""

    config_name: str
    config_version: int
    window_start: str


class Slot(Shape):
    """A booked time. `windows` is there if it was booked under several configs, one window of each; `windowStart` is
    that of the first."""

    event_id: str
    scheduled_time: str
    delay_ms: int
    window_start: str
    config_name: str
    config_version: int
    existing: bool
    owner: str | None = None
    windows: list[SlotWindow] = Field(default_factory=list)

    @classmethod
    def of_slot(cls, slot: slots.AssignedSlot, *, show_windows: bool = False) -> Slot:
        """`of`, several times as fast. The window of a slot with one config is listed too, with `show_windows`."""
        return cls(**slot_members(slot, show_windows=show_windows))


def slot_members(slot: slots.AssignedSlot, *, show_windows: bool = False) -> dict[str, Any]:
    """The members of a `Slot`; an owner and windows only if there are any to show. For fast routes, which do not
    validate their own output."""
    members = {
        "eventId": slot.event_id,
        "scheduledTime": format_instant(from_ms(slot.scheduled_ms)),
        "delayMs": slot.scheduled_ms - slot.requested_ms,
        "windowStart": _window_start(slot.window_start_ms),
        "configName": slot.config_name,
        "configVersion": slot.config_version,
        "existing": slot.existing,
    }
    if slot.owner is not None:
        members["owner"] = slot.owner
    if slot.other_windows or show_windows:
        members["windows"] = [
            {"configName": name, "configVersion": version, "windowStart": _window_start(start)}
            for name, version, start in slot.windows
        ]
    return members


class FailedEvent(Shape):
    """An event of a batch that has no slot."""

    event_id: str | None = None
    line: int | None = None
    error: dict[str, Any]


class FailedLine(Shape):
    """A line of a command's file that has no slot; `event_id` if it is an event, `earliest` if none was free before the
    horizon."""

    event_id: str | None = None
    line: int
    error: str
    earliest: str | None = None


class BatchResult(Shape):
    """The result of each event, in the order of the request."""

    results: list[Slot | FailedEvent]


@lru_cache(4096)
def _window_start(ms: int) -> str:
    """Many slots share a window, and formatting its start costs as much as all other members."""
    return format_instant(from_ms(ms))
