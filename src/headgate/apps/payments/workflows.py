"""Both phases on Temporal. The workflows know nothing of dispatch; the activities are the same code as in-process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError

from headgate.apps.payments.context import read_context
from headgate.apps.payments.execution import PaymentSteps
from headgate.apps.payments.intake import Outcome, PaymentIntake
from headgate.apps.payments.notices import notices_of
from headgate.apps.payments.outcomes import outcome_json
from headgate.apps.payments.parsing import payment_of_json
from headgate.apps.payments.ports import Notice
from headgate.errors import InvalidInput

INITIATE = "initiate_payments"
EXECUTE = "execute_payment"
NOTIFY = "send_notifications"

INITIATE_TIMEOUT = timedelta(minutes=2)
EXECUTE_TIMEOUT = timedelta(minutes=10)
"""With all attempts of the client, and its waits at the gate."""
NOTIFY_TIMEOUT = timedelta(seconds=30)
LONGEST_SILENCE = timedelta(seconds=5)
"""An activity whose worker died is noticed after this, and run again elsewhere."""
INITIATE_RETRY = RetryPolicy(initial_interval=timedelta(milliseconds=200), maximum_interval=timedelta(seconds=10))
EXECUTE_RETRY = RetryPolicy(initial_interval=timedelta(milliseconds=500), maximum_attempts=5)
"""Beyond these the queue retries, with longer pauses, and in the end dead-letters."""
NOTIFY_RETRY = RetryPolicy(initial_interval=timedelta(milliseconds=200), maximum_attempts=5)


@workflow.defn
class PaymentInitWorkflow:
    """Phase A: a chunk of a feed, or a single payment, is checked, slotted, kept and queued; then it is over."""

    @workflow.run
    async def run(self, payments: list[dict[str, Any]]) -> list[dict[str, Any]]:
        outcomes: list[dict[str, Any]] = await workflow.execute_activity(
            INITIATE,
            args=[payments, workflow.info().workflow_id],
            result_type=list[dict[str, Any]],
            start_to_close_timeout=INITIATE_TIMEOUT,
            retry_policy=INITIATE_RETRY,
        )
        return outcomes


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
            heartbeat_timeout=LONGEST_SILENCE,
            retry_policy=EXECUTE_RETRY,
        )
        if executed:
            await workflow.execute_local_activity(
                NOTIFY,
                [notice._asdict() for notice in notices_of(*read_context(context))],
                start_to_close_timeout=NOTIFY_TIMEOUT,
                retry_policy=NOTIFY_RETRY,
            )


class InitActivities:
    """What `PaymentInitWorkflow` calls. Repeated, it finds what it did before."""

    def __init__(self, intake: PaymentIntake) -> None:
        self._intake = intake

    @property
    def all(self) -> tuple[Callable[..., Any], ...]:
        return (self.initiate,)

    @activity.defn(name=INITIATE)
    async def initiate(self, documents: list[dict[str, Any]], workflow_id: str) -> list[dict[str, Any]]:
        outcomes: dict[int, Outcome] = {}
        payments = {}
        for index, document in enumerate(documents):
            try:
                payments[index] = payment_of_json(document)
            except InvalidInput as error:
                outcomes[index] = error
        made = await self._intake.initiate(list(payments.values()), init_workflow_id=workflow_id)
        outcomes |= zip(payments, made, strict=True)
        return [outcome_json(outcomes[index]) for index in range(len(documents))]


class ExecActivities:
    """What `PaymentExecWorkflow` calls."""

    def __init__(self, steps: PaymentSteps) -> None:
        self._steps = steps

    @property
    def all(self) -> tuple[Callable[..., Any], ...]:
        return self.execute, self.notify

    @activity.defn(name=EXECUTE)
    async def execute(self, context: dict[str, Any]) -> bool:
        try:
            payment, _ = read_context(context)
        except InvalidInput as error:
            raise ApplicationError(str(error), type="InvalidInput", non_retryable=True) from error
        beating = asyncio.create_task(_beat())
        try:
            return await self._steps.execute_payment(payment)
        finally:
            beating.cancel()

    @activity.defn(name=NOTIFY)
    async def notify(self, notices: list[dict[str, str]]) -> None:
        await self._steps.notify([Notice(**notice) for notice in notices])


async def _beat() -> None:
    """Shows that the activity lives while it waits at the gate, or for the downstream."""
    while True:
        activity.heartbeat()
        await asyncio.sleep(LONGEST_SILENCE.total_seconds() / 4)
