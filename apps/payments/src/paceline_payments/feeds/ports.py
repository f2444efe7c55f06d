"""The port of feeds: a store for them and for records that wait to be accepted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from paceline_payments.feeds.model import Feed, FeedReject, FeedState, Figures


class FeedStore(Protocol):
    """Keeps feeds, their staged records and their rejects, beside the payments.

    Time is the store's own clock. Every method is one transaction.
    """

    async def open(
        self, feed_id: str, format: str, name: str | None, config_name: str | None, by: str | None = None
    ) -> None:
        """A new feed, RECEIVING."""
        ...

    async def stage(self, feed_id: str, number: int, payload: bytes, rejects: Sequence[FeedReject]) -> None:
        """Keeps a chunk of records until the feed is complete."""
        ...

    async def drop(self, feed_id: str, reason: str) -> None:
        """RECEIVING → REFUSED; its chunks and rejects are deleted."""
        ...

    async def complete(
        self,
        feed_id: str,
        digest: str,
        figures: Figures,
        name: str | None,
        document: Mapping[str, str],
        *,
        hold: bool = False,
    ) -> str:
        """RECEIVING → ACCEPTING, or HELD. If another feed has the same digest, this one is deleted. Returns the id of
        the feed that stays."""
        ...

    async def release(self, feed_id: str, by: str) -> bool:
        """HELD → ACCEPTING. False if it is not HELD, or if its submitter is this caller or unknown."""
        ...

    async def claim(self, runner: str, lease: timedelta, feed_id: str | None = None) -> Feed | None:
        """A feed to resume: this one, or any that is ACCEPTING, if its runner had no heartbeat for `lease`."""
        ...

    async def unclaim(self, feed_id: str, runner: str) -> None:
        """Gives back a `claim`: another runner may resume at once."""
        ...

    async def chunk(self, feed_id: str, number: int) -> bytes | None:
        """A staged chunk."""
        ...

    async def advance(self, feed_id: str, runner: str, number: int, rejects: Sequence[FeedReject]) -> bool:
        """A chunk is accepted: it is deleted, its rejects are kept. False if the feed is another runner's, or over."""
        ...

    async def finish(self, feed_id: str, runner: str) -> bool:
        """ACCEPTING → DONE, with the payments that it brought counted. False as above."""
        ...

    async def cancel(self, feed_id: str, reason: str) -> Feed | None:
        """HELD, ACCEPTING or DONE → CANCELLED; what is staged is deleted. None if there is no such feed."""
        ...

    async def find(self, feed_id: str) -> Feed | None: ...

    async def page(
        self,
        limit: int,
        after: str | None,
        state: FeedState | None = None,
        prefix: str | None = None,
        *,
        oldest_first: bool = False,
    ) -> list[Feed]:
        """Feeds, newest or oldest first; `after` is the last id of the page before. `prefix` is what the id or the name
        begins with."""
        ...

    async def count_matching(self, state: FeedState | None, prefix: str | None, at_most: int) -> int:
        """How many feeds match, up to so many."""
        ...

    async def prune(self, before: datetime) -> int:
        """Deletes feeds that ended before a time and have no payments left, with their rejects."""
        ...

    async def rejects(self, feed_id: str, after: int, limit: int) -> list[FeedReject]:
        """Rejects in order of their lines, past a line."""
        ...
