"""The configs of a booking: one name, or several."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.errors import InvalidInput
from paceline.slots.model import checked_name, checked_names
from paceline.slots.templates import refuse_template

ConfigNames = str | tuple[str, ...]
"""One name, or several in the order in which they were given."""


def name_tuple(names: ConfigNames) -> tuple[str, ...]:
    """The names in one form."""
    return (names,) if isinstance(names, str) else names


def booking_names(config_name: str | Sequence[str], config_names: Sequence[str] = ()) -> ConfigNames:
    """The configs of a booking, checked: a name, or several.

    Raises:
        InvalidInput: a name is wrong, none is given, or both forms are.
    """
    if config_names:
        if config_name:
            raise InvalidInput("config_names", "and config_name are given; give one of the two")
        config_name = config_names
    if isinstance(config_name, str):
        return refuse_template(checked_name(config_name))
    names = checked_names(config_name)
    for index, name in enumerate(names):
        refuse_template(name, f"config_names[{index}]")
    return names[0] if len(names) == 1 else names
