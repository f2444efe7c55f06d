"""The Temporal Schedule that fires the dispatcher of an item type."""

from __future__ import annotations

from datetime import timedelta

from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleState,
    ScheduleUpdate,
    ScheduleUpdateInput,
)

DISPATCH_TASK_QUEUE = "dispatch-task-queue"
DISPATCHER = "DispatcherWorkflow"

CATCH_UP = timedelta(seconds=10)
"""A firing missed for longer than this is dropped: the next one does its work. (Temporal's default is a year.)"""


def schedule_id(item_type: str) -> str:
    return f"dispatch-{item_type}"


def whole_seconds(interval: float) -> int:
    """The interval a Schedule can have: whole seconds, at least one."""
    return max(1, round(interval))


class DispatchSchedules:
    """One Schedule per item type. Any number of processes may keep the same one."""

    def __init__(self, client: Client, *, task_queue: str = DISPATCH_TASK_QUEUE) -> None:
        self._client = client
        self.task_queue = task_queue

    async def keep(self, item_type: str, interval: float) -> None:
        """Creates the item type's Schedule, or gives it this interval; one an operator paused stays paused."""
        seconds = whole_seconds(interval)
        target = self._schedule(item_type, seconds)
        try:
            await self._client.create_schedule(schedule_id(item_type), target, trigger_immediately=True)
        except ScheduleAlreadyRunningError:
            await self._client.get_schedule_handle(schedule_id(item_type)).update(
                lambda current: self._update(current, item_type, seconds)
            )

    def _update(self, current: ScheduleUpdateInput, item_type: str, seconds: int) -> ScheduleUpdate | None:
        schedule = current.description.schedule
        target = self._schedule(item_type, seconds, schedule.state)
        same = (
            [interval.every for interval in schedule.spec.intervals]
            == [interval.every for interval in target.spec.intervals]
            and schedule.policy == target.policy
            and isinstance(schedule.action, ScheduleActionStartWorkflow)
            and schedule.action.task_queue == self.task_queue
        )
        # Written only if it differs: processes that start together would otherwise overwrite each other's updates.
        return None if same else ScheduleUpdate(target)

    def _schedule(self, item_type: str, seconds: int, state: ScheduleState | None = None) -> Schedule:
        return Schedule(
            action=ScheduleActionStartWorkflow(
                DISPATCHER,
                args=[item_type, seconds],
                id=schedule_id(item_type),
                task_queue=self.task_queue,
            ),
            spec=ScheduleSpec(intervals=[ScheduleIntervalSpec(every=timedelta(seconds=seconds))]),
            policy=SchedulePolicy(overlap=ScheduleOverlapPolicy.SKIP, catchup_window=CATCH_UP),
            state=state or ScheduleState(note=f"paceline: dispatches {item_type}"),
        )
