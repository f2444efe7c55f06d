"""Payments from a topic: one JSON object per record, as `POST /api/v1/payments` takes it.

A record is committed once its payment is stored, or its rejection is published to the topic of rejections: neither is
ever lost, and a record that is delivered twice is one payment.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from paceline.errors import InvalidInput, PacelineError, StoreError
from paceline.messaging import LogEntry, MessageLog, Record, process_until_stopped
from paceline_payments.model import IntakeResult, Payment, PaymentExists
from paceline_payments.parsing import payment_of_json
from paceline_payments.strict_json import RepeatedMember, strict_json
from paceline_payments.submission import submitted

log = logging.getLogger(__name__)

GROUP = "payments-intake"
BATCH = 1000
LONGEST_COPY = 100_000
"""Characters of a rejected record that are published."""


def rejected_topic(topic: str) -> str:
    return f"{topic}-rejected"


class PaymentTopic:
    """Accepts the payments of a topic."""

    def __init__(
        self, messages: MessageLog, topic: str, initiate: Callable[[Sequence[Payment]], Awaitable[list[IntakeResult]]]
    ) -> None:
        self._messages = messages
        self._topic = topic
        self._initiate = initiate

    async def run(self, stop: asyncio.Event) -> None:
        """Reads until `stop` is set, then leaves. Retries while a store does not answer."""
        join = partial(self._messages.read, self._topic, GROUP)
        await process_until_stopped(join, self._accept, stop, batch=BATCH)

    async def _accept(self, entries: Sequence[LogEntry]) -> None:
        payments: list[tuple[LogEntry, Payment]] = []
        refused: list[tuple[LogEntry, PacelineError]] = []
        for message in entries:
            try:
                payments.append((message, _payment(message.record.value)))
            except InvalidInput as error:
                refused.append((message, error))
        with submitted(f"topic:{self._topic}"):
            results = await self._initiate([payment for _, payment in payments]) if payments else []
        for (message, _), result in zip(payments, results, strict=True):
            if isinstance(result, StoreError) and not isinstance(result, PaymentExists):
                raise result  # not the payment's fault
            if isinstance(result, PacelineError):
                refused.append((message, result))
        if refused:
            await self._publish_rejections(refused)

    async def _publish_rejections(self, refused: Sequence[tuple[LogEntry, PacelineError]]) -> None:
        records = [
            Record(
                rejected_topic(self._topic),
                message.record.key,
                json.dumps(
                    {
                        "partition": message.partition,
                        "offset": message.position,
                        "reason": str(error),
                        "record": message.record.value[:LONGEST_COPY],
                    }
                ),
            )
            for message, error in refused
        ]
        for failure in await self._messages.publish(records):
            if failure is not None:
                raise failure
        log.warning("%d records of %s were refused; see %s", len(records), self._topic, rejected_topic(self._topic))


def _payment(value: str) -> Payment:
    try:
        document = strict_json(value)
    except RepeatedMember as error:
        raise InvalidInput(error.name, "occurs twice") from None
    except (ValueError, RecursionError):
        raise InvalidInput("record", "is not valid JSON") from None
    return payment_of_json(document)
