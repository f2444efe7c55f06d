"""Payments on Temporal: both phases as workflows, their activities, and intake by way of the init worker.

The workflows know nothing of dispatch; the activities run the same code as in-process. This module is loaded into the
workflow sandbox, so it imports no store and no driver.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from hashlib import blake2b
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client, WorkflowFailureError
from temporalio.common import RetryPolicy, WorkflowIDConflictPolicy
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from paceline import tracing
from paceline.dispatch.engines.temporal.failures import Ending
from paceline.dispatch.engines.temporal.heartbeat import send_heartbeats
from paceline.dispatch.model import GiveUp
from paceline.dispatch.registry import Domain
from paceline.errors import InvalidInput, PacelineError, StoreUnavailable
from paceline_payments.execution import PaymentExecution
from paceline_payments.intake import PaymentIntake
from paceline_payments.model import AcceptedPayment, IntakeResult, Payment
from paceline_payments.notifier import notices_for
from paceline_payments.parsing import payment_of_json
from paceline_payments.ports import Notice
from paceline_payments.serialization import payment_to_json, read_context, result_from_json, result_to_json
from paceline_payments.submission import current_submission, submitted

INITIATE = "initiate_payments"
EXECUTE = "execute_payment"
NOTIFY = "send_notifications"
TRACE_MEMO = "traceparent"
"""The memo with a workflow's trace."""

INTAKE_TIMEOUT = 60.0
"""Seconds for which `WorkflowIntake` waits for the init worker."""
INITIATE_TIMEOUT = timedelta(minutes=2)
EXECUTE_TIMEOUT = timedelta(minutes=10)
"""For all attempts of the client, with its waits at the rate gate."""
LONGEST_WAIT = EXECUTE_TIMEOUT.total_seconds() / 3
"""Seconds a call waits for limit and breaker before its item goes back to the queue."""
NOTIFY_TIMEOUT = timedelta(seconds=30)
HEARTBEAT_TIMEOUT = timedelta(seconds=10)
"""An activity whose worker died is detected after this, and retried elsewhere."""
INITIATE_RETRY = RetryPolicy(initial_interval=timedelta(milliseconds=200), maximum_interval=timedelta(seconds=10))
EXECUTE_RETRY = RetryPolicy(initial_interval=timedelta(milliseconds=500), maximum_attempts=5)
"""After these the queue retries, with a longer backoff, and finally dead-letters."""
NOTIFY_RETRY = RetryPolicy(initial_interval=timedelta(milliseconds=200), maximum_attempts=5)


@workflow.defn
class PaymentInitWorkflow:
    """Phase A: a chunk of a feed, or a single payment, is checked, slotted, stored and queued."""

    @workflow.run
    async def run(
        self,
        payments: list[dict[str, Any]],
        feed_id: str | None = None,
        by: str | None = None,
        lines: list[int] | None = None,
    ) -> list[dict[str, Any]]:
        results: list[dict[str, Any]] = await workflow.execute_activity(
            INITIATE,
            args=[payments, workflow.info().workflow_id, feed_id, by, lines],
            result_type=list[dict[str, Any]],
            start_to_close_timeout=INITIATE_TIMEOUT,
            retry_policy=INITIATE_RETRY,
        )
        return results


@workflow.defn
class PaymentExecWorkflow:
    """Phase B: execute → post-process → notify, on the context alone."""

    @workflow.run
    async def run(self, payment_id: str, context_json: str) -> None:
        context = json.loads(context_json)
        executed = await workflow.execute_activity(
            EXECUTE,
            context,
            result_type=bool,
            start_to_close_timeout=EXECUTE_TIMEOUT,
            heartbeat_timeout=HEARTBEAT_TIMEOUT,
            retry_policy=EXECUTE_RETRY,
        )
        if executed:
            await workflow.execute_local_activity(
                NOTIFY,
                [notice._asdict() for notice in notices_for(*read_context(context))],
                start_to_close_timeout=NOTIFY_TIMEOUT,
                retry_policy=NOTIFY_RETRY,
            )


