"""Checks of numeric options, where they are given.

Zero, NaN or a text would otherwise fail at a later call, or silently disable a limit there.
"""

from __future__ import annotations

from math import inf

from paceline.errors import ConfigurationError


def is_number(value: object) -> bool:
    """Whether it is a finite number; a bool is none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < inf


def is_whole(value: object) -> bool:
    """Whether it is a whole number; a bool is none."""
    return isinstance(value, int) and not isinstance(value, bool)


def check_seconds(option: str, value: float) -> None:
    """Raises `ConfigurationError` for anything but a finite number above 0."""
    if not is_number(value) or value <= 0:
        raise ConfigurationError(option, f"{value!r} is not a number of seconds above 0")


def check_wait(option: str, value: float) -> None:
    """Raises `ConfigurationError` for anything but a number of at least 0; it may be infinite."""
    if value != inf and (not is_number(value) or value < 0):
        raise ConfigurationError(option, f"{value!r} is not a number of seconds of at least 0")


def check_whole(option: str, value: int, least: int = 1) -> None:
    """Raises `ConfigurationError` for anything but a whole number of at least `least`."""
    if not is_whole(value) or value < least:
        raise ConfigurationError(option, f"{value!r} is not a whole number of at least {least}")
