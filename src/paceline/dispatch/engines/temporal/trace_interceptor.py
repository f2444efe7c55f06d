"""Traces across Temporal: from a workflow's caller, through the workflow, into its activities.

A traced workflow carries its traceparent as a memo; without one, as in the dispatcher itself, nothing is traced.
Workflow code may be replayed, also on another worker, so no span is recorded while it runs. Its span id is derived from
the run id, so that every worker computes the same, and activities get it as their parent. The worker that sees the run
end records the span, with its true start and end. (`temporalio.contrib.opentelemetry` records spans of no length
instead, traces every cycle of the dispatcher, and copies exception messages, which may contain names and accounts.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from temporalio import activity, workflow
from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadConverter
from temporalio.exceptions import FailureError
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

from paceline import tracing
from paceline.dispatch.engines.temporal.outcome_activities import OWN
from paceline.tracing import Attributes, accepted, derived

MEMO = HEADER = "traceparent"
_ENDED = "paceline_workflow_ended"
_TAKES_IDS = "paceline_takes_given_ids"


class TraceInterceptor(Interceptor):
    """For workers of traced workflows. It is the first interceptor, so that its spans include the others'."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _TracedActivities(next)

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:
        input.unsafe_extern_functions[_ENDED] = self._ended
        input.unsafe_extern_functions[_TAKES_IDS] = tracing.takes_given_ids
        return _TracedWorkflow

    def _ended(
        self, name: str, workflow_id: str, parent: str, own: str, began: datetime, outcome: str, failed: str | None
    ) -> None:
        """Called from the workflow's sandbox."""
        attributes = {"paceline.workflow_id": workflow_id, "paceline.outcome": outcome}
        began_ns = int(began.timestamp() * 1_000_000) * 1000
        tracing.begin(name, attributes, parent=parent, at_ns=began_ns, own=own).end(failed=failed)


class _TracedWorkflow(WorkflowInboundInterceptor):
    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        super().init(_TracedCalls(outbound))

    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
        parent = _parent()
        if parent is None:
            return await super().execute_workflow(input)
        try:
            result = await super().execute_workflow(input)
        except workflow.ContinueAsNewError:
            _report_end(parent, "continued", None)
            raise
        except (FailureError, asyncio.CancelledError) as error:
            # Other exceptions end no workflow: its workflow task is retried.
            _report_end(parent, "failed", type(error).__name__)
            raise
        _report_end(parent, "completed", None)
        return result


def _parent() -> str | None:
    traceparent = workflow.memo_value(MEMO, None)
    return accepted(traceparent) if isinstance(traceparent, str) else None


def _own(parent: str) -> str:
    """The traceparent of the workflow's span; of its parent, if the SDK generates all ids itself."""
    return derived(parent, workflow.info().run_id) if workflow.extern_functions()[_TAKES_IDS]() else parent


def _report_end(parent: str, outcome: str, failed: str | None) -> None:
    if not workflow.unsafe.is_replaying():
        info = workflow.info()
        ended = workflow.extern_functions()[_ENDED]
        ended(
            f"workflow {info.workflow_type}", info.workflow_id, parent, _own(parent), info.start_time, outcome, failed
        )


class _TracedCalls(WorkflowOutboundInterceptor):
    """Passes the trace to activities, except those that report to the queue."""

    def start_activity(self, input: StartActivityInput) -> workflow.ActivityHandle[Any]:
        input.headers = _with_parent(input.headers)
        return super().start_activity(input)

    def start_local_activity(self, input: StartLocalActivityInput) -> workflow.ActivityHandle[Any]:
        if input.activity not in OWN:
            input.headers = _with_parent(input.headers)
        return super().start_local_activity(input)


def _with_parent(headers: Mapping[str, Payload]) -> Mapping[str, Payload]:
    parent = _parent()
    if parent is None:
        return headers
    return {**headers, HEADER: workflow.payload_converter().to_payload(_own(parent))}


class _TracedActivities(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        if HEADER not in input.headers:
            return await super().execute_activity(input)
        traceparent = PayloadConverter.default.from_payload(input.headers[HEADER])
        parent = accepted(traceparent) if isinstance(traceparent, str) else None
        if parent is None:
            return await super().execute_activity(input)
        info = activity.info()
        attributes: Attributes = {"paceline.workflow_id": info.workflow_id or "", "paceline.attempt": info.attempt}
        span = tracing.begin(f"activity {info.activity_type}", attributes, parent=parent)
        try:
            with tracing.inside(span):
                result = await super().execute_activity(input)
        except BaseException as error:
            span.end({"paceline.outcome": "failed"}, failed=type(error).__name__)
            raise
        span.end({"paceline.outcome": "completed"})
        return result
