"""The dispatcher on Temporal: real Schedules, the whole way from the queue through executions and back."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client, ScheduleActionStartWorkflow, ScheduleOverlapPolicy, WorkflowExecutionStatus

from paceline.dispatch.engines.temporal.client import connect, connect_for_dispatch
from paceline.dispatch.engines.temporal.dispatcher import DispatcherActivities
from paceline.dispatch.engines.temporal.engine import TemporalEngine
from paceline.dispatch.engines.temporal.schedule import DispatchSchedules, schedule_id, whole_seconds
from paceline.dispatch.engines.temporal.workers import dispatch_worker, exec_worker
from paceline.dispatch.model import Claim, Completion, EnqueueRequest, Item
from paceline.dispatch.registry import Registry
from paceline.dispatch.status import Status
from paceline.dispatch.worker.cycle import CycleReport, DispatchCycle
from paceline.dispatch.worker.outcome_reporter import OutcomeReporter
from paceline.errors import StoreUnavailable
from paceline.testing import eventually
from tests.models.queue_store import MemoryQueueStore


class Rig:
    """One item type with its own Schedule and task queues."""

    def __init__(self, address: str, client: Client) -> None:
        self.address, self.client = address, client
        self.item_type = f"D{uuid.uuid4().hex[:12]}"
        self.task_queue = f"dispatch-{self.item_type}"
        self.schedules = DispatchSchedules(client, task_queue=self.task_queue)
        self.store = MemoryQueueStore()
        self.outcomes = OutcomeReporter(self.store)
        self.ran: list[str] = []
        self.failures: dict[str, int] = {}
        self._stack = AsyncExitStack()
        self.domain = Registry().register(
            self.item_type,
            self._execute,
            exec_task_queue=f"exec-{self.item_type}",
            dispatch_interval_secs=1,
            jitter_window_ms=0,
            retry_backoff_secs=0,
            max_dispatch_retries=3,
        )

    async def _execute(self, item_id: str, context: Any) -> None:
        self.ran.append(item_id)
        if self.failures.get(item_id, 0):
            self.failures[item_id] -= 1
            raise RuntimeError(f"{item_id} failed")

    async def start_dispatching(self, run_cycle: Any = None) -> None:
        """With the real cycle, or with another in its place."""
        if run_cycle is None:
            engine = TemporalEngine(await connect_for_dispatch(self.address), self.outcomes)
            run_cycle = DispatchCycle(self.store, engine).run
        await self._stack.enter_async_context(
            dispatch_worker(self.client, DispatcherActivities(run_cycle, self.schedules), task_queue=self.task_queue)
        )
        await self.schedules.keep(self.item_type, 1)

    async def start_executing(self, outcomes: Any = None) -> None:
        await self._stack.enter_async_context(
            exec_worker(self.client, self.domain.config.exec_task_queue, [self.domain], outcomes or self.outcomes)
        )

    async def enqueue(self, *item_ids: str) -> None:
        await self.store.enqueue([EnqueueRequest.of(self.item_type, item_id, {"n": 1}) for item_id in item_ids])

    async def item(self, item_id: str) -> Item:
        row = await self.store.find(self.item_type, item_id)
        assert row is not None
        return row[0]

    async def stand(self, status: Status, *item_ids: str) -> bool:
        return all([(await self.item(item_id)).status is status for item_id in item_ids])

    async def runs(self) -> list[tuple[str, WorkflowExecutionStatus | None]]:
        """The dispatcher's runs, oldest first."""
        query = f"TaskQueue = '{self.task_queue}' AND WorkflowType = 'DispatcherWorkflow'"
        executions = [execution async for execution in self.client.list_workflows(query)]
        return [
            (execution.id, execution.status)
            for execution in sorted(executions, key=lambda execution: execution.start_time)
        ]

    async def close(self) -> None:
        handle = self.client.get_schedule_handle(schedule_id(self.item_type))
        await handle.delete()
        await self._stack.aclose()


@pytest.fixture
async def rig(temporal_address: str) -> AsyncIterator[Rig]:
    rig = Rig(temporal_address, await connect(temporal_address))
    await rig.store.configure(rig.domain.config)
    yield rig
    await rig.close()


def report(rig: Rig, **values: Any) -> CycleReport:
    return CycleReport(rig.item_type, **{"interval": 1.0, "batch_size": 1, **values})


async def test_items_go_all_the_way(rig: Rig) -> None:
    rig.failures = {"stumbles": 1, "falls": 99}
    await rig.enqueue("walks", "stumbles", "falls")
    await rig.start_executing()
    await rig.start_dispatching()
    await eventually(lambda: rig.stand(Status.COMPLETED, "walks", "stumbles"))
    await eventually(lambda: rig.stand(Status.DEAD_LETTER, "falls"))
    assert (rig.ran.count("walks"), rig.ran.count("stumbles"), rig.ran.count("falls")) == (1, 2, 3)
    assert (await rig.item("falls")).last_error == "RuntimeError: falls failed"
    rig.failures = {}
    await rig.store.redirect(rig.item_type, None, Status.READY)
    await eventually(lambda: rig.stand(Status.COMPLETED, "falls"))
    audit = await rig.store.audit(rig.item_type, "falls", 100, None)
    # A quick outcome may overtake the record of its start, so that one is left out here.
    assert [entry.action for entry in reversed(audit) if entry.action != "DISPATCHED"] == [
        *["CLAIMED", "FAILED"] * 2,
        *["CLAIMED", "DEAD_LETTERED", "REQUEUED", "CLAIMED", "COMPLETED"],
    ]


