"""Calls an application's `Follower` in the transaction that changes its items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import sqlalchemy as sa

from paceline.dispatch.model import Change, Item, ItemMove
from paceline.dispatch.ports import Follower
from paceline.dispatch.status import Status
from paceline.errors import Conflict
from paceline.sql.schema import now as database_clock

FOLLOWED = (Status.DEAD_LETTER, Status.UNKNOWN)
"""The statuses of which an engine's report tells the item's follower."""


def is_followed(change: Change, followers: Mapping[str, Follower]) -> bool:
    """Whether its item's follower must be called: for dead letters, and for items whose attempt is in doubt. Other
    reports of an engine do not change an application's state."""
    return change.status in FOLLOWED and change.claim.item_type in followers


def follow(
    connection: sa.Connection, followers: Mapping[str, Follower], written: Sequence[Change], now: datetime | None
) -> None:
    """Calls the followers of these changes' items."""
    followed: dict[str, list[ItemMove]] = {}
    for change in written:
        if is_followed(change, followers):
            claim = change.claim
            move = ItemMove(claim.item_id, Status.DISPATCHED, change.status, change.error, change.verdict)
            followed.setdefault(claim.item_type, []).append(move)
    if followed:
        moment = now or database_clock(connection)
        for item_type, moves in followed.items():
            followers[item_type].follow(connection, moves, moment)


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
