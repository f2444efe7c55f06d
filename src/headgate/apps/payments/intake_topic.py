"""Payments from a topic: one JSON object a record, as `POST /api/v1/payments` takes it.

A record is committed once its payment is kept, or its refusal is published to the topic of rejections: neither is ever
lost, and a record that comes twice is one payment.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence

from headgate.apps.notifications.log_reader import RECEIVE_SECONDS, reading
from headgate.apps.payments.intake import Outcome, PaymentExists
from headgate.apps.payments.model import Payment
from headgate.apps.payments.parsing import payment_of_json
from headgate.errors import HeadgateError, InvalidInput, StoreError
from headgate.messaging import Delivered, MessageLog, MessageSource, Record

log = logging.getLogger(__name__)

GROUP = "payments-intake"
BATCH = 1000
LONGEST_COPY = 100_000
"""Characters of a refused record that are passed on."""


def rejected_topic(topic: str) -> str:
    return f"{topic}-rejected"


class PaymentTopic:
    """Accepts the payments of a topic."""

    def __init__(
        self, messages: MessageLog, topic: str, initiate: Callable[[Sequence[Payment]], Awaitable[list[Outcome]]]
    ) -> None:
        self._messages = messages
        self._topic = topic
        self._initiate = initiate
        self._taken: list[Delivered] = []
        """Received and not yet done: a source gives each record once, so what failed is tried again from here."""

    async def run(self, stop: asyncio.Event) -> None:
        """Reads until `stop` is set, then leaves. Waits for stores that do not answer."""
        await reading(lambda: self._messages.read(self._topic, GROUP), self._step, stop)

    async def _step(self, source: MessageSource) -> None:
        if not self._taken:
            self._taken = await source.receive(BATCH, RECEIVE_SECONDS)
        if self._taken:
            await self._accept(self._taken)
            await source.commit(self._taken)
            self._taken = []

    async def _accept(self, delivered: Sequence[Delivered]) -> None:
        payments: list[tuple[Delivered, Payment]] = []
        refused: list[tuple[Delivered, HeadgateError]] = []
        for each in delivered:
            try:
                payments.append((each, _payment(each.record.value)))
            except InvalidInput as error:
                refused.append((each, error))
        outcomes = await self._initiate([payment for _, payment in payments]) if payments else []
        for (each, _), outcome in zip(payments, outcomes, strict=True):
            if isinstance(outcome, StoreError) and not isinstance(outcome, PaymentExists):
                raise outcome  # not the payment's fault
            if isinstance(outcome, HeadgateError):
                refused.append((each, outcome))
        if refused:
            await self._tell(refused)

    async def _tell(self, refused: Sequence[tuple[Delivered, HeadgateError]]) -> None:
        records = [
            Record(
                rejected_topic(self._topic),
                each.record.key,
                json.dumps(
                    {
                        "partition": each.partition,
                        "offset": each.position,
                        "reason": str(error),
                        "record": each.record.value[:LONGEST_COPY],
                    }
                ),
            )
            for each, error in refused
        ]
        for outcome in await self._messages.publish(records):
            if outcome is not None:
                raise outcome
        log.warning("%d records of %s were refused; see %s", len(records), self._topic, rejected_topic(self._topic))


def _payment(value: str) -> Payment:
    try:
        document = json.loads(value)
    except (ValueError, RecursionError):
        raise InvalidInput("record", "is not valid JSON") from None
    return payment_of_json(document)
