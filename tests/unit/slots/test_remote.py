"""What a service reads of a caller's slots is checked as if it were given to the library."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from paceline.durations import from_ms
from paceline.errors import InvalidInput
from paceline.slots.listing import SlotFilter
from paceline.slots.model import AssignedSlot, BookingGroup, SlotRequest, WindowPolicy
from paceline.slots.remote import API

SLOT = AssignedSlot("e-1", "default", 1, 1000, 0, 2000)


@pytest.mark.parametrize(
    "value",
    [
        SLOT,
        SlotRequest.of("e-1", "2030-03-01T16:00:00.123Z"),
        SlotFilter.of("default", status="BOOKED"),
        SlotFilter.of(since=datetime(2030, 1, 1, tzinfo=UTC), until=from_ms(1_900_000_000_000), owner=""),
        WindowPolicy(5, "PT1S", "even", {"zone": "UTC", "open": [{"days": ["MON"], "from": "08:00", "to": "18:00"}]}),
        WindowPolicy(5, "PT1S", max_delay="P1D", curve=[{"from": "08:00", "to": "18:00", "max": 4}]),
        BookingGroup(("default", "bank"), [SlotRequest.of("e-1", "2030-03-01T16:00:00Z")]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_written_is_read_again(value: Any) -> None:
    assert API.load(API.dump(value)) == value


@pytest.mark.parametrize(
    ("kind", "given", "named"),
    [
        ("SlotRequest", ["", "2030-03-01T16:00:00Z"], "event_id"),
        ("SlotRequest", ["e-1", "soon"], "requested_time"),
        ("WindowPolicy", {"max_per_window": 0, "window": "PT1S"}, "max_per_window"),
        ("WindowPolicy", {"max_per_window": 1, "window": "PT1S", "curve": [{"~": "Pair"}]}, "arguments"),
        ("WindowPolicy", {"max_per_window": 1, "window": "PT1S", "calendar": {"zone": "Mars"}}, "zone"),
        ("AssignedSlot", SLOT._asdict() | {"event_id": "\x00"}, "event_id"),
        ("AssignedSlot", SLOT._asdict() | {"scheduled_ms": "2000"}, "arguments"),
        ("SlotFilter", {"config_name": "", "from_ms": None, "to_ms": None, "status": None, "owner": None}, "config"),
        ("SlotFilter", {"config_name": None, "from_ms": "a", "to_ms": None, "status": None, "owner": None}, "argum"),
    ],
)
def test_what_is_wrong_is_named(kind: str, given: Any, named: str) -> None:
    written = API.dump(given) if kind != "WindowPolicy" else given
    with pytest.raises(InvalidInput, match=named):
        API.load({"~": kind, "=": written})


def test_a_group_for_an_application_is_not_sent() -> None:
    with pytest.raises(InvalidInput, match="owner"):
        API.dump(BookingGroup(("default",), [], "payments"))
