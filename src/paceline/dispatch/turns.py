"""Fair turns between lanes: a lane with a million items shares every claim with a lane that has ten. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from paceline.errors import InvalidInput

DEFAULT_LANE = "default"
"""The lane of items that name none."""
LONGEST_LANE = 64
DEFAULT_PRIORITY = 5
LAST_PRIORITY = 9

T = TypeVar("T")


class Places(NamedTuple):
    """How many items of a type may be in flight at once over all processes, in all and per lane; None for any."""

    in_all: int | None = None
    per_lane: int | None = None

    @property
    def are_limited(self) -> bool:
        return self.in_all is not None or self.per_lane is not None


UNLIMITED = Places()


def rotated(lanes: Iterable[str], after: str) -> list[str]:
    """The lanes in order of their names, beginning behind `after`: the lane that was served last."""
    ordered = sorted(set(lanes))
    return [lane for lane in ordered if lane > after] + [lane for lane in ordered if lane <= after]


def in_turns(lanes: Sequence[Iterator[T]], limit: int) -> Iterator[T]:
    """Up to `limit` items: one of each lane in turn, until all are empty. Reads no lane further than it must."""
    waiting = list(lanes)
    while waiting:
        for lane in list(waiting):
            if limit <= 0:
                return
            try:
                item = next(lane)
            except StopIteration:
                waiting.remove(lane)
                continue
            limit -= 1
            yield item


def checked_lane(lane: object) -> str:
    """A lane: 1 to 64 printable characters; None for the default."""
    if lane is None:
        return DEFAULT_LANE
    good = isinstance(lane, str) and 0 < len(lane) <= LONGEST_LANE and lane.isprintable() and lane.strip() == lane
    if not good:
        raise InvalidInput("lane", f"must be a text of 1 to {LONGEST_LANE} printable characters, without spaces around")
    return str(lane)


def checked_priority(priority: object) -> int:
    """A priority: 0, which is first, to 9, which is last; None for the default, 5."""
    if priority is None:
        return DEFAULT_PRIORITY
    if not isinstance(priority, int) or isinstance(priority, bool) or not 0 <= priority <= LAST_PRIORITY:
        raise InvalidInput("priority", f"must be a whole number from 0, which is first, to {LAST_PRIORITY}")
    return int(priority)
