"""What a change of a policy would do to the slots that are booked. Pure; booked slots themselves never move."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from headgate.slots.model import WindowPolicy
from headgate.slots.occupancy import Occupancy
from headgate.slots.windows import align

PAGE = 1024


class WarningCode(StrEnum):
    """What a change would leave behind."""

    PAST_HORIZON = "past-horizon"
    """Booked slots lie later than the new `max_delay` allows."""
    CLOSED = "closed"
    """Booked slots lie in windows that the new calendar closes."""
    OVER_LIMIT = "over-limit"
    """Booked slots are more than the new limit allows in their windows."""


class ChangeWarning(NamedTuple):
    """One effect of a change, and how many booked slots it concerns."""

    code: WarningCode
    slots: int
    detail: str


def changed_windows(policy: WindowPolicy, changed: WindowPolicy, occupancy: Occupancy, now_ms: int) -> tuple[int, int]:
    """How many slots still to come would lie in windows that are closed, and how many would be over the limit."""
    closed = over = 0
    start = align(now_ms, policy.size_ms)
    same_windows = changed.size_ms == policy.size_ms
    while page := occupancy.reader.windows_from(start, PAGE):
        for window, taken, _ in page:
            first = align(window, changed.size_ms)
            if taken and changed.calendar is not None and changed.next_open(first) != first:
                closed += taken
            if same_windows and (limit := changed.limit_at(window)) < policy.limit_at(window):
                over += max(0, taken - limit)
        start = page[-1].start_ms + 1
    return closed, over


def warnings(past_horizon: int, closed: int, over_limit: int) -> list[ChangeWarning]:
    """The effects that concern at least one slot."""
    effects = [
        ChangeWarning(
            WarningCode.PAST_HORIZON,
            past_horizon,
            f"{past_horizon} booked slots lie past the new maxDelay; they keep their times, but no new event would get "
            "such a time",
        ),
        ChangeWarning(
            WarningCode.CLOSED,
            closed,
            f"{closed} booked slots lie in windows that the new calendar closes; they keep their times",
        ),
        ChangeWarning(
            WarningCode.OVER_LIMIT,
            over_limit,
            f"{over_limit} booked slots are above the new limit of their windows; they keep their times until you "
            'replan them with direction "spread"',
        ),
    ]
    return [effect for effect in effects if effect.slots]
