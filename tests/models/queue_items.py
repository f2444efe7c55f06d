"""Items of the queue in this process's memory."""

from __future__ import annotations

from datetime import datetime

from paceline.dispatch.model import EnqueueRequest, Item
from paceline.dispatch.status import Status


def new_item(request: EnqueueRequest, execute_at: datetime, due_at: datetime, now: datetime) -> Item:
    return Item(
        item_type=request.item_type,
        item_id=request.item_id,
        status=Status.READY,
        execute_at=execute_at,
        due_at=due_at,
        slotted=request.slotted,
        init_workflow_id=request.init_workflow_id,
        batch_id=None,
        exec_workflow_id=None,
        claim_epoch=0,
        claimed_at=None,
        seen_at=None,
        dispatched_at=None,
        completed_at=None,
        retry_count=0,
        last_error=None,
        created_at=now,
        updated_at=now,
        traceparent=request.traceparent,
        lane=request.lane,
        priority=request.priority,
        lock=request.lock,
    )
