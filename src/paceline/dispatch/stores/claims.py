"""Claims of one process on PostgreSQL: the next lane in turn, and each lane's position after the last claim."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from paceline.batching import Batcher
from paceline.dispatch.decisions import batch_name
from paceline.dispatch.model import Batch, ClaimedItem
from paceline.dispatch.stores import postgres_claims
from paceline.dispatch.stores.postgres_claims import ClaimCall, ClaimResult
from paceline.dispatch.stores.rows import ClaimRequest, Group, Position
from paceline.dispatch.turns import in_turns, rotated
from paceline.sql.engine import Database

SLOW_SECONDS = 0.02
"""A claim searches for the first due item of every lane, unless the last search took longer than this. Then it starts
where the last claim ended, …"""
LOOK_PAUSE = 20
"""… for this many times the duration of the search: while an old snapshot is open, the index keeps dead entries of
claimed rows, and a dispatcher must not spend its time on stepping over them. That long an item may wait that is due
earlier than the last claimed one, or that is the first of its lane."""

TOGETHER = 100
"""Claims of so many item types at the same moment share a transaction."""


@dataclass(slots=True)
class _Turns:
    """The state of one item type."""

    looked_at: float = float("-inf")
    pause: float = 0.0
    positions: dict[Group, Position] = field(default_factory=dict)
    after: str = ""
    """The lane that was served last."""


class Claims:
    """The claims of this process. Each process has its own turns."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._statements: Batcher[ClaimCall, ClaimResult] = Batcher(self._claim_together, max_batch=TOGETHER)
        self._turns: dict[str, _Turns] = {}

    def reset_positions(self, item_type: str) -> None:
        """Resets the positions: the next claim searches for the first items. The turn is kept."""
        if item_type in self._turns:
            self._turns[item_type].pause = 0.0

    async def claim(self, request: ClaimRequest, now: datetime | None) -> Batch:
        """Claims up to `request.limit` items, starting with the lane after the last one. If lanes leave part of their
        share, a further statement claims from those that have more."""
        turns = self._turns.setdefault(request.item_type, _Turns())
        request = request._replace(after=turns.after)
        began = time.monotonic()
        # A lane that was full at the last look is not among the positions.
        always = now is not None or request.places.per_lane is not None
        looks = always or began - turns.looked_at >= turns.pause
        positions: Mapping[Group, Position] | None = None if looks else dict(turns.positions)
        batch_id = batch_name()
        items: list[ClaimedItem] = []
        claimed_at: datetime | None = None
        while True:
            bytes_left = request.max_bytes - sum(len(item.context_json or "") for item in items)
            rest = request._replace(limit=request.limit - len(items), max_bytes=bytes_left)
            claimed = await self._statements.submit(ClaimCall(rest, now, positions, batch_id))
            if positions is None:
                seconds = time.monotonic() - began if claimed.look_seconds is None else claimed.look_seconds
                turns.looked_at, turns.pause = began, LOOK_PAUSE * seconds if seconds > SLOW_SECONDS else 0.0
                turns.positions = {}
            turns.positions.update(claimed.ends)
            items += claimed.batch.items
            if claimed.batch.items and claimed_at is None:
                claimed_at = claimed.batch.claimed_at
            positions = {group: end for group, end in claimed.ends.items() if group.lane in claimed.full_lanes}
            is_cut = claimed.batch.is_cut
            if is_cut or len(items) >= request.limit or not positions:
                break
        if len({item.lane for item in items}) > 1:
            items = _interleaved(items, request.after)
        if items:
            turns.after = items[-1].lane
        return Batch(batch_id, claimed_at or now or datetime.now(UTC), items, is_cut=is_cut)

    async def _claim_together(self, calls: Sequence[ClaimCall]) -> list[ClaimResult]:
        return await self._database.flush(postgres_claims.claim, calls)


def _interleaved(items: list[ClaimedItem], after: str) -> list[ClaimedItem]:
    """The items, one of each lane in turn."""
    lanes: dict[str, list[ClaimedItem]] = {}
    for item in items:
        lanes.setdefault(item.lane, []).append(item)
    return list(in_turns([iter(lanes[lane]) for lane in rotated(lanes, after)], len(items)))
