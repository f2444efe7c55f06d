"""The SMS gateway: quotas, message log, sender."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from paceline.dispatch.ports import DispatchObserver
from paceline.dispatch.ports import NullObserver as NullDispatchObserver
from paceline.dispatch.queue import DispatchQueue
from paceline.dispatch.registry import Domain
from paceline.dispatch.worker.dispatching import dispatching
from paceline.durations import parse_duration, to_ms
from paceline.errors import StoreError
from paceline.messaging import MessageLog, wait_for_stop
from paceline.server.rollups.observers import MessageRollups, with_rollups
from paceline.server.settings import Settings
from paceline.server.shutdown import closing_part
from paceline.server.wiring.database import shared_database
from paceline.server.wiring.kafka import lag_observer, replica_observer
from paceline.server.wiring.queue import open_dispatch_observer, open_queue, queue_encryption
from paceline.server.wiring.rollups import open_recorder
from paceline.sql.engine import Database
from paceline.sql.outbox import SqlOutbox
from paceline_sms.attempts import ANALYTICS_GROUP, AttemptReader, index_topic
from paceline_sms.broker_health import BrokerHealth
from paceline_sms.consumer import GROUP, Consumer
from paceline_sms.dead_letters import dead_letter_topic
from paceline_sms.execution import MessageExecution
from paceline_sms.expiry import Expirer
from paceline_sms.inbound import Inbound, InboundWords, received
from paceline_sms.intake import Intake
from paceline_sms.items import ITEM_TYPES, dispatch_configs
from paceline_sms.ports import NotificationObserver, NullObserver
from paceline_sms.provider_chain import NamedProvider, ProviderChain
from paceline_sms.quiet_hours import QuietHours
from paceline_sms.readers import Readers
from paceline_sms.receipts import EarlyReceipts, ReceiptReader, early_topic
from paceline_sms.reconciliation import LogProgress, Sweep
from paceline_sms.relay import Relay
from paceline_sms.senders import Senders
from paceline_sms.service.wiring.followers import copies_topic, followers, tell_of
from paceline_sms.service.wiring.sms_providers import open_providers
from paceline_sms.service.wiring.status_webhook import status_webhook
from paceline_sms.settings import SmsSettings
from paceline_sms.stores.migrations import steps
from paceline_sms.stores.quota_statements import Way
from paceline_sms.stores.rows import decrypted_record
from paceline_sms.stores.sql import SqlAnalyticsStore, SqlDeliveryStore, SqlQuotaStore
from paceline_sms.templates import Templates

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

OUTBOX_POLL_SECONDS = 0.1
"""How long an accepted message may wait for the sender, or for Kafka."""
BACKLOG_SECONDS = 15.0


class Notifications(NamedTuple):
    """The SMS gateway of a settings tree."""

    intake: Intake
    analytics: SqlAnalyticsStore
    messages: SqlDeliveryStore
    providers: ProviderChain
    """For receipts; the sender has its own chain."""
    observer: NotificationObserver
    inbound_words: InboundWords
    templates: Templates
    probes: dict[str, Callable[[], Awaitable[object]]]


@asynccontextmanager
async def open_notifications(
    settings: Settings,
    *,
    queue: DispatchQueue | None = None,
    dispatch_observer: DispatchObserver | None = None,
    relays: bool = True,
    registry: CollectorRegistry | None = None,
) -> AsyncIterator[Notifications]:
    """The gateway; with its sender on `queue`, or one of its own, if the settings say so. Counted in `registry`, if
    given. Without `relays`, other processes send what it accepts."""
    sms_settings = settings.section(SmsSettings)
    inline = sms_settings.sender == "inline" or (sms_settings.sender == "auto" and settings.kafka_bootstrap is None)
    async with _gateway_stores(settings, registry) as (shared, log, outbox), open_recorder(settings) as recorder:
        observer = with_rollups(_notification_observer(registry), MessageRollups(recorder))
        probes: dict[str, Callable[[], Awaitable[object]]] = {}
        broker = None
        if settings.kafka_bootstrap is not None:
            probes["kafka"] = log.ping
            broker = BrokerHealth(log.ping, timeout=sms_settings.kafka_delivery_seconds)
        cache = None
        if settings.redis_url is not None:
            # Imported here: the driver is an extra.
            from paceline_sms.stores.redis import RedisQuotaCache

            cache = RedisQuotaCache(settings.redis_url, timeout=sms_settings.redis_timeout_seconds)
        expiry = parse_duration(sms_settings.expires_in)
        messages = _message_store(settings, shared)
        intake = Intake(
            SqlQuotaStore(shared, way=_way(settings), expiry=expiry),
            log,
            cache=cache,
            broker=broker,
            expiry_ms=int(expiry.total_seconds() * 1000),
            topic=sms_settings.topic,
            events_topic=sms_settings.events_topic,
            observer=observer,
        )
        async with AsyncExitStack() as running:
            if cache is not None:
                running.push_async_callback(cache.close)
            providers = open_providers(settings)
            running.push_async_callback(providers.close)
            readers = Readers(observer)
            running.push_async_callback(readers.close)
            if inline:
                watch = dispatch_observer or NullDispatchObserver()
                items = await running.enter_async_context(open_queue(settings)) if queue is None else queue
                _start_readers(readers, settings, shared, log, outbox, observer, providers)
                await running.enter_async_context(_sending(settings, items, shared, providers, observer, watch))
                probes["sender"] = readers.check
            elif settings.kafka_bootstrap is not None and relays:
                _start_relays(readers, settings, log, outbox)
            running.push_async_callback(intake.close)
            if registry is not None:
                readers.start("backlog", partial(_watch_backlog, observer, messages, providers))
            templates = Templates(sms_settings.templates)
            words = InboundWords(sms_settings.inbound_words, sms_settings.inbound_replies)
            yield Notifications(
                intake, SqlAnalyticsStore(shared), messages, providers, observer, words, templates, probes
            )


async def run_sender(settings: Settings, stop: asyncio.Event, *, registry: CollectorRegistry | None = None) -> None:
    """Sends messages and counts attempts until `stop` is set: `paceline worker sender`."""
    observer = _notification_observer(registry)
    async with (
        _gateway_stores(settings, registry) as (shared, log, outbox),
        open_queue(settings) as queue,
        open_dispatch_observer(settings, registry) as watch,
        AsyncExitStack() as running,
    ):
        providers = open_providers(settings)
        running.push_async_callback(providers.close)
        readers = Readers(observer)
        running.push_async_callback(readers.close)
        _start_readers(readers, settings, shared, log, outbox, observer, providers)
        await running.enter_async_context(_sending(settings, queue, shared, providers, observer, watch))
        if registry is not None:
            messages = _message_store(settings, shared)
            readers.start("backlog", partial(_watch_backlog, observer, messages, providers))
        await stop.wait()


async def prune_notifications(settings: Settings, before: datetime) -> dict[str, int]:
    """Deletes attempts, delivered and received message ids, and idempotency keys from before a time; of all but the
    first only expired ones."""
    shared = await shared_database(settings, steps)
    before_ms = to_ms(before)
    try:
        return {
            "attempts": await SqlAnalyticsStore(shared).prune(before_ms),
            "deliveries": await _message_store(settings, shared).prune(before_ms),
            "inbound": await _message_store(settings, shared).prune_inbound(before_ms),
            "keys": await SqlQuotaStore(shared).prune(before_ms),
        }
    finally:
        await shared.close()


@asynccontextmanager
async def _gateway_stores(
    settings: Settings, registry: CollectorRegistry | None = None
) -> AsyncIterator[tuple[Database, MessageLog, SqlOutbox]]:
    """The database, the message log, and the outbox, which is the log without Kafka."""
    sms = settings.section(SmsSettings)
    shared = await shared_database(settings, steps)
    lease = timedelta(seconds=sms.lease_seconds)
    outbox = SqlOutbox(shared, poll_seconds=OUTBOX_POLL_SECONDS, reader_lease=lease)
    log: MessageLog = outbox
    if settings.kafka_bootstrap is not None:
        # Imported here: the driver is an extra.
        from paceline.kafka.log import KafkaLog

        topics = [
            sms.topic,
            dead_letter_topic(sms.topic),
            sms.events_topic,
        ]
        if sms.opensearch_url is not None:
            topics.append(index_topic(sms.events_topic))
        log = KafkaLog(
            settings.kafka_bootstrap,
            topics=topics,
            delivery_seconds=sms.kafka_delivery_seconds,
            settings=settings.kafka_config,
            report_lag=lag_observer(registry),
            report_replicas=replica_observer(settings, registry),
        )
    try:
        yield shared, log, outbox
    finally:
        await log.close()
        await shared.close()


def _way(settings: Settings) -> Way:
    """From the acceptance to the queue: with Kafka, through its topic."""
    through = None if settings.kafka_bootstrap is None else settings.section(SmsSettings).topic
    return Way(through, queue_encryption(settings))


def _message_store(settings: Settings, shared: Database) -> SqlDeliveryStore:
    return SqlDeliveryStore(
        shared,
        topic=settings.section(SmsSettings).topic,
        followers=followers(settings),
        copies=copies_topic(settings),
        encryption=queue_encryption(settings),
        tell=tell_of(settings),
    )


class _DeadLetters(NullDispatchObserver):
    """Counts messages whose items become dead letters in this process."""

    def __init__(self, observer: NotificationObserver) -> None:
        self._observer = observer

    def dead_lettered(self, item_type: str, items: int) -> None:
        for _ in range(items if item_type in ITEM_TYPES else 0):
            self._observer.delivered("dead_lettered")


@asynccontextmanager
async def _sending(
    settings: Settings,
    queue: DispatchQueue,
    shared: Database,
    providers: ProviderChain,
    observer: NotificationObserver,
    dispatch_observer: DispatchObserver,
) -> AsyncIterator[None]:
    """Executes the items of messages while the block runs."""
    sms = settings.section(SmsSettings)
    execution = MessageExecution(
        _message_store(settings, shared),
        providers,
        observer=observer,
        quiet_hours=None if sms.quiet_hours is None else QuietHours(sms.quiet_hours),
        senders=Senders(sms.senders),
    )
    configs = dispatch_configs(
        lease_seconds=sms.lease_seconds,
        hold_seconds=parse_duration(sms.hold_for).total_seconds(),
        resends=providers.resends,
    )
    try:
        async with (
            status_webhook(settings) as statuses,
            dispatching(
                queue,
                [*(Domain(config, execution) for config in configs), *statuses],
                observer=with_rollups(dispatch_observer, _DeadLetters(observer)),
                concurrency=sms.concurrency,
                grace=closing_part(settings.http.shutdown_seconds, sms.timeout_seconds + 1),
            ),
        ):
            yield
    finally:
        await execution.close()


def _start_readers(
    readers: Readers,
    settings: Settings,
    shared: Database,
    log: MessageLog,
    outbox: SqlOutbox,
    observer: NotificationObserver,
    providers: ProviderChain,
) -> None:
    """Starts what a sender needs beside its worker: the consumer of the log, the expiry, the sweep, the reader of
    attempts, and readers of receipts for providers that have their own connection."""
    sms, messages = settings.section(SmsSettings), _message_store(settings, shared)
    readers.start("consumer", Consumer(partial(log.read, sms.topic, GROUP), messages, observer).run)
    readers.start("expiry", Expirer(messages, observer).run)
    early = partial(outbox.read, early_topic(sms.topic), "receipts")
    readers.start("early receipts", EarlyReceipts(early, messages, observer).run)
    readers.start("sweep", Sweep(messages, observer, _progress(settings)).run)
    words = InboundWords(sms.inbound_words, sms.inbound_replies)
    for entry in providers.providers:
        if (receipts := getattr(entry.provider, "receipts", None)) is not None:
            take = partial(_take_inbound, messages, words, Senders(sms.senders), providers, entry)
            reader = ReceiptReader(entry.name, receipts, messages.receive, take, observer)
            readers.start(f"receipts of {entry.name}", reader.run)
    events, copies = sms.events_topic, None
    if sms.opensearch_url is not None:
        # Imported here: it needs an HTTP client, which is an extra.
        from paceline_sms.stores.opensearch import INDEX_GROUP, IndexReader, SearchIndex

        copies = (log, index_topic(events))
        index = partial(SearchIndex, sms.opensearch_url, sms.opensearch_index, sms.opensearch_headers)
        join = partial(log.read, index_topic(events), INDEX_GROUP)
        readers.start("search index", lambda stop: IndexReader(join, index(), observer).run(stop))
    analytics = AttemptReader(lambda: log.read(events, ANALYTICS_GROUP), SqlAnalyticsStore(shared), copies=copies)
    readers.start("analytics", analytics.run)
    _start_relays(readers, settings, log, outbox)


async def _take_inbound(
    messages: SqlDeliveryStore,
    words: InboundWords,
    senders: Senders,
    providers: ProviderChain,
    entry: NamedProvider,
    message: Inbound,
) -> None:
    """Takes a message that came over a provider's own connection. The reply is sent once, at the provider's pace."""
    if reply := await received(messages, words, entry.name, message):
        await providers.reply(entry, message, reply, senders.sender_of(message.phone))


def _progress(settings: Settings) -> LogProgress | None:
    """Of the consumers of the topic; None if the outbox is the log."""
    if settings.kafka_bootstrap is None:
        return None
    # Imported here: the driver is an extra.
    from paceline.kafka.progress import KafkaProgress

    topic = settings.section(SmsSettings).topic
    return KafkaProgress(settings.kafka_bootstrap, topic, GROUP, settings.kafka_config)


def _start_relays(readers: Readers, settings: Settings, log: MessageLog, outbox: SqlOutbox) -> None:
    """Starts the relays from the outbox to Kafka: of accepted messages, and of the copies of dead letters."""
    if settings.kafka_bootstrap is None:
        return
    topic = settings.section(SmsSettings).topic
    read = partial(decrypted_record, queue_encryption(settings))
    for source in (topic, dead_letter_topic(topic)):
        relay = Relay(partial(outbox.read, source, "relay"), log, source, read=read)
        readers.start(f"relay of {source}", relay.run)


def _notification_observer(registry: CollectorRegistry | None) -> NotificationObserver:
    if registry is None:
        return NullObserver()
    # Imported here: metrics come with the server, and the library works without it.
    from paceline_sms.service.metrics import NotificationMetrics

    return NotificationMetrics(registry)


async def _watch_backlog(
    observer: NotificationObserver, messages: SqlDeliveryStore, providers: ProviderChain, stop: asyncio.Event
) -> None:
    """Measures the backlog periodically."""
    while True:
        with suppress(StoreError):
            observer.backlog(await messages.backlog(), await providers.is_available())
        if await wait_for_stop(stop, BACKLOG_SECONDS):
            return
