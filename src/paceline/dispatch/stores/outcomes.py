"""What an outcome writes beside its item's row, in the same transaction: its result, the attempt that it ended, what
its execution writes, a doubt, the counters of its batch, the holder of its lock, and what follows the item."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta

import sqlalchemy as sa

from paceline.dispatch.model import BatchSummary, Change, Claim
from paceline.dispatch.ports import Follower
from paceline.dispatch.status import Status
from paceline.dispatch.stores import attempts, batches, following, locks, reports, writings
from paceline.dispatch.stores.portable import locked
from paceline.dispatch.stores.rows import chunks, of_items
from paceline.dispatch.stores.tables import IN_FLIGHT, queue
from paceline.sql.schema import Instant
from paceline.sql.schema import now as database_clock

Write = Callable[[sa.Connection, Sequence[Change], Sequence[BatchSummary], datetime | None], list[bool]]


def writes_more(change: Change, followers: Mapping[str, Follower]) -> bool:
    """Whether a change writes more than its item's row."""
    return (
        change.result_json is not None
        or change.attempt is not None
        or bool(change.writings)
        or change.in_doubt
        or batches.may_end_member(change)
        or locks.ends_hold(change)
        or following.is_followed(change, followers)
    )


def settle(
    connection: sa.Connection,
    write: Write,
    followers: Mapping[str, Follower],
    changes: Sequence[Change],
    summaries: Sequence[BatchSummary],
    silent_for: timedelta | None,
    now: datetime | None,
) -> tuple[list[bool], set[str]]:
    """Calls `write`, and writes all that belongs to the changes that it wrote. With `silent_for`, changes are written
    whose claims had no heartbeat for that long. Returns which were written, and the types of items that are due now:
    callbacks of batches, and the next in the line of a lock."""
    done = _write(connection, write, changes, summaries, silent_for, now)
    written = [change for change, is_written in zip(changes, done, strict=True) if is_written]
    reports.write_results(connection, written, now)
    attempts.write_attempts(connection, written, now)
    writings.write_together(connection, changes, done)
    _mark_doubts(connection, written, now)
    due = batches.count_ended(connection, written, now)
    ended = [(change.claim.item_type, change.claim.item_id) for change in written if locks.ends_hold(change)]
    due |= locks.give_back(connection, ended, now)
    following.follow(connection, followers, written, now)
    return done, due


def _write(
    connection: sa.Connection,
    write: Write,
    changes: Sequence[Change],
    summaries: Sequence[BatchSummary],
    silent_for: timedelta | None,
    now: datetime | None,
) -> list[bool]:
    if silent_for is None:
        return write(connection, changes, summaries, now)
    # A heartbeat may have come since the claims were read.
    rows = locked(connection, [change.claim for change in changes])
    deadline = (now or database_clock(connection)) - silent_for
    silent = {key for key, row in rows.items() if row.seen_at is not None and row.seen_at <= deadline}
    is_silent = [
        # The end of a hold needs no silence: nothing sends a heartbeat.
        change.seen is Status.UNKNOWN or (change.claim.item_type, change.claim.item_id) in silent
        for change in changes
    ]
    recovered = [change for change, silent_still in zip(changes, is_silent, strict=True) if silent_still]
    done = iter(write(connection, recovered, summaries, now))
    return [silent_still and next(done) for silent_still in is_silent]


def _mark_doubts(connection: sa.Connection, written: Sequence[Change], now: datetime | None) -> None:
    """Marks the items whose attempts have an effect that nobody knows, unless an earlier one is in doubt."""
    if not (claims := [change.claim for change in written if change.in_doubt]):
        return
    began = sa.func.coalesce(queue.c.begun_at, sa.literal(now or database_clock(connection), Instant))
    for item_type in {claim.item_type for claim in claims}:
        for some in chunks([claim.item_id for claim in claims if claim.item_type == item_type]):
            mark = sa.update(queue).where(of_items(item_type, some), queue.c.unknown_since.is_(None))
            connection.execute(mark.values(unknown_since=began))


def end_doubt(connection: sa.Connection, claim: Claim) -> bool:
    """Ends the doubt about the item of a claim; False if the claim is lost."""
    this = of_items(claim.item_type, [claim.item_id]), queue.c.claim_epoch == claim.epoch, sa.text(IN_FLIGHT)
    return connection.execute(sa.update(queue).where(*this).values(unknown_since=None)).rowcount == 1
