"""Listings of booked and cancelled slots, by scheduled time, page by page."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from paceline.durations import LATEST_MS, parse_instant, to_ms
from paceline.errors import InvalidInput
from paceline.slots.model import AssignedSlot, PolicyVersion, checked_name

LONGEST_OWNER = 64
LONGEST_REASON = 500
LONGEST_ACTOR = 64
MOST_LISTED = 1000
MOST_COUNTED = 100_001
"""A listing counts up to this many: more are "more than 100,000"."""
SORTS = ("scheduledTime", "-scheduledTime")
"""How a listing may be sorted; with `-`, the latest first."""


class SlotStatus(StrEnum):
    """Whether a slot is counted in its window."""

    BOOKED = "BOOKED"
    CANCELLED = "CANCELLED"
    """Its room is free again. The record stays until it is pruned."""


class SlotFilter(NamedTuple):
    """Which slots to list; None means no restriction."""

    config_name: str | None = None
    from_ms: int = 0
    to_ms: int = LATEST_MS
    """Half open: a slot at this time is not listed."""
    status: SlotStatus | None = None
    owner: str | None = None
    """An application; the empty text selects the slots that belong to none."""
    names: tuple[str, ...] = ()
    """Their first config has one of these names, or, with `*` at its end, a name that begins so."""

    @classmethod
    def of(
        cls,
        config_name: str | None = None,
        since: datetime | str | None = None,
        until: datetime | str | None = None,
        status: str | None = None,
        owner: str | None = None,
    ) -> SlotFilter:
        """A checked filter.

        Raises:
            InvalidInput: a value is wrong; the error names it as the wire does: `from`, `to`, `status`, `owner`.
        """
        first = 0 if since is None else to_ms(parse_instant(since, "from"))
        last = LATEST_MS if until is None else to_ms(parse_instant(until, "to"))
        if last < first:
            raise InvalidInput("to", "lies before `from`")
        if owner is not None and (len(owner) > LONGEST_OWNER or not (owner.isprintable() or not owner)):
            raise InvalidInput("owner", f"must have at most {LONGEST_OWNER} printable characters")
        name = None if config_name is None else checked_name(config_name)
        return cls(name, first, last, None if status is None else _status(status), owner)


EVERYTHING = SlotFilter()


class Cursor(NamedTuple):
    """The place of a slot in a listing: the next page begins behind it."""

    scheduled_ms: int
    event_id: str
    serial: int

    def encoded(self) -> str:
        """The opaque text that a caller passes for the next page."""
        return base64.urlsafe_b64encode("\n".join(map(str, self)).encode()).decode().rstrip("=")

    @classmethod
    def decoded(cls, text: str) -> Cursor:
        """Raises: InvalidInput: the text is no cursor."""
        try:
            padded = text.encode("ascii") + b"=" * (-len(text) % 4)
            if b"/" in padded or b"+" in padded:  # of the other alphabet, which is decoded, too, until Python 3.15
                raise ValueError
            at, event_id, serial = base64.urlsafe_b64decode(padded).decode().split("\n")
            cursor = cls(int(at), event_id, int(serial))
        except (ValueError, binascii.Error):
            raise InvalidInput("cursor", "is not the `next` of a page") from None
        if not (0 <= cursor.scheduled_ms <= LATEST_MS and 0 <= cursor.serial < 2**63):
            raise InvalidInput("cursor", "is not the `next` of a page")
        return cursor


class ListedSlot(NamedTuple):
    """A slot as its record has it."""

    slot: AssignedSlot
    created_ms: int
    moved_ms: int | None = None
    """When a re-plan moved it last."""
    serial: int = 0
    """The number of the cancellation; 0 while the slot is booked. An event may be cancelled and booked many times."""
    cancelled_ms: int | None = None
    reason: str | None = None
    actor: str | None = None

    @property
    def status(self) -> SlotStatus:
        return SlotStatus.CANCELLED if self.serial else SlotStatus.BOOKED

    @property
    def cursor(self) -> Cursor:
        return Cursor(self.slot.scheduled_ms, self.slot.event_id, self.serial)


class SlotHistory(NamedTuple):
    """The slots of a config around now, as they were wanted and as they are booked. Times are whole seconds since
    1970, except for `instants`."""

    until: datetime
    """When it was read, by the store's clock."""
    wanted: Mapping[int, int]
    """Events by the time that was requested; of slots that lie within the horizon."""
    past: Mapping[int, int]
    """Slots whose time has come."""
    instants: Mapping[int, int]
    """The last 100,000 instants of those, in microseconds since 1970."""
    booked: Mapping[int, int]
    """Slots to come."""


class ListedConfig(NamedTuple):
    """A config as a listing has it."""

    version: PolicyVersion
    template: str | None
    """The template that it follows."""
    followers: int
    """How many follow it, if it is a template."""


def config_page(names: Iterable[str], search: str, after: str | None, limit: int) -> list[str]:
    """The names that hold a text, whatever its case, past the name `after`, in order."""
    wanted = search.casefold()
    page = sorted(name for name in names if wanted in name.casefold() and (after is None or name > after))
    return page[:limit]


class Cancellation(NamedTuple):
    """Why a slot is given back, and by whom."""

    reason: str | None = None
    actor: str | None = None

    @classmethod
    def of(cls, reason: str | None = None, actor: str | None = None) -> Cancellation:
        """Raises: InvalidInput: the reason or the actor is no text, or the reason is too long, or holds a control
        character."""
        for field, text in (("reason", reason), ("actor", actor)):
            if text is not None and not isinstance(text, str):
                raise InvalidInput(field, f"must be a text, not {text!r}")
        if reason is not None and (len(reason) > LONGEST_REASON or not reason.isprintable()):
            raise InvalidInput("reason", f"must have at most {LONGEST_REASON} printable characters")
        return cls(reason or None, None if actor is None else actor[:LONGEST_ACTOR])


NO_CAUSE = Cancellation()


def is_latest_first(sort: str | None) -> bool:
    """Whether a listing begins at its end.

    Raises:
        InvalidInput: it can't be sorted so.
    """
    if sort is not None and sort not in SORTS:
        raise InvalidInput("sort", f"must be one of {', '.join(SORTS)}")
    return sort == "-scheduledTime"


def _status(value: str) -> SlotStatus:
    try:
        return SlotStatus(value)
    except ValueError:
        raise InvalidInput("status", f"{value!r:.80} is unknown; use {' or '.join(SlotStatus)}") from None
