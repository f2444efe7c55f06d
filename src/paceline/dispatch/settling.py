"""Group commit for changes: callers who settle while a transaction is in flight share the next one.

If an execution ends before its start is recorded, both are recorded by one write of the item's row.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from paceline.batching import Batcher
from paceline.dispatch.decisions import STARTED
from paceline.dispatch.model import BatchSummary, Change, Claim, WritingRefused
from paceline.dispatch.status import Status, may

MAX_CALLS = 32
"""The maximum of calls per transaction."""

Write = Callable[[Sequence[Change], Sequence[BatchSummary]], Awaitable[list[bool]]]
"""Writes changes and summaries in one transaction, and returns which of the changes were written."""


class SettleCall(NamedTuple):
    """One call of `QueueStore.settle`."""

    changes: Sequence[Change]
    summary: BatchSummary | None


class Settling:
    """The settle calls of one process: one transaction at a time."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._batcher: Batcher[SettleCall, list[bool]] = Batcher(
            self._flush,
            max_batch=MAX_CALLS,
            linger=True,  # short executions report in the loop's iteration after their starts
        )

    async def settle(self, changes: Sequence[Change], summary: BatchSummary | None) -> list[bool]:
        """As `QueueStore.settle`."""
        for change in changes:
            _ = change.origins  # raises here for an unknown transition: it must not fail the other callers
        return await self._batcher.submit(SettleCall(changes, summary))

    async def close(self) -> None:
        """Returns when all changes so far are written."""
        await self._batcher.close()

    async def _flush(self, calls: Sequence[SettleCall]) -> list[list[bool] | BaseException]:
        outcomes: dict[int, list[bool] | BaseException] = {}
        waiting = list(enumerate(calls))
        while waiting:
            joined, places, left = JoinedChanges(), dict[int, list[int]](), []
            for number, call in waiting:
                if (joined_at := joined.add(call.changes)) is None:
                    left.append((number, call))
                else:
                    places[number] = joined_at
            waiting = left
            summaries = [call.summary for number in places if (call := calls[number]).summary is not None]
            try:
                done = await self._write(joined.changes, [summary for summary in summaries if summary is not None])
            except Exception as error:
                if isinstance(error, WritingRefused) and len(places) > 1:
                    # It must fail alone.
                    for number in places:
                        (outcomes[number],) = await self._flush([calls[number]])
                else:
                    outcomes |= dict.fromkeys(places, error)
            else:
                outcomes |= {number: [done[place] for place in at] for number, at in places.items()}
        return [outcomes[number] for number in range(len(calls))]


class JoinedChanges:
    """Changes of several calls, joined: an item's start and its outcome become one change."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self._places: dict[Claim, int] = {}

    def add(self, changes: Sequence[Change]) -> list[int] | None:
        """The index of each of the call's changes; None, and nothing is added, if one of them must come after those
        here."""
        places: list[int] = []
        merged: list[tuple[int, Change]] = []
        end = len(self.changes)
        for change in changes:
            place = self._places.get(change.claim)
            if place is None:
                place, end = end, end + 1
            else:
                both = start_and_outcome(self.changes[place], change)
                if both is None:
                    return None
                merged.append((place, both))
            places.append(place)
        first_new = len(self.changes)
        for place, both in merged:
            self.changes[place] = both
        new = [change for change, place in zip(changes, places, strict=True) if place >= first_new]
        self._places.update((change.claim, place) for place, change in enumerate(new, first_new))
        self.changes += new
        return places


def start_and_outcome(one: Change, other: Change) -> Change | None:
    """The two changes of one claim as one; None if they are not its start and its outcome."""
    start, outcome = (one, other) if one.path == STARTED else (other, one)
    if start.path != STARTED or outcome.path == STARTED or outcome.start is not None:
        return None
    if start.seen is not None or outcome.seen is not None or not may(Status.DISPATCHED, outcome.path[0]):
        return None
    return outcome._replace(start=start)
