"""The configs of a booking: one name or several, given in one of two forms."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.errors import InvalidInput
from paceline.slots.config_names import ConfigNames, booking_names


@pytest.mark.parametrize(
    ("name", "names", "expected"),
    [
        ("bank", (), "bank"),
        (["bank"], (), "bank"),
        (("bank", "merchant-7"), (), ("bank", "merchant-7")),
        ("", ["bank", "merchant-7"], ("bank", "merchant-7")),
        ("", ["merchant-7"], "merchant-7"),
    ],
)
def test_one_name_or_several_in_their_order(name: Any, names: Any, expected: ConfigNames) -> None:
    assert booking_names(name, names) == expected


@pytest.mark.parametrize(
    ("name", "names", "field"),
    [
        ("bank", ["merchant-7"], "config_names"),
        ("", (), "config_name"),
        ("merchant-*", (), "config_name"),
        (["bank", "merchant-*"], (), "config_names[1]"),
        (["bank", "bank"], (), "config_names"),
        ([], (), "config_names"),
        (["bank", ""], (), "config_names[1]"),
    ],
)
def test_what_can_not_be_booked_under_is_refused_by_its_place(name: Any, names: Any, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        booking_names(name, names)
    assert caught.value.field.startswith(field)
