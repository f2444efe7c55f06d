"""Policies, ids and requests: what is refused, by which field."""

from __future__ import annotations

import pytest

from paceline.errors import ConfigurationError, InvalidInput
from paceline.slots.model import SlotRequest, WindowPolicy, checked_id


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"max_per_window": 0}, "max_per_window"),
        ({"max_per_window": -1}, "max_per_window"),
        ({"max_per_window": True}, "max_per_window"),
        ({"max_per_window": 1.5}, "max_per_window"),
        ({"max_per_window": 2**31}, "max_per_window"),
        ({"window": "4 seconds"}, "window"),
        ({"window": "PT0S"}, "window"),
        ({"window": "PT0.009S"}, "window"),
        ({"window": "PT0.0105S"}, "window"),
        ({"window": "P367D"}, "window"),
        ({"window": 4}, "window"),
        ({"spread": "clumped"}, "spread"),
        ({"max_delay": "soon"}, "max_delay"),
        ({"calendar": {"zone": "nowhere"}}, "calendar.zone"),
    ],
)
def test_a_policy_that_can_not_work_is_refused_by_field(arguments: dict[str, object], field: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        WindowPolicy(**{"max_per_window": 100, "window": "PT4S", **arguments})  # type: ignore[arg-type]
    assert refusal.value.field == field


@pytest.mark.parametrize("event_id", ["", "x" * 256, "a\nb", "a\x00", "\ud800", None, 7])
def test_an_id_must_be_a_printable_text_of_at_most_255(event_id: object) -> None:
    with pytest.raises(InvalidInput, match="event_id"):
        checked_id(event_id)


def test_a_request_is_rounded_up_to_the_millisecond() -> None:
    assert SlotRequest.of("e", "2027-03-01T16:00:00.0001Z").requested_ms % 1000 == 1
