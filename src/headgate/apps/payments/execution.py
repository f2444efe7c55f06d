"""Phase B: execute → post-process → notify. Pure business logic on the context; it knows nothing of dispatch.

Each step may run again after a crash and does nothing twice: the downstream is asked under the payment's id, and a
change of status counts once.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from headgate.apps.payments.context import read_context
from headgate.apps.payments.model import Payment, PaymentRecord, PaymentStatus, Step
from headgate.apps.payments.notices import notices_of
from headgate.apps.payments.ports import Downstream, Notice, Notifier, PaymentRefused, PaymentStore
from headgate.batching import Batcher
from headgate.errors import NotFound

log = logging.getLogger(__name__)

LONGEST_REASON = 2000


class PaymentSteps:
    """The steps, one method each, and `execute`, which takes them all."""

    def __init__(self, store: PaymentStore, downstream: Downstream, notifier: Notifier) -> None:
        self._store = store
        self._downstream = downstream
        self._notifier = notifier
        self._reads: Batcher[str, PaymentRecord] = Batcher(self._find)
        self._writes: Batcher[Step, bool] = Batcher(self._advance, max_batch=200)

    async def execute(self, item_id: str, context: Any) -> None:
        """All of phase B, for an engine that runs plain functions."""
        payment, terms = read_context(context)
        if await self.execute_payment(payment):
            await self.notify(notices_of(payment, terms))

    async def execute_payment(self, payment: Payment) -> bool:
        """SCHEDULED → ACCEPTED, by way of the downstream; or → FAILED, if that refuses. True if there is more to do.
        Raises `DownstreamBusy` if it is worth trying again later."""
        record = await self._reads.submit(payment.payment_id)
        if record.status is not PaymentStatus.SCHEDULED:
            return record.status is PaymentStatus.ACCEPTED
        try:
            receipt = await self._downstream.pay(payment)
        except PaymentRefused as refusal:
            reason = str(refusal)[:LONGEST_REASON]
            await self._step(payment.payment_id, PaymentStatus.SCHEDULED, PaymentStatus.FAILED, reason)
            told = {"item_id": payment.payment_id}
            log.warning("payment %s was refused: %s", payment.payment_id, reason, extra=told)
            return False
        detail = f"executed downstream as {receipt.reference}" if receipt.reference else "executed downstream"
        await self._step(payment.payment_id, PaymentStatus.SCHEDULED, PaymentStatus.ACCEPTED, detail, receipt.reference)
        return True

    async def notify(self, notices: Sequence[Notice]) -> None:
        """ACCEPTED → PROCESSING, once the parties are told."""
        await self._notifier.tell(notices)
        payment_id = notices[0].payment_id
        await self._step(payment_id, PaymentStatus.ACCEPTED, PaymentStatus.PROCESSING, "payer and payee notified")

    async def close(self) -> None:
        """Returns when all steps taken are written."""
        await self._reads.close()
        await self._writes.close()

    async def _step(
        self,
        payment_id: str,
        before: PaymentStatus,
        after: PaymentStatus,
        detail: str,
        reference: str | None = None,
    ) -> None:
        if not await self._writes.submit(Step.of(payment_id, before, after, detail, reference)):
            told = {"item_id": payment_id}
            log.info("payment %s was no longer %s; another execution was first", payment_id, before, extra=told)

    async def _find(self, payment_ids: Sequence[str]) -> list[PaymentRecord | BaseException]:
        found = await self._store.find(list(dict.fromkeys(payment_ids)))
        return [found.get(payment_id) or NotFound("payment", payment_id) for payment_id in payment_ids]

    async def _advance(self, steps: Sequence[Step]) -> list[bool | BaseException]:
        done: dict[int, bool] = {}
        while len(done) < len(steps):
            # One step a payment at a time; a second one can only come from another execution of the same payment.
            chosen = {step.payment_id: at for at, step in reversed(list(enumerate(steps))) if at not in done}
            made = await self._store.advance([steps[at] for at in chosen.values()])
            done |= zip(chosen.values(), made, strict=True)
        return [done[at] for at in range(len(steps))]