class InitActivities:
    """The activities of `PaymentInitWorkflow`. Idempotent."""

    def __init__(self, intake: PaymentIntake) -> None:
        self._intake = intake

    @property
    def all(self) -> tuple[Callable[..., Any], ...]:
        return (self.initiate,)

    @activity.defn(name=INITIATE)
    async def initiate(
        self,
        documents: list[dict[str, Any]],
        workflow_id: str,
        feed_id: str | None = None,
        by: str | None = None,
        lines: list[int] | None = None,
    ) -> list[dict[str, Any]]:
        results: dict[int, IntakeResult] = {}
        payments = {}
        for index, document in enumerate(documents):
            try:
                payments[index] = payment_of_json(document)
            except InvalidInput as error:
                results[index] = error
        own_lines = None if lines is None else [lines[index] for index in payments]
        with submitted(by, own_lines):
            accepted = await self._intake.initiate(
                list(payments.values()), init_workflow_id=workflow_id, feed_id=feed_id
            )
        results |= zip(payments, accepted, strict=True)
        return [result_to_json(results[index]) for index in range(len(documents))]


class ExecActivities:
    """The activities of `PaymentExecWorkflow`."""

    def __init__(self, execution: PaymentExecution) -> None:
        self._execution = execution

    @property
    def all(self) -> tuple[Callable[..., Any], ...]:
        return self.execute, self.notify

    @activity.defn(name=EXECUTE)
    async def execute(self, context: dict[str, Any]) -> bool:
        try:
            payment, _ = read_context(context)
        except InvalidInput as error:
            raise ApplicationError(str(error), type="InvalidInput", non_retryable=True) from error
        heartbeats = asyncio.create_task(send_heartbeats(HEARTBEAT_TIMEOUT))
        try:
            return await self._execution.execute_payment(payment, wait=LONGEST_WAIT)
        except GiveUp as error:
            raise Ending.of(error).as_error(GiveUp.__name__) from error
        finally:
            heartbeats.cancel()

    @activity.defn(name=NOTIFY)
    async def notify(self, notices: list[dict[str, str]]) -> None:
        await self._execution.notify([Notice(**notice) for notice in notices])


class WorkflowIntake:
    """Accepts payments through the init worker: each call is a `PaymentInitWorkflow`, whose result it waits for.

    The workflow's id is made from the payments, so the same payments sent twice concurrently are one workflow.
    """

    def __init__(self, client: Client, task_queue: str, *, timeout: float = INTAKE_TIMEOUT) -> None:
        self._client = client
        self._task_queue = task_queue
        self._timeout = timeout

    async def submit(self, payment: Payment) -> AcceptedPayment:
        """Accepts one payment, or raises the reason why not."""
        (outcome,) = await self.initiate([payment])
        if isinstance(outcome, PacelineError):
            raise outcome
        return outcome

    async def initiate(self, payments: Sequence[Payment], *, feed_id: str | None = None) -> list[IntakeResult]:
        """One result per payment, in order.

        Raises:
            StoreUnavailable: Temporal or the init worker did not answer in time. The payments may yet be accepted;
                retrying is safe.
        """
        documents = [payment_to_json(payment) for payment in payments]
        digest = blake2b(json.dumps(documents).encode(), digest_size=12).hexdigest()
        origin, submission = tracing.origin(), current_submission()
        lines = None if submission.lines is None else list(submission.lines)
        try:
            async with asyncio.timeout(self._timeout):
                results = await self._client.execute_workflow(
                    PaymentInitWorkflow.run,
                    args=[documents, feed_id, submission.by, lines],
                    id=f"init-payment-{payments[0].payment_id}-{digest}",
                    task_queue=self._task_queue,
                    id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                    memo=None if origin is None else {TRACE_MEMO: origin.traceparent},
                )
        except TimeoutError:
            raise StoreUnavailable(
                f"no worker answered on {self._task_queue} within {self._timeout:g} s; run paceline worker init"
            ) from None
        except RPCError as error:
            raise StoreUnavailable(f"Temporal did not answer: {error.message}") from error
        except WorkflowFailureError as error:
            raise StoreUnavailable(f"the init workflow failed: {error.cause}") from error
        return [result_from_json(result) for result in results]


def on_temporal(domain: Domain, execution: PaymentExecution, intake: PaymentIntake) -> Domain:
    """The payments domain with the workflows and activities of Temporal's init and exec workers."""
    return replace(
        domain,
        workflow=PaymentExecWorkflow,
        activities=ExecActivities(execution).all,
        init_workflows=(PaymentInitWorkflow,),
        init_activities=InitActivities(intake).all,
    )
