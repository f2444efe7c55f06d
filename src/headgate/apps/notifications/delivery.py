"""The sender: takes messages from the log and hands each to a provider.

At least once: a message is committed only after it is sent or dead-lettered, and remembered as such; so after a crash
it comes again. Each message id once: what is remembered is not sent again. The gap between the provider's answer and
the memory is closed by the provider, which is given the message id (`Sender.send`).

Messages of one user go out in order; users do not wait for each other. A message that can't be read, that the provider
refuses for good, or that fails too often goes to the dead-letter topic, with the reason, and the next one follows.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence

from headgate import tracing
from headgate.apps.notifications.model import Message
from headgate.apps.notifications.ports import (
    DeliveryOutcome,
    DeliveryStore,
    NotificationObserver,
    NullObserver,
    Sender,
    SendFailed,
)
from headgate.batching import Batcher
from headgate.errors import InvalidInput, StoreError
from headgate.messaging import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    RECEIVE_SECONDS,
    Delivered,
    MessageLog,
    MessageSource,
    Record,
    read_until_stopped,
    wait_for_stop,
)
from headgate.tracing import Attributes

SENDER_GROUP = "sms-sender"
BATCH = 100
CONCURRENCY = 32
ATTEMPTS = 5

_log = logging.getLogger(__name__)


def dead_letter_topic(topic: str) -> str:
    return f"{topic}-dlt"


class Delivery:
    """One member of the group of senders."""

    def __init__(
        self,
        join: Callable[[], Awaitable[MessageSource]],
        store: DeliveryStore,
        sender: Sender,
        log: MessageLog,
        *,
        observer: NotificationObserver | None = None,
        attempts: int = ATTEMPTS,
        first_pause: float = FIRST_PAUSE,
        longest_pause: float = LONGEST_PAUSE,
    ) -> None:
        self._join = join
        self._store = store
        self._sender = sender
        self._log = log
        self._observer = observer or NullObserver()
        self._attempts = attempts
        self._first_pause = first_pause
        self._longest_pause = longest_pause
        self._lanes = asyncio.Semaphore(CONCURRENCY)
        self._settlements: Batcher[DeliveryOutcome, None] = Batcher(self._settle)
        self._stop = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Sends until `stop` is set; then ends what is being sent, commits it, and leaves the group. What waited for
        another try stays in the log for the next member."""
        self._stop = stop
        await read_until_stopped(self._join, self._step, stop)
        await self._settlements.close()

    async def _step(self, source: MessageSource) -> None:
        delivered = await source.receive(BATCH, RECEIVE_SECONDS)
        if not delivered:
            return
        by_user: dict[str, list[Delivered]] = defaultdict(list)
        for message in delivered:
            by_user[message.record.key].append(message)
        done: list[Delivered] = []
        try:
            async with asyncio.TaskGroup() as lanes:
                for own in by_user.values():
                    lanes.create_task(self._deliver_in_order(own, done))
        finally:
            if done:
                await source.commit(done)

    async def _deliver_in_order(self, delivered: Sequence[Delivered], done: list[Delivered]) -> None:
        async with self._lanes:
            for message in delivered:
                if not await self._deliver(message.record):
                    return
                done.append(message)

    async def _deliver(self, record: Record) -> bool:
        """Whether the record is dealt with; False if this member stops before."""
        try:
            message = Message.from_record_value(record.value)
        except InvalidInput as error:
            problem = str(error)
            return await self._retry_until_stored(
                lambda: self._dead_letter(record, problem, 0, {"user_id": record.key})
            )
        if self._stop.is_set():
            return False
        known: set[str] = set()

        async def look() -> None:
            known.update(await self._store.settled([message.message_id]))

        if not await self._retry_until_stored(look):
            return False
        if known:
            self._observer.delivered("duplicate")
            return True
        ids: dict[str, str | int] = {"message_id": message.message_id, "user_id": message.user_id}
        tried, failure = await self._send_in_trace(record.traceparent, message)
        if failure is None:
            self._observer.delivered("sent")
        elif not tried or not await self._retry_until_stored(
            lambda: self._dead_letter(record, str(failure), tried, ids)
        ):
            return False
        outcome = DeliveryOutcome(message.message_id, message.user_id, failure is None, tried)
        return await self._retry_until_stored(lambda: self._settlements.submit(outcome))

    async def _send_in_trace(self, parent: str | None, message: Message) -> tuple[int, SendFailed | None]:
        """`_send_with_retries`, as part of the trace the message was sent in, if there is one."""
        if parent is None or not tracing.is_on():
            return await self._send_with_retries(message)
        attributes = {"headgate.message_id": message.message_id}
        span = tracing.begin("sms.deliver", attributes, parent=parent, kind="CONSUMER")
        with tracing.inside(span):
            tried, failure = await self._send_with_retries(message)
        attributes_at_end: Attributes = {
            "headgate.attempt": tried,
            "headgate.outcome": "sent" if failure is None else "failed",
        }
        span.end(attributes_at_end, failed=None if failure is None else type(failure).__name__)
        return tried, failure

    async def _send_with_retries(self, message: Message) -> tuple[int, SendFailed | None]:
        """How often it was tried, and what is wrong with it; (0, …) if this member stops before that is known."""
        pause = self._first_pause
        for tried in range(1, self._attempts + 1):
            failure = await self._send(message)
            if failure is None or failure.permanent or tried == self._attempts:
                return tried, failure
            self._observer.delivered("retried")
            # Spread, so that many messages that failed together do not come back together.
            if await wait_for_stop(self._stop, pause * random.uniform(0.5, 1.0)):
                break
            pause = min(pause * 2, self._longest_pause)
        return 0, failure

    async def _send(self, message: Message) -> SendFailed | None:
        try:
            await self._sender.send(message)
        except SendFailed as failure:
            return failure
        except Exception as error:
            # A sender's own mistake must not keep every later message waiting.
            _log.exception("the sender failed", extra={"message_id": message.message_id, "user_id": message.user_id})
            return SendFailed(f"the sender failed: {type(error).__name__}")
        return None

    async def _dead_letter(self, record: Record, reason: str, tried: int, ids: Mapping[str, str | int]) -> None:
        value = json.dumps({"value": record.value, "reason": reason, "attempts": tried})
        buried = Record(dead_letter_topic(record.topic), record.key, value, record.traceparent)
        (failure,) = await self._log.publish([buried])
        if failure is not None:
            raise failure
        _log.error("a message of %s is dead-lettered: %s", record.topic, reason, extra=ids)
        self._observer.delivered("dead_lettered")

    async def _settle(self, outcomes: Sequence[DeliveryOutcome]) -> list[None]:
        await self._store.settle(outcomes)
        return [None] * len(outcomes)

    async def _retry_until_stored(self, work: Callable[[], Awaitable[object]]) -> bool:
        """Retries `work` with backoff while the store is unavailable; False if this member stops first."""
        pause = self._first_pause
        while True:
            try:
                await work()
                return True
            except StoreError as error:
                _log.warning("the sender waits: %s", error)
            if await wait_for_stop(self._stop, pause):
                return False
            pause = min(pause * 2, self._longest_pause)
