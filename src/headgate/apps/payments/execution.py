"""Phase B: execute → post-process → notify. Pure business logic on the context; it knows nothing of dispatch.

Each step may run again after a crash and does nothing twice: the downstream is asked under the payment's id, and a
change of status counts once.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from headgate.apps.payments.model import Payment, PaymentEvent, PaymentRecord, PaymentStatus, StatusChange
from headgate.apps.payments.notifier import notices_for
from headgate.apps.payments.ports import Downstream, Notice, Notifier, PaymentRefused, PaymentStore
from headgate.apps.payments.serialization import read_context
from headgate.batching import Batcher
from headgate.dispatch.model import GiveUp
from headgate.errors import NotFound

log = logging.getLogger(__name__)

LONGEST_REASON = 2000


class PaymentExecution:
    """Executes payments: one method per step, and `execute` for all of them."""

    def __init__(self, store: PaymentStore, downstream: Downstream, notifier: Notifier) -> None:
        self._store = store
        self._downstream = downstream
        self._notifier = notifier
        self._begins: Batcher[str, PaymentRecord] = Batcher(self._begin)
        self._writes: Batcher[StatusChange, bool] = Batcher(self._advance, max_batch=200)

    async def execute(self, item_id: str, context: Any) -> None:
        """All of phase B, for an engine that runs plain functions."""
        payment, terms = read_context(context)
        if await self.execute_payment(payment):
            await self.notify(notices_for(payment, terms))

    async def execute_payment(self, payment: Payment) -> bool:
        """SCHEDULED → ACCEPTED if the downstream executes the payment. True if it did, now or before.

        Raises:
            GiveUp: The downstream refused it. Payment and item move together: FAILED, with the reason, a dead letter.
            DownstreamBusy: The downstream could not do it now. A retry may succeed.
        """
        record = await self._begins.submit(payment.payment_id)
        if record.status is not PaymentStatus.SCHEDULED:
            return record.status is PaymentStatus.ACCEPTED
        try:
            receipt = await self._downstream.pay(payment)
        except PaymentRefused as refusal:
            reason = str(refusal)[:LONGEST_REASON]
            ids = {"item_id": payment.payment_id}
            log.warning("payment %s was refused: %s", payment.payment_id, reason, extra=ids)
            raise GiveUp(reason, PaymentEvent.REFUSED) from refusal
        detail = f"executed downstream as {receipt.reference}" if receipt.reference else "executed downstream"
        await self._change(
            payment.payment_id, PaymentStatus.SCHEDULED, PaymentStatus.ACCEPTED, detail, receipt.reference
        )
        return True

    async def notify(self, notices: Sequence[Notice]) -> None:
        """ACCEPTED → PROCESSING, once the parties are notified."""
        await self._notifier.notify(notices)
        payment_id = notices[0].payment_id
        await self._change(payment_id, PaymentStatus.ACCEPTED, PaymentStatus.PROCESSING, "payer and payee notified")

    async def close(self) -> None:
        """Returns when all changes are written."""
        await self._begins.close()
        await self._writes.close()

    async def _change(
        self,
        payment_id: str,
        before: PaymentStatus,
        after: PaymentStatus,
        detail: str,
        reference: str | None = None,
    ) -> None:
        if not await self._writes.submit(StatusChange.of(payment_id, before, after, detail, reference)):
            ids = {"item_id": payment_id}
            log.info("payment %s was no longer %s; another execution was first", payment_id, before, extra=ids)

    async def _begin(self, payment_ids: Sequence[str]) -> list[PaymentRecord | BaseException]:
        records = await self._store.begin(list(dict.fromkeys(payment_ids)))
        return [records.get(payment_id) or NotFound("payment", payment_id) for payment_id in payment_ids]

    async def _advance(self, changes: Sequence[StatusChange]) -> list[bool | BaseException]:
        done: dict[int, bool] = {}
        while len(done) < len(changes):
            # One change per payment at a time. A second one can only come from another execution of the same payment.
            chosen = {change.payment_id: at for at, change in reversed(list(enumerate(changes))) if at not in done}
            made = await self._store.advance([changes[at] for at in chosen.values()])
            done |= zip(chosen.values(), made, strict=True)
        return [done[at] for at in range(len(changes))]
