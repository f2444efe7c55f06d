"""A feed on the wire: its state, its figures, and its rejects."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from paceline.server.shapes import members
from paceline.server.shapes.shape import Instant, Shape

FEED_ID: dict[str, Any] = members.EVENT_ID | {"example": "feed-0123456789abcdef"}


class FeedShown(Shape):
    """A feed and its state."""

    feed_id: str
    format: str
    state: str
    name: str | None
    config_name: str | None
    records: int
    accepted: int
    """Payments that this feed brought; known once it is done."""
    duplicates: int
    rejected: int
    progress: float
    planned: dict[str, str]
    """By currency: the sum of the records that are payments."""
    totals: dict[str, str]
    """By currency: the sum of the payments that this feed brought; known once it is done."""
    reason: str | None
    submitted_by: str | None
    released_by: str | None
    created_at: Instant
    updated_at: Instant


class FeedPage(Shape):
    """Feeds, newest first."""

    feeds: list[FeedShown]
    next: str | None
    total: int | None = None
    """How many match, if requested; 100,001 if there are more."""


class CancelledFeed(FeedShown):
    """A feed that was cancelled."""

    cancelled: int
    """Payments that this call cancelled."""
    not_cancelled: int
    """Payments whose execution had begun: in flight or finished."""


class RejectedRecord(Shape):
    """A rejected record, as it was received."""

    line: int
    reason: str
    payment_id: str | None
    raw: str = Field(description="To be corrected and sent again.")
