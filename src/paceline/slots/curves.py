"""Capacity curves: the limit of a window by time of day and weekday. Pure.

An entry holds at the instants at which a calendar of its hours would be open, so daylight saving is handled as it is
there. A window that touches an entry has at most the entry's limit: no instant of an entry sees more. Where several
entries hold, the lowest counts; where none does, the policy's own limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paceline.errors import ConfigurationError
from paceline.slots.calendars import Calendar, OpenHours, hours_from_json, hours_to_json

MOST_ENTRIES = 100


@dataclass(frozen=True, slots=True)
class CurveEntry:
    """At most `limit` slots in a window that touches these hours."""

    hours: OpenHours
    limit: int


def curve_from_json(value: object, most: int) -> tuple[CurveEntry, ...]:
    """The entries of the contract's JSON form: `[{"days": ["MON"], "from": "08:00", "to": "18:00", "max": 40}]`.

    Raises:
        ConfigurationError: names what is wrong in it.
    """
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or len(value) > MOST_ENTRIES:
        raise ConfigurationError("curve", f"must be a list of at most {MOST_ENTRIES} objects; null removes it")
    return tuple(_entry(entry, f"curve[{index}]", most) for index, entry in enumerate(value))


def curve_to_json(entries: Sequence[CurveEntry]) -> list[dict[str, Any]] | None:
    """The contract's JSON form; `None` of no entries."""
    return [hours_to_json(entry.hours) | {"max": entry.limit} for entry in entries] or None


class CurveLimits:
    """The limits of the windows of one size, in one zone."""

    def __init__(self, entries: Sequence[CurveEntry], zone: str, size_ms: int, otherwise: int) -> None:
        # The lowest first: the first that holds applies.
        ordered = sorted(entries, key=lambda entry: entry.limit)
        self._entries = [(entry.limit, Calendar(zone, (entry.hours,))) for entry in ordered]
        self._size_ms = size_ms
        self._otherwise = otherwise
        self.lowest = min(otherwise, ordered[0].limit)
        """The lowest limit that a window may have, …"""
        self.highest = max(otherwise, ordered[-1].limit)
        """… and the highest."""

    def at(self, start_ms: int) -> int:
        """The limit of a window."""
        end = start_ms + self._size_ms
        for limit, calendar in self._entries:
            if calendar.opens_within(start_ms, end):
                return limit
        return self._otherwise

    def alike_until(self, start_ms: int) -> int:
        """The time until which every window has the limit of this one."""
        return min(calendar.changes_after(start_ms) for _, calendar in self._entries)


def _entry(value: object, name: str, most: int) -> CurveEntry:
    if not isinstance(value, dict):
        raise ConfigurationError(name, "must be an object")
    if "max" not in value:
        raise ConfigurationError(f"{name}.max", "is required: the most slots in a window")
    limit = value["max"]
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= most:
        raise ConfigurationError(
            f"{name}.max", f"must be a whole number from 1 to {most}; a calendar closes windows altogether"
        )
    return CurveEntry(hours_from_json({key: member for key, member in value.items() if key != "max"}, name), limit)
