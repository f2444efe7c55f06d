"""Filters and orders of items, and groups of errors. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, TypedDict

from paceline.dispatch.model import LONGEST_ERROR, Item
from paceline.dispatch.status import Status
from paceline.dispatch.turns import checked_lane
from paceline.durations import EPOCH, parse_instant
from paceline.errors import InvalidInput
from paceline.slots.model import checked_id

ANYTHING = "*"
"""Stands for any characters in an error's pattern, and for what differs between the errors of a group."""
LONGEST_GROUP = 200
LONGEST_PAGE = 1000
_DIFFERS = re.compile(
    r"'[^']*'|\"[^\"]*\"|\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"
    r"|\b0x[0-9a-f]+\b|\b(?=[a-z]*\d)[0-9a-z]{8,}\b|\d+(?:[.,:]\d+)*",
    re.IGNORECASE,
)
"""Texts in quotes, UUIDs, addresses, long ids with a digit, and numbers."""


@dataclass(frozen=True, slots=True)
class ItemFilter:
    """What items must have in common; None for anything."""

    status: Status | None = None
    prefix: str | None = None
    """What the id begins with."""
    error: str | None = None
    """A text in the last error, case-insensitive; `*` stands for any characters, as in the names of groups."""
    since: datetime | None = None
    """`execute_at` is not before this, …"""
    until: datetime | None = None
    """… and before this."""
    lane: str | None = None
    error_group: str | None = None
    """The name of the group that their last errors belong to, as `group_of` makes it; exact, unlike `error`."""

    def matches(self, item: Item) -> bool:
        """Whether an item is among them."""
        return (
            (self.status is None or item.status is self.status)
            and (self.prefix is None or item.item_id.startswith(self.prefix))
            and (self.error is None or _holds(self.error, item.last_error))
            and (self.since is None or item.execute_at >= self.since)
            and (self.until is None or item.execute_at < self.until)
            and (self.lane is None or item.lane == self.lane)
            and (self.error_group is None or group_of(item.last_error) == self.error_group)
        )


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Dead letters that failed alike."""

    error: str | None
    """Their error, with `*` for what differs; `ItemFilter.error_group` finds them by it."""
    count: int
    example: str
    """The id of one of them."""
    first_at: datetime
    """When the first of them became a dead letter."""
    last_at: datetime


@dataclass(frozen=True, slots=True)
class LaneDepth:
    """The unfinished items of a lane."""

    lane: str
    ready: int
    in_flight: int
    dead_letters: int
    oldest_due_at: datetime | None
    """When the first of the READY items is due; None if there is none."""


def lane_depths(counts: Iterable[tuple[str, Status, int, datetime | None]]) -> list[LaneDepth]:
    """Lanes from how many items of a lane have a status, and when the first of them is due; the longest lane first."""
    lanes: dict[str, dict[Status, int]] = {}
    due: dict[str, datetime | None] = {}
    for lane, status, items, first_due in counts:
        depth = lanes.setdefault(lane, {})
        depth[status] = depth.get(status, 0) + items
        if status is Status.READY and first_due is not None:
            known = due.get(lane)
            due[lane] = first_due if known is None else min(known, first_due)
    depths = [
        LaneDepth(
            lane,
            depth.get(Status.READY, 0),
            depth.get(Status.CLAIMED, 0) + depth.get(Status.DISPATCHED, 0),
            depth.get(Status.DEAD_LETTER, 0),
            due.get(lane),
        )
        for lane, depth in lanes.items()
    ]
    return sorted(depths, key=lambda one: (-one.ready, -one.in_flight, one.lane))


def group_of(error: str | None) -> str:
    """The name of the group that an error belongs to: its first line, with `*` for what differs."""
    line = (error or "").strip().partition("\n")[0]
    return re.sub(r"\*(?:\s*\*)*", ANYTHING, _DIFFERS.sub(ANYTHING, line))[:LONGEST_GROUP] or ANYTHING


def grouped(errors: Iterable[ErrorGroup]) -> list[ErrorGroup]:
    """Groups of equal errors, made groups of errors that are alike; the largest first."""
    groups: dict[str, ErrorGroup] = {}
    for one in errors:
        name = group_of(one.error)
        other = groups.get(name, one)
        groups[name] = ErrorGroup(
            name,
            one.count + (other.count if name in groups else 0),
            min(one.example, other.example),
            min(one.first_at, other.first_at),
            max(one.last_at, other.last_at),
        )
    return sorted(groups.values(), key=lambda group: (-group.count, group.error or ""))


def _holds(pattern: str, error: str | None) -> bool:
    expression = ".*".join(re.escape(part) for part in pattern.split(ANYTHING))
    return error is not None and re.search(expression, error, re.DOTALL | re.IGNORECASE) is not None


def checked_error(text: str, field: str = "error") -> str:
    """A pattern of errors, or `InvalidInput`."""
    if not isinstance(text, str) or not 0 < len(text) <= LONGEST_ERROR or "\x00" in text:
        raise InvalidInput(field, f"must be a text of 1 to {LONGEST_ERROR} characters, with * for any of them")
    return text


@dataclass(frozen=True, slots=True)
class ItemOrder:
    """How a listing is sorted: by a time, and by the id where times are equal; or by the id alone."""

    by: Literal["item_id", "execute_at", "updated_at"] = "item_id"
    descending: bool = False

    @classmethod
    def of(cls, text: str | None) -> ItemOrder:
        """An order by its name on the wire: `id`, `executeAt` or `updatedAt`; with `-` before it, the last first.

        Raises:
            InvalidInput: there is no such order.
        """
        if text is None:
            return cls()
        try:
            return cls(_SORTS[text.removeprefix("-")], text.startswith("-"))
        except KeyError:
            raise InvalidInput("sort", f"must be one of {', '.join(SORTS)}") from None

    def key(self, item: Item) -> tuple[datetime, str]:
        """The sort key of an item in this order."""
        return EPOCH if self.by == "item_id" else getattr(item, self.by), item.item_id

    def cursor(self, item: Item) -> str:
        """The place of an item, as a text: the next page begins behind it."""
        at, item_id = self.key(item)
        return item_id if self.by == "item_id" else f"{(at - EPOCH) // _US}.{item_id}"

    def place(self, cursor: str) -> tuple[datetime, str]:
        """The key that a cursor stands for.

        Raises:
            InvalidInput: it is no cursor of this order.
        """
        if self.by == "item_id":
            return EPOCH, checked_id(cursor, "cursor")
        at, dot, item_id = cursor.partition(".")
        if not (dot and at.isascii() and at.isdigit() and len(at) <= 16):
            raise InvalidInput("cursor", "is not the `next` of a page in this order")
        return EPOCH + int(at) * _US, checked_id(item_id, "cursor")


_US = timedelta(microseconds=1)
_SORTS: dict[str, Literal["item_id", "execute_at", "updated_at"]] = {
    "id": "item_id",
    "executeAt": "execute_at",
    "updatedAt": "updated_at",
}
SORTS = [sign + name for name in _SORTS for sign in ("", "-")]
"""The names of orders on the wire."""
BY_ID = ItemOrder()


class FilterOptions(TypedDict, total=False):
    """What items must have in common."""

    status: Status | str | None
    prefix: str | None
    lane: str | None
    error: str | None
    since: datetime | str | None
    until: datetime | str | None
    error_group: str | None


def checked_filter(
    *,
    status: Status | str | None = None,
    prefix: str | None = None,
    lane: str | None = None,
    error: str | None = None,
    since: datetime | str | None = None,
    until: datetime | str | None = None,
    error_group: str | None = None,
) -> ItemFilter:
    """A filter, or `InvalidInput`."""
    return ItemFilter(
        checked_status(status),
        None if prefix is None else checked_id(prefix, "prefix"),
        None if error is None else checked_error(error),
        None if since is None else parse_instant(since, "since"),
        None if until is None else parse_instant(until, "until"),
        None if lane is None else checked_lane(lane),
        None if error_group is None else checked_error(error_group, "error_group"),
    )


def checked_status(status: Status | str | None) -> Status | None:
    """A status by its name; None for any."""
    if status is None:
        return None
    try:
        return Status(str(status).upper())
    except ValueError:
        names = ", ".join(Status)
        raise InvalidInput("status", f"{str(status)[:40]!r} is unknown; use one of {names}") from None


def checked_ids(item_ids: Iterable[str]) -> list[str]:
    """Raises: InvalidInput: one of them is no id, or they are no list."""
    if isinstance(item_ids, str):
        raise InvalidInput("ids", "must be a list of item ids, not one text")
    return [checked_id(item_id, "ids") for item_id in item_ids]


def checked_limit(limit: object) -> int:
    """Raises: InvalidInput: it is no length of a page."""
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= LONGEST_PAGE:
        raise InvalidInput("limit", f"must be a whole number from 1 to {LONGEST_PAGE}")
    return limit
