"""The outbound calls of an execution, seen from its workflow.

Each activity carries the execution's memo, so that its worker knows the plan and the kill switch to check. An activity
that the guard did not admit in time is rescheduled without limit: waiting uses none of its attempts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar, cast

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.worker import (
    SignalChildWorkflowInput,
    SignalExternalWorkflowInput,
    StartActivityInput,
    StartChildWorkflowInput,
    StartLocalActivityInput,
    StartNexusOperationInput,
    WorkflowOutboundInterceptor,
)

from paceline.dispatch.engines.temporal.activity_guard import NOT_ADMITTED, POSTPONED, SWITCHED_OFF
from paceline.dispatch.engines.temporal.claim_memo import KEY, Call, ClaimMemo
from paceline.dispatch.engines.temporal.outcome_activities import OWN

REFUSALS = (NOT_ADMITTED, SWITCHED_OFF, POSTPONED)
SHORTEST_REST = 1.0
"""Seconds until a later activity that was postponed is scheduled again."""

Start = TypeVar("Start", StartActivityInput, StartLocalActivityInput)


class Deferral(NamedTuple):
    """Why an execution goes back, and for how many seconds it pauses."""

    reason: str
    pause: float | None


class OutboundCalls(WorkflowOutboundInterceptor):
    """`deferral` is set if the execution's very first call met the kill switch or was postponed: then the whole
    execution goes back, and that call never returns."""

    def __init__(self, next: WorkflowOutboundInterceptor) -> None:
        super().__init__(next)
        self.deferral: Deferral | None = None
        self._started = 0
        """How many calls it has started."""

    def start_activity(self, input: StartActivityInput) -> workflow.ActivityHandle[Any]:
        return self._call(input, super().start_activity)

    def start_local_activity(self, input: StartLocalActivityInput) -> workflow.ActivityHandle[Any]:
        if input.activity in OWN:
            return super().start_local_activity(input)
        return self._call(input, super().start_local_activity)

    async def start_child_workflow(self, input: StartChildWorkflowInput) -> workflow.ChildWorkflowHandle[Any, Any]:
        self._started += 1
        return await super().start_child_workflow(input)

    async def start_nexus_operation(
        self, input: StartNexusOperationInput[Any, Any]
    ) -> workflow.NexusOperationHandle[Any]:
        self._started += 1
        return await super().start_nexus_operation(input)

    async def signal_child_workflow(self, input: SignalChildWorkflowInput) -> None:
        self._started += 1
        await super().signal_child_workflow(input)

    async def signal_external_workflow(self, input: SignalExternalWorkflowInput) -> None:
        self._started += 1
        await super().signal_external_workflow(input)

    def _call(
        self, input: Start, start: Callable[[Start], workflow.ActivityHandle[Any]]
    ) -> workflow.ActivityHandle[Any]:
        memo = current_memo()
        if memo is None:
            return start(input)
        self._started += 1
        first = self._started == 1 and workflow.info().continued_run_id is None
        handle = start(_with_memo(input, Call(memo, first)))
        task = asyncio.create_task(self._until_admitted(handle, _with_memo(input, Call(memo, False)), start))
        # Cancelled before its first step, the task would leave the activity running.
        task.add_done_callback(lambda ended: handle.cancel() if ended.cancelled() and not handle.done() else None)
        return cast("workflow.ActivityHandle[Any]", task)

    async def _until_admitted(
        self,
        handle: workflow.ActivityHandle[Any],
        again: Start,
        start: Callable[[Start], workflow.ActivityHandle[Any]],
    ) -> Any:
        while True:
            try:
                return await handle
            except ActivityError as error:
                refusal = _refusal(error)
                if refusal is None or _is_cancelled():
                    raise
            pause = refusal.details[1] if len(refusal.details) > 1 else None
            if refusal.type in (SWITCHED_OFF, POSTPONED) and self._started == 1:
                self.deferral = Deferral(refusal.message, pause)
                await asyncio.get_running_loop().create_future()
            if refusal.type == POSTPONED:
                await asyncio.sleep(SHORTEST_REST if pause is None else pause)
            again = _with_fewer_attempts(again, refusal.details[0])
            handle = start(again)


def current_memo() -> ClaimMemo | None:
    """The current workflow's memo; None if no dispatcher started it."""
    return ClaimMemo.from_json(workflow.memo_value(KEY, None))


def _with_memo(input: Start, call: Call) -> Start:
    payload = workflow.payload_converter().to_payload(call.to_json())
    return replace(input, headers={**input.headers, KEY: payload})


def _refusal(error: ActivityError) -> ApplicationError | None:
    """The guard's refusal; None if another error failed the activity."""
    cause = error.cause
    if isinstance(cause, ApplicationError) and cause.non_retryable and cause.type in REFUSALS:
        return cause
    return None


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _with_fewer_attempts(input: Start, attempts: int) -> Start:
    """The same activity, with the attempts that were made subtracted."""
    policy = input.retry_policy
    if policy is None or not policy.maximum_attempts or not attempts:
        return input
    return replace(input, retry_policy=replace(policy, maximum_attempts=policy.maximum_attempts - attempts))
