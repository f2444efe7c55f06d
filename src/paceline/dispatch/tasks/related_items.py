"""The items around an execution, in the queue of its tasks: those of its batch, and the next of its chain."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from paceline.dispatch.current_task import CurrentTask
from paceline.dispatch.model import EnqueueRequest
from paceline.dispatch.outcomes import Snooze
from paceline.dispatch.status import Status
from paceline.dispatch.tasks.batches import Members, next_look, outcome_of

if TYPE_CHECKING:
    from paceline.dispatch.tasks.tasks import Tasks


class RelatedItems:
    """The `Around` of a `TaskExecution`."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks

    async def outcome(self, current: CurrentTask, members: Members) -> dict[str, Any]:
        store = (await self._tasks.queue()).store
        counts: Counter[Status] = Counter()
        for item_type, ids in members.ids().items():
            counts.update(await store.statuses(item_type, ids))
        outcome = outcome_of(members, counts)
        if outcome is None:
            row = await store.find(current.item_type, current.item_id)
            now = datetime.now(UTC)
            raise Snooze(next_look(now if row is None else row[0].created_at, now))
        return {members.into: asdict(outcome)}

    async def queue_next(self, request: EnqueueRequest) -> None:
        await self._tasks.queue_next(request)
