"""The exec worker's interceptor, for business code that knows nothing of dispatch.

Around the workflow it checks whether the execution may begin, and reports the outcome. Before each activity runs
`activity_guard`, with `outbound_calls` for activities that are not admitted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, FailureError
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteWorkflowInput,
    Interceptor,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)

from paceline.dispatch.engines.temporal.activity_guard import ActivityGuard
from paceline.dispatch.engines.temporal.claim_memo import ClaimMemo
from paceline.dispatch.engines.temporal.completions import completion_to_json
from paceline.dispatch.engines.temporal.failures import ending, reason
from paceline.dispatch.engines.temporal.item_places import ItemPlaces
from paceline.dispatch.engines.temporal.outbound_calls import OutboundCalls, current_memo
from paceline.dispatch.engines.temporal.outcome_activities import (
    CALL_TIMEOUT,
    END,
    MAY_BEGIN,
    RELEASE,
    REPORT,
    RETRY,
    RETRY_IN_WORKER,
)
from paceline.dispatch.model import Completion
from paceline.dispatch.ports import OutcomeSink
from paceline.dispatch.start_limits import StartLimits

NOT_BEGUN = "NotBegun"


class DispatchInterceptor(Interceptor):
    """For workers whose workflows the dispatcher starts. Workflows started otherwise pass untouched.

    `guarded` names, per item type, the activities that call the downstream; a type that is not in it has all its
    activities guarded. `sink` knows the kill switch and the settings; without it, work waits for neither switch nor
    limits.
    """

    def __init__(
        self,
        limits: StartLimits | None = None,
        guarded: Mapping[str, Collection[str]] | None = None,
        sink: OutcomeSink | None = None,
        places: ItemPlaces | None = None,
    ) -> None:
        self._limits = limits
        self._guarded = dict(guarded or {})
        self._sink = sink
        self._places = places

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return ActivityGuard(next, self._limits, self._guarded, self._sink, self._places)

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:
        return _ReportingWorkflow


class _ReportingWorkflow(WorkflowInboundInterceptor):
    _calls: OutboundCalls

    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        self._calls = OutboundCalls(outbound)
        super().init(self._calls)

    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
        memo = current_memo()
        if memo is None:
            return await super().execute_workflow(input)
        began = workflow.now()
        try:
            begins = workflow.info().continued_run_id is not None or await _may_begin(memo)
            began = workflow.now()
            result = await self._run_business(input) if begins else None
        except (FailureError, asyncio.CancelledError) as error:
            await _report_failure(memo, error, began)
            raise
        except Exception as error:
            # Temporal would retry the workflow task for ever; the queue has its own retries and dead letters.
            await _report_failure(memo, error, began)
            raise ApplicationError(str(error), type=type(error).__name__) from error
        deferral = self._calls.deferral
        if deferral is not None:
            await _notify_queue(RELEASE, memo, *deferral)
        if not begins or deferral is not None:
            # A failure, because Temporal lets only failed executions be started again.
            raise ApplicationError("not begun: its claim is lost, or was given back", type=NOT_BEGUN)
        if isinstance(result, Completion):
            result = completion_to_json(result)
            await _notify_queue(REPORT, memo, result, _seconds_since(began))
        else:
            await _notify_queue(REPORT, memo, None, _seconds_since(began))
        return result

    async def _run_business(self, input: ExecuteWorkflowInput) -> Any:
        """The result of the business workflow; it is abandoned if its first call was deferred."""
        work = asyncio.create_task(super().execute_workflow(input))
        while True:
            try:
                await workflow.wait_condition(lambda: work.done() or self._calls.deferral is not None)
            except asyncio.CancelledError:
                work.cancel()
                continue
            return work.result() if self._calls.deferral is None else None


async def _may_begin(memo: ClaimMemo) -> bool:
    answer = await workflow.execute_local_activity(
        MAY_BEGIN,
        memo.to_json(),
        result_type=bool,
        start_to_close_timeout=CALL_TIMEOUT,
        retry_policy=RETRY,
        local_retry_threshold=RETRY_IN_WORKER,
    )
    return bool(answer)


def _seconds_since(began: datetime) -> float:
    """By the workflow's clock, which is deterministic on replay."""
    return (workflow.now() - began).total_seconds()


async def _report_failure(memo: ClaimMemo, error: BaseException, began: datetime) -> None:
    await _notify_queue(END, memo, ending(error)._asdict(), _seconds_since(began))


async def _notify_queue(what: str, memo: ClaimMemo, *more: Any) -> None:
    try:
        await workflow.execute_local_activity(
            what,
            args=[memo.to_json(), *more],
            start_to_close_timeout=CALL_TIMEOUT,
            retry_policy=RETRY,
            local_retry_threshold=RETRY_IN_WORKER,
        )
    except ActivityError as error:
        workflow.logger.warning("the outcome of %s could not be reported: %s", memo.claim.execution_id, reason(error))
