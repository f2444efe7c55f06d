"""The items around an execution, in the queue of its tasks: those of its batch, and the next of its chain."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from paceline.dispatch.current_task import CurrentTask
from paceline.dispatch.model import EnqueueRequest, GiveUp, Postponed
from paceline.dispatch.tasks.batches import Members

if TYPE_CHECKING:
    from paceline.dispatch.tasks.tasks import Tasks


HELD_AGAIN = timedelta(minutes=1)
"""The pause of a callback that an operator made due too early."""


class RelatedItems:
    """The `Around` of a `TaskExecution`."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks

    async def outcome(self, current: CurrentTask, members: Members) -> dict[str, Any]:
        store = (await self._tasks.queue()).store
        counts = await store.batch(current.item_type, current.item_id)
        if counts is None:
            raise GiveUp("its batch was deleted")
        if counts.left:
            raise Postponed(f"{counts.left} of {counts.total} calls of its batch have not ended", HELD_AGAIN)
        return {members.into: asdict(members.outcome(counts))}

    async def queue_next(self, request: EnqueueRequest) -> None:
        await self._tasks.queue_next(request)