async def test_firings_that_overlap_a_running_cycle_are_skipped(rig: Rig) -> None:
    running, highest, release = 0, 0, asyncio.Event()

    async def cycle(item_type: str) -> CycleReport:
        nonlocal running, highest
        running += 1
        highest = max(highest, running)
        await release.wait()
        running -= 1
        return report(rig)

    await rig.start_dispatching(cycle)
    handle = rig.client.get_schedule_handle(schedule_id(rig.item_type))

    async def skipped() -> int:
        return (await handle.describe()).info.num_actions_skipped_overlap

    await eventually(skipped, every=0.1)
    await eventually(lambda: running)
    assert highest == 1
    release.set()

    async def two_ended() -> bool:
        ended = [status for _, status in await rig.runs() if status is WorkflowExecutionStatus.COMPLETED]
        return len(ended) >= 2

    await eventually(two_ended, every=0.1)
    assert highest == 1


async def test_a_changed_interval_reaches_the_schedule_without_a_restart(rig: Rig) -> None:
    await rig.start_dispatching()
    await rig.store.configure(rig.domain.config.changed({"dispatchIntervalSecs": 7}))
    handle = rig.client.get_schedule_handle(schedule_id(rig.item_type))

    async def intervals() -> list[timedelta] | None:
        intervals = [interval.every for interval in (await handle.describe()).schedule.spec.intervals]
        return intervals if intervals != [timedelta(seconds=1)] else None

    assert await eventually(intervals, every=0.1) == [timedelta(seconds=7)]


async def test_keeping_a_schedule_leaves_an_operators_pause_alone(rig: Rig) -> None:
    await rig.schedules.keep(rig.item_type, 5)
    handle = rig.client.get_schedule_handle(schedule_id(rig.item_type))
    await handle.pause(note="payday")
    await asyncio.gather(*(rig.schedules.keep(rig.item_type, 9) for _ in range(3)))
    schedule = (await handle.describe()).schedule
    assert schedule.state.paused
    assert schedule.state.note == "payday"
    assert [interval.every for interval in schedule.spec.intervals] == [timedelta(seconds=9)]
    assert schedule.policy.overlap is ScheduleOverlapPolicy.SKIP
    assert schedule.policy.catchup_window == timedelta(seconds=10), "Temporal's default is a year (peer bug 25)"
    assert isinstance(schedule.action, ScheduleActionStartWorkflow)
    assert schedule.action.task_queue == rig.task_queue


async def test_a_refused_cycle_slows_down_more_and_more(rig: Rig) -> None:
    answers = [{"slow_down": True}, {"slow_down": True}, {}]

    async def cycle(item_type: str) -> CycleReport:
        return report(rig, **(answers.pop(0) if answers else {}))

    await rig.start_dispatching(cycle)

    async def three_ended() -> list[str] | None:
        ended = [name for name, status in await rig.runs() if status is WorkflowExecutionStatus.COMPLETED]
        return ended if len(ended) >= 3 else None

    ended = await eventually(three_ended, every=0.1)
    assert ended is not None
    results = [await rig.client.get_workflow_handle(name).result() for name in ended[:3]]
    assert [result["troubles"] for result in results] == [1, 2, 0]


async def test_a_broken_cycle_is_left_to_the_next_firing(rig: Rig) -> None:
    calls = 0

    async def cycle(item_type: str) -> CycleReport:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise StoreUnavailable("the database is away")
        return report(rig)

    await rig.start_dispatching(cycle)

    async def recovered() -> bool:
        statuses = [status for _, status in await rig.runs()]
        return statuses[:2] == [WorkflowExecutionStatus.FAILED, WorkflowExecutionStatus.COMPLETED]

    await eventually(recovered, every=0.1)


async def test_the_reconciler_finds_what_was_never_reported(rig: Rig) -> None:
    """The exec worker can't report; the dispatcher's stale recovery queries Temporal."""

    class Deaf(OutcomeReporter):
        async def completed(self, claim: Claim, completion: Completion | None = None) -> bool:
            return False

        async def failed(
            self, claim: Claim, error: str, pause: timedelta | None = None, traceback: str | None = None
        ) -> bool:
            return False

    rig.failures = {"bad": 99}
    await rig.store.configure(rig.domain.config.changed({"staleClaimThresholdMins": 0.01, "maxDispatchRetries": 2}))
    await rig.enqueue("good", "bad")
    await rig.start_executing(Deaf(rig.store))
    await rig.start_dispatching()
    await eventually(lambda: rig.stand(Status.COMPLETED, "good"))
    await eventually(lambda: rig.stand(Status.DEAD_LETTER, "bad"))
    assert (rig.ran.count("good"), rig.ran.count("bad")) == (1, 2)
    assert (await rig.item("bad")).last_error == "RuntimeError: bad failed"


@pytest.mark.parametrize(("interval", "seconds"), [(0.01, 1), (1, 1), (2.4, 2), (86_400, 86_400)])
def test_a_schedule_has_whole_seconds(interval: float, seconds: int) -> None:
    assert whole_seconds(interval) == seconds
