"""What a change of a policy would do to the slots that are booked. Pure; booked slots themselves never move."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple

from paceline.slots.model import WindowPolicy
from paceline.slots.occupancy import Occupancy, WindowReader
from paceline.slots.windows import align

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


class WindowGroup(NamedTuple):
    """Windows of several configs that start at the same time and hold the same number of slots."""

    start_ms: int
    taken: int
    passed: int = 0
    """How many of the slots lie in the past."""
    configs: int = 1


def windows_ahead(occupancy: Occupancy, policy: WindowPolicy, size_ms: int, now_ms: int) -> Iterator[WindowGroup]:
    """The windows of a config from the present one on; if `policy` has windows of another size, its slots are counted
    in windows of this size by their own times. So they are if some of the present window were pruned: its counter says
    that it is full, not how many slots it has."""
    start = align(now_ms, size_ms)
    if size_ms != policy.size_ms or occupancy.reader.missing_until() > start:
        yield from _recounted(occupancy.reader, size_ms, start, now_ms)
        return
    present = start
    while page := occupancy.reader.windows_from(start, PAGE):
        for window, taken, _ in page:
            passed = _passed(occupancy.reader, size_ms, present, now_ms) if window == present else 0
            yield WindowGroup(window, taken, passed)
        start = page[-1].start_ms + 1


def _passed(reader: WindowReader, size_ms: int, start_ms: int, now_ms: int) -> int:
    """How many slots of the present window lie in the past."""
    return sum(count.taken for count in reader.recounted(size_ms, start_ms, now_ms))


def _recounted(reader: WindowReader, size_ms: int, start_ms: int, now_ms: int) -> Iterator[WindowGroup]:
    for window, taken, _ in reader.recounted(size_ms, start_ms):
        yield WindowGroup(window, taken, _passed(reader, size_ms, start_ms, now_ms) if window == start_ms else 0)


def changed_windows(policy: WindowPolicy, changed: WindowPolicy, windows: Iterable[WindowGroup]) -> tuple[int, int]:
    """How many slots still to come would lie in windows that are closed, and how many would be over the limit. The
    windows are of the size of `changed`. Where `policy` has windows of the same size, only lowered limits count."""
    closed = over = 0
    is_resized = changed.size_ms != policy.size_ms
    for start, taken, passed, configs in windows:
        ahead = taken - passed
        if ahead and changed.calendar is not None and changed.next_open(start) != start:
            closed += ahead * configs
        limit = changed.limit_at(start)
        if is_resized or limit < policy.limit_at(start):
            over += min(ahead, max(0, taken - limit)) * configs
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
