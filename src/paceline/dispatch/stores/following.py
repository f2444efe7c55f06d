"""Calls an application's `Follower` in the transaction that changes its items."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

import sqlalchemy as sa

from paceline.dispatch.model import BatchSummary, Change, Item, ItemMove
from paceline.dispatch.ports import Follower
from paceline.dispatch.status import Status
from paceline.errors import Conflict
from paceline.sql.schema import now as database_clock

FOLLOWED = (Status.DEAD_LETTER, Status.UNKNOWN)
"""The statuses of which an engine's report tells the item's follower."""
Settle = Callable[[sa.Connection, Sequence[Change], Sequence[BatchSummary], datetime | None], list[bool]]


def settle(
    connection: sa.Connection,
    write: Settle,
    followers: Mapping[str, Follower],
    changes: Sequence[Change],
    summaries: Sequence[BatchSummary],
    now: datetime | None,
) -> list[bool]:
    """Calls `write`, then the followers of items that became dead letters or UNKNOWN."""
    done = write(connection, changes, summaries, now)
    moment = now or database_clock(connection)
    followed: dict[str, list[ItemMove]] = {}
    for change, written in zip(changes, done, strict=True):
        if written and change.status in FOLLOWED:
            claim = change.claim
            move = ItemMove(claim.item_id, Status.DISPATCHED, change.status, change.error, change.verdict)
            followed.setdefault(claim.item_type, []).append(move)
    for item_type, moves in followed.items():
        if item_type in followers:
            followers[item_type].follow(connection, moves, moment)
    return done


def checked_moves(
    connection: sa.Connection, follower: Follower | None, items: Sequence[Item], to: Status
) -> list[ItemMove]:
    """The moves of these items; `Conflict` if the follower refuses one of them."""
    moves = item_moves(items, to)
    for item_id, reason in (follower.refusals(connection, moves) if follower and moves else {}).items():
        verb = "requeued" if to is Status.READY else "discarded"
        raise Conflict(f"item {item_id!r} can't be {verb}: {reason}")
    return moves


def allowed_items(
    connection: sa.Connection, follower: Follower | None, items: Sequence[Item], to: Status
) -> list[Item]:
    """Those of the items whose move the follower does not refuse."""
    if follower is None or not items:
        return list(items)
    refused = follower.refusals(connection, item_moves(items, to))
    return [item for item in items if item.item_id not in refused]


def item_moves(items: Sequence[Item], to: Status) -> list[ItemMove]:
    return [ItemMove(item.item_id, item.status, to, item.last_error) for item in items]
