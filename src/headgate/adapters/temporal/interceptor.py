"""What the exec worker does around business code that knows nothing of dispatch.

Around the workflow: ask whether it may begin, and report how it ended. Around each activity that calls the
downstream: wait until the item type's admission plan lets it pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.converter import PayloadConverter
from temporalio.exceptions import ActivityError, ApplicationError, FailureError
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
    ExecuteWorkflowInput,
    Interceptor,
    StartActivityInput,
    StartLocalActivityInput,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)

from headgate.adapters.temporal.failures import reason
from headgate.adapters.temporal.heartbeat import beat
from headgate.adapters.temporal.mark import KEY, Mark
from headgate.adapters.temporal.outcomes import CALL_TIMEOUT, MAY_BEGIN, REPORT, RETRY, RETRY_IN_WORKER
from headgate.dispatch.ports import Guard, Unguarded

NOT_BEGUN = "NotBegun"
NOT_ADMITTED = "NotAdmitted"


class DispatchInterceptor(Interceptor):
    """For workers whose workflows the dispatcher starts. Workflows started otherwise pass untouched.

    `guarded` names, per item type, the activities that call the downstream; a type that is not in it has all its
    activities guarded.
    """

    def __init__(self, guard: Guard | None = None, guarded: Mapping[str, Collection[str]] | None = None) -> None:
        self._guard = guard or Unguarded()
        self._guarded = dict(guarded or {})

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _GuardedActivities(next, self._guard, self._guarded)

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:
        return _ReportedWorkflow


class _ReportedWorkflow(WorkflowInboundInterceptor):
    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        super().init(_MarkedActivities(outbound))

    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
        mark = _carried_mark()
        if mark is None:
            return await super().execute_workflow(input)
        try:
            begins = workflow.info().continued_run_id is not None or await _may_begin(mark)
            result = await super().execute_workflow(input) if begins else None
        except (FailureError, asyncio.CancelledError) as error:
            await _report(mark, reason(error))
            raise
        except Exception as error:
            # Temporal would retry the workflow task for ever; the queue has its own retries and dead letters.
            await _report(mark, reason(error))
            raise ApplicationError(str(error), type=type(error).__name__) from error
        if not begins:
            # A failure, because Temporal lets only failed executions be started again.
            raise ApplicationError("not begun: its claim is lost, or was given back", type=NOT_BEGUN)
        await _report(mark, None)
        return result


async def _may_begin(mark: Mark) -> bool:
    answer = await workflow.execute_local_activity(
        MAY_BEGIN,
        mark.to_json(),
        result_type=bool,
        start_to_close_timeout=CALL_TIMEOUT,
        retry_policy=RETRY,
        local_retry_threshold=RETRY_IN_WORKER,
    )
    return bool(answer)


async def _report(mark: Mark, failure: str | None) -> None:
    try:
        await workflow.execute_local_activity(
            REPORT,
            args=[mark.to_json(), failure],
            start_to_close_timeout=CALL_TIMEOUT,
            retry_policy=RETRY,
            local_retry_threshold=RETRY_IN_WORKER,
        )
    except ActivityError as error:
        workflow.logger.warning("the end of %s could not be told: %s", mark.claim.execution_id, reason(error))


def _carried_mark() -> Mark | None:
    return Mark.from_json(workflow.memo_value(KEY, None))


class _MarkedActivities(WorkflowOutboundInterceptor):
    """Hands the mark on, so that an activity's worker knows what to ask for."""

    def start_activity(self, input: StartActivityInput) -> workflow.ActivityHandle[Any]:
        input.headers = _marked(input.headers)
        return super().start_activity(input)

    def start_local_activity(self, input: StartLocalActivityInput) -> workflow.ActivityHandle[Any]:
        if input.activity not in (MAY_BEGIN, REPORT):
            input.headers = _marked(input.headers)
        return super().start_local_activity(input)


def _marked(headers: Mapping[str, Any]) -> Mapping[str, Any]:
    mark = _carried_mark()
    if mark is None or mark.plan is None:
        return headers
    return {**headers, KEY: workflow.payload_converter().to_payload(mark.to_json())}


class _GuardedActivities(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, guard: Guard, guarded: Mapping[str, Collection[str]]) -> None:
        super().__init__(next)
        self._guard = guard
        self._guarded = guarded

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        if KEY in input.headers:
            mark = Mark.from_json(PayloadConverter.default.from_payload(input.headers[KEY]))
            if mark is not None and mark.plan is not None:
                names = self._guarded.get(mark.claim.item_type)
                if names is None or activity.info().activity_type in names:
                    await self._admit(mark.plan, mark.claim.item_type)
        return await super().execute_activity(input)

    async def _admit(self, plan: str, key: str) -> None:
        """Waits for the plan, and gives the attempt back while there is time left to say so."""
        info = activity.info()
        limit = None if info.start_to_close_timeout is None else info.start_to_close_timeout.total_seconds() / 2
        beating = None
        if info.heartbeat_timeout and not info.is_local:
            beating = asyncio.create_task(beat(info.heartbeat_timeout))
        try:
            async with asyncio.timeout(limit):
                await self._guard.admit(plan, key)
        except TimeoutError:
            raise ApplicationError(
                f"plan {plan!r} did not admit it within {limit} s", type=NOT_ADMITTED, next_retry_delay=timedelta(0)
            ) from None
        finally:
            if beating is not None:
                beating.cancel()
