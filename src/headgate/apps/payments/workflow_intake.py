"""Intake through Temporal: each chunk, or single payment, is a `PaymentInitWorkflow` whose result is waited for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from hashlib import blake2b

from temporalio.client import Client, WorkflowFailureError
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError

from headgate.apps.payments.intake import Accepted, Outcome
from headgate.apps.payments.model import Payment
from headgate.apps.payments.outcomes import document_of, outcome_of_json
from headgate.apps.payments.workflows import PaymentInitWorkflow
from headgate.errors import HeadgateError, StoreUnavailable
from headgate.tracing import Tracer

PATIENCE = 60.0
TRACE = "traceparent"
"""The memo by which workers know which trace a workflow is part of."""


class WorkflowIntake:
    """Accepts payments by way of the init worker. Its id names a workflow's content, so the same payments sent twice
    at once are one workflow."""

    def __init__(
        self, client: Client, task_queue: str, *, patience: float = PATIENCE, tracer: Tracer | None = None
    ) -> None:
        self._client = client
        self._task_queue = task_queue
        self._patience = patience
        self._tracer = tracer

    async def submit(self, payment: Payment) -> Accepted:
        """Accepts one payment, or raises why not."""
        (outcome,) = await self.initiate([payment])
        if isinstance(outcome, HeadgateError):
            raise outcome
        return outcome

    async def initiate(self, payments: Sequence[Payment]) -> list[Outcome]:
        """What came of each payment, in order. `StoreUnavailable` if nobody answers in time: they may yet be accepted,
        and can be sent again."""
        documents = [document_of(payment) for payment in payments]
        digest = blake2b(json.dumps(documents).encode(), digest_size=12).hexdigest()
        origin = None if self._tracer is None else self._tracer.origin()
        try:
            async with asyncio.timeout(self._patience):
                told = await self._client.execute_workflow(
                    PaymentInitWorkflow.run,
                    documents,
                    id=f"init-payment-{payments[0].payment_id}-{digest}",
                    task_queue=self._task_queue,
                    id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                    memo=None if origin is None else {TRACE: origin.traceparent},
                )
        except TimeoutError:
            raise StoreUnavailable(
                f"no worker answered on {self._task_queue} within {self._patience:g} s; run headgate worker init"
            ) from None
        except RPCError as error:
            raise StoreUnavailable(f"Temporal did not answer: {error.message}") from error
        except WorkflowFailureError as error:
            raise StoreUnavailable(f"the init workflow failed: {error.cause}") from error
        return [outcome_of_json(each) for each in told]
