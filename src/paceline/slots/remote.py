"""The slots of a paceline service: `SlotScheduler.open("https://paceline.internal", token="…")`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Unpack

from paceline.durations import from_ms
from paceline.errors import ConfigurationError, InvalidInput
from paceline.options import check_whole
from paceline.remote import Form, Method, Need, RemoteApi, RemoteCalls
from paceline.slots.booking.packing import Booking
from paceline.slots.calendars import Calendar
from paceline.slots.carriers import SlotMove
from paceline.slots.config_names import booking_names, name_tuple
from paceline.slots.curves import curve_to_json
from paceline.slots.explain import Explanation, Reason, RemovedVersion, Step, Today
from paceline.slots.forecast.forecast import Forecast, Peaks, WindowFill
from paceline.slots.forecast.heat_map import HeatMap
from paceline.slots.forecast.impact import ChangeWarning, WarningCode
from paceline.slots.listing import EVERYTHING, ListedSlot, SlotFilter, SlotStatus
from paceline.slots.model import (
    AssignedSlot,
    BookingGroup,
    FirstWindow,
    PolicyVersion,
    SlotRequest,
    SlotWindow,
    Spread,
    WindowPolicy,
    checked_id,
)
from paceline.slots.ports import PruneResult
from paceline.slots.replan.assignment import Direction
from paceline.slots.replan.run import Replan
from paceline.slots.scheduler import SchedulerOptions, SlotScheduler

MAX_EVENTS = 1000
"""Events of one call."""


def _fields_of(policy: WindowPolicy) -> dict[str, Any]:
    """As the constructor takes them, which checks them."""
    members = {member.name: getattr(policy, member.name) for member in fields(policy) if member.init}
    calendar = None if policy.calendar is None else policy.calendar.to_json()
    return members | {"calendar": calendar, "curve": curve_to_json(policy.curve)}


def _group(group: BookingGroup) -> dict[str, Any]:
    if group.owner is not None:
        raise InvalidInput("owner", "is for applications beside the database; a service's callers have none")
    return {"names": group.names, "requests": [*group.requests]}


def _ends(chosen: SlotFilter) -> dict[str, int | None]:
    return {"from_ms": chosen.from_ms or None, "to_ms": None if chosen.to_ms == EVERYTHING.to_ms else chosen.to_ms}


def _filter(given: dict[str, Any]) -> SlotFilter:
    since, until = (None if at is None else from_ms(at) for at in (given["from_ms"], given["to_ms"]))
    return SlotFilter.of(given["config_name"], since, until, given["status"], given["owner"])


def _slot(given: dict[str, Any]) -> AssignedSlot:
    slot = AssignedSlot(**given)
    checked_id(slot.event_id)
    if not all(type(at) is int for at in (slot.requested_ms, slot.window_start_ms, slot.scheduled_ms)):
        raise TypeError
    return slot


API = RemoteApi(
    "slots",
    SlotScheduler,
    {
        "find": Method(Need.LOOK),
        "policy": Method(Need.LOOK),
        "check_configs": Method(Need.LOOK),
        "history": Method(Need.LOOK),
        "configs": Method(Need.LOOK),
        "page": Method(Need.LOOK),
        "count": Method(Need.LOOK),
        "beginning": Method(Need.LOOK),
        "explain": Method(Need.LOOK),
        "preview": Method(Need.LOOK),
        "heat_map": Method(Need.LOOK),
        "forecast": Method(Need.LOOK),
        "assign": Method(Need.SUBMIT),
        "book_groups": Method(Need.SUBMIT),
        "cancel": Method(Need.SUBMIT, is_repeatable=False),
        "ensure": Method(Need.ADMIN),
        "configure": Method(Need.ADMIN, is_repeatable=False),
        "change": Method(Need.ADMIN, is_repeatable=False),
        "replan": Method(Need.ADMIN),
        "prune": Method(Need.ADMIN),
    },
    [
        ChangeWarning,
        Direction,
        Explanation,
        FirstWindow,
        Forecast,
        HeatMap,
        ListedSlot,
        Peaks,
        PolicyVersion,
        PruneResult,
        Reason,
        RemovedVersion,
        Replan,
        SlotMove,
        SlotStatus,
        SlotWindow,
        Spread,
        Step,
        Today,
        WarningCode,
        WindowFill,
    ],
    {
        AssignedSlot: Form(lambda slot: {name: getattr(slot, name) for name in AssignedSlot._fields}, _slot),
        BookingGroup: Form(_group, lambda given: BookingGroup(tuple(given["names"]), given["requests"])),
        Calendar: Form(Calendar.to_json, Calendar.from_json),
        SlotFilter: Form(lambda chosen: chosen._asdict() | _ends(chosen), _filter),
        SlotRequest: Form(lambda request: [request[0], from_ms(request[1])], lambda given: SlotRequest.of(*given)),
        WindowPolicy: Form(_fields_of, lambda given: WindowPolicy(**given)),
    },
)


@API.offer
class RemoteSlotScheduler(SlotScheduler):
    """A `SlotScheduler` whose database is behind a service."""

    def __init__(self, url: str, token: str | None = None, **options: Unpack[SchedulerOptions]) -> None:
        self._bulk_batch = min(options.pop("bulk_batch", MAX_EVENTS), MAX_EVENTS)
        check_whole("bulk_batch", self._bulk_batch)
        for option in options:
            raise ConfigurationError(option, "is the service's own; leave it out")
        self._calls = RemoteCalls(API, url, token)

    async def close(self) -> None:
        await self._calls.close()

    def flush(self) -> None:
        """Nothing is cached here."""

    async def book(
        self, requests: Sequence[SlotRequest], config_name: str | Sequence[str], *, owner: str | None = None
    ) -> list[Booking]:
        names = name_tuple(booking_names(config_name))
        booked: list[Booking] = []
        for at in range(0, len(requests), MAX_EVENTS):
            (outcomes,) = await self.book_groups([BookingGroup(names, requests[at : at + MAX_EVENTS], owner)])
            booked += outcomes
        return booked

    async def reconcile(self, *_args: Any, **_options: Any) -> Any:
        raise _needs_database("reconcile")

    async def unstarted(self, *_args: Any, **_options: Any) -> Any:
        raise _needs_database("unstarted")

    async def free_unstarted(self, *_args: Any, **_options: Any) -> Any:
        raise _needs_database("free_unstarted")


def _needs_database(method: str) -> ConfigurationError:
    return ConfigurationError("url", f"leads to a service, which does not offer {method}; open the database's own URL")
