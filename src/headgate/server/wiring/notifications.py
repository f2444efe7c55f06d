"""The SMS gateway: quotas, message log, sender."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from headgate.apps.notifications.attempts import ANALYTICS_GROUP, AttemptReader
from headgate.apps.notifications.delivery import SENDER_GROUP, Delivery, dead_letter_topic
from headgate.apps.notifications.intake import Intake
from headgate.apps.notifications.ports import NotificationObserver, Sender
from headgate.apps.notifications.providers.console import ConsoleSender
from headgate.apps.notifications.stores.sql import SqlAnalyticsStore, SqlDeliveryStore, SqlQuotaStore
from headgate.durations import to_ms
from headgate.extras import require
from headgate.messaging import MessageLog
from headgate.server.settings import Settings
from headgate.sql.engine import Database
from headgate.sql.outbox import SqlOutbox

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


from headgate.server.wiring.database import embedded_url
from headgate.sql.databases import database

_log = logging.getLogger(__name__)


class Notifications(NamedTuple):
    """The SMS gateway of a settings tree."""

    intake: Intake
    analytics: SqlAnalyticsStore
    probes: dict[str, Callable[[], Awaitable[object]]]


@asynccontextmanager
async def open_notifications(
    settings: Settings, *, registry: CollectorRegistry | None = None
) -> AsyncIterator[Notifications]:
    """The gateway, with its sender running beside it if the settings say so; counted in `registry`, if given."""
    sms_settings = settings.sms
    observer = _notification_observer(registry)
    inline = sms_settings.sender == "inline" or (sms_settings.sender == "auto" and settings.kafka_bootstrap is None)
    async with _gateway_stores(settings) as (shared, log):
        probes: dict[str, Callable[[], Awaitable[object]]] = {}
        if settings.kafka_bootstrap is not None:
            probes["kafka"] = log.ping
        cache = None
        if settings.redis_url is not None:
            # Imported here: the driver is an extra.
            from headgate.apps.notifications.stores.redis import RedisQuotaCache

            publish_seconds = sms_settings.kafka_delivery_seconds + 10
            cache = RedisQuotaCache(
                settings.redis_url, timeout=sms_settings.redis_timeout_seconds, publish_seconds=publish_seconds
            )
        intake = Intake(
            SqlQuotaStore(shared, topic=sms_settings.topic),
            log,
            cache=cache,
            topic=sms_settings.topic,
            events_topic=sms_settings.events_topic,
            observer=observer,
        )
        async with AsyncExitStack() as running:
            if cache is not None:
                running.push_async_callback(cache.close)
            if inline:
                await running.enter_async_context(_sending(settings, shared, log, observer))
            running.push_async_callback(intake.close)
            yield Notifications(intake, SqlAnalyticsStore(shared), probes)


async def run_sender(settings: Settings, stop: asyncio.Event, *, registry: CollectorRegistry | None = None) -> None:
    """Sends messages and counts attempts until `stop` is set: `headgate worker sender`."""
    async with _gateway_stores(settings) as (shared, log):
        async with _sending(settings, shared, log, _notification_observer(registry)) as readers:
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait([stopping, *readers], return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
        for reader in readers:
            reader.result()


async def prune_notifications(settings: Settings, before: datetime) -> dict[str, int]:
    """Forgets attempts, delivered message ids and idempotency keys from before a time; of the latter two only what
    has no effect any more."""
    async with _gateway_stores(settings) as (shared, _):
        before_ms = to_ms(before)
        return {
            "attempts": await SqlAnalyticsStore(shared).prune(before_ms),
            "deliveries": await SqlDeliveryStore(shared).prune(before_ms),
            "keys": await SqlQuotaStore(shared, topic=settings.sms.topic).prune(before_ms),
        }


@asynccontextmanager
async def _gateway_stores(settings: Settings) -> AsyncIterator[tuple[Database, MessageLog]]:
    shared = await database(embedded_url(settings), pool_size=settings.database_pool_size)
    log: MessageLog = SqlOutbox(shared)
    if settings.kafka_bootstrap is not None:
        # Imported here: the driver is an extra.
        from headgate.kafka.log import KafkaLog

        log = KafkaLog(
            settings.kafka_bootstrap,
            topics=(settings.sms.topic, dead_letter_topic(settings.sms.topic), settings.sms.events_topic),
            delivery_seconds=settings.sms.kafka_delivery_seconds,
        )
    try:
        yield shared, log
    finally:
        await log.close()
        await shared.close()


@asynccontextmanager
async def _sending(
    settings: Settings, shared: Database, log: MessageLog, observer: NotificationObserver | None
) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Inside, messages are sent and attempts are counted. Leaving ends what is being sent, and no more."""
    sender: Sender = ConsoleSender()
    if settings.sms.webhook_url is not None:
        require("a webhook", "httpx")
        from headgate.apps.notifications.providers.webhook import WebhookSender

        sender = WebhookSender(settings.sms.webhook_url)
    stop = asyncio.Event()
    delivery = Delivery(
        lambda: log.read(settings.sms.topic, SENDER_GROUP),
        SqlDeliveryStore(shared),
        sender,
        log,
        observer=observer,
        attempts=settings.sms.attempts,
    )
    reader = AttemptReader(lambda: log.read(settings.sms.events_topic, ANALYTICS_GROUP), SqlAnalyticsStore(shared))
    readers = [asyncio.create_task(delivery.run(stop)), asyncio.create_task(reader.run(stop))]
    for each in readers:
        each.add_done_callback(_log_failure)
    try:
        yield readers
    finally:
        stop.set()
        await asyncio.wait(readers)
        await sender.close()


def _log_failure(reader: asyncio.Task[None]) -> None:
    if not reader.cancelled() and (error := reader.exception()) is not None:
        _log.error("a reader of the message log ended", exc_info=error)


def _notification_observer(registry: CollectorRegistry | None) -> NotificationObserver | None:
    if registry is None:
        return None
    # Imported here: metrics come with the server, and the library works without it.
    from headgate.server.metrics.notifications import NotificationMetrics

    return NotificationMetrics(registry)
