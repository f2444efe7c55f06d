"""The place that names concrete adapters: URL scheme -> factory. `limit_stores.py` is the part that limiters need."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import datetime
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from headgate.access.gate import Gate
from headgate.access.model import Scope, Token, digest
from headgate.access.ports import TokenStore
from headgate.adapters.local.engine import LocalEngine
from headgate.adapters.memory.payments import MemoryPaymentStore
from headgate.adapters.memory.queue import MemoryQueueStore
from headgate.adapters.memory.slots import MemorySlotStore
from headgate.adapters.senders.console import ConsoleSender
from headgate.adapters.sql import migrate
from headgate.adapters.sql import tables as sql_tables
from headgate.adapters.sql.access import SqlAccessStore
from headgate.adapters.sql.engine import Database
from headgate.adapters.sql.notification_store import SqlAnalyticsStore, SqlDeliveryLedger, SqlQuotaLedger
from headgate.adapters.sql.outbox import SqlOutbox
from headgate.adapters.sql.payment_store import SqlPaymentStore
from headgate.adapters.sql.plans import AsyncSqlPlans, SqlPlans
from headgate.adapters.sql.queue import SqlQueueStore
from headgate.adapters.sql.slot_store import SqlSlotStore
from headgate.admission.async_limiter import AsyncLimiter
from headgate.admission.live_plans import LivePlans
from headgate.apps.notifications.attempts import ANALYTICS_GROUP, AttemptReader
from headgate.apps.notifications.delivery import SENDER_GROUP, Delivery, dead_letter_topic
from headgate.apps.notifications.intake import Intake
from headgate.apps.notifications.ports import MessageLog, NotificationObserver, Sender
from headgate.apps.payments.domain import ITEM_TYPE as PAYMENT
from headgate.dispatch.config import DispatchConfig
from headgate.dispatch.cycle import DispatchCycle
from headgate.dispatch.guard import PlanGuard
from headgate.dispatch.meter import QueueMeter
from headgate.dispatch.ports import DispatchObserver, Guard, Outcomes, WorkflowEngine
from headgate.dispatch.queue import DispatchQueue
from headgate.dispatch.queue import Store as QueueStore
from headgate.dispatch.registry import Domain, Registry
from headgate.dispatch.reporting import OutcomeReporter
from headgate.dispatch.worker import DispatchWorker
from headgate.errors import ConfigurationError, NotFound
from headgate.iso8601 import to_ms
from headgate.limit_stores import SQL_SCHEMES
from headgate.settings import DispatchSettings, Settings
from headgate.slots.model import WindowPolicy
from headgate.slots.ports import SlotStore
from headgate.slots.scheduler import SlotScheduler

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from headgate.adapters.temporal.client import Security
    from headgate.adapters.temporal.crew import TemporalCrew
    from headgate.apps.payments.downstream.simulator import Simulator
    from headgate.apps.payments.intake import PaymentIntake
    from headgate.apps.payments.ports import Downstream, Notifier, PaymentStore, Permits
    from headgate.apps.payments.ports import Gate as DownstreamGate
    from headgate.apps.payments.steps import PaymentSteps
    from headgate.apps.payments.workflow_intake import WorkflowIntake

_log = logging.getLogger(__name__)


class _Databases:
    """The databases open on one event loop."""

    def __init__(self) -> None:
        self.opening = asyncio.Lock()
        self.by_url: dict[str, Database] = {}


_databases: WeakKeyDictionary[asyncio.AbstractEventLoop, _Databases] = WeakKeyDictionary()


async def database(url: str, *, pool_size: int = 10) -> Database:
    """The database at a URL, migrated to this version's schema.

    Whoever asks for the same URL on the same event loop gets the same pool: on SQLite, two pools in one process would
    wait for each other's locks by sleeping.
    """
    here = _databases.setdefault(asyncio.get_running_loop(), _Databases())
    # One after the other, so that nobody is handed a database that is still being migrated.
    async with here.opening:
        known = here.by_url.get(url)
        if known is not None and not known.closed:
            return known.share()
        opened = Database(url, pool_size=pool_size)
        try:
            await migrate.upgrade(opened)
        except BaseException:
            await opened.close()
            raise
        here.by_url[url] = opened
        return opened


@asynccontextmanager
async def access_store(settings: Settings) -> AsyncIterator[SqlAccessStore]:
    """Tokens and the audit of administration, in the settings' database."""
    shared = await database(embedded_url(settings), pool_size=settings.database_pool_size)
    try:
        yield SqlAccessStore(shared)
    finally:
        await shared.close()


def gate(settings: Settings, store: TokenStore) -> Gate:
    """Who may call: the tokens of the settings, and those of the store."""
    fixed = {
        "HEADGATE_API_TOKEN": (settings.api_token, frozenset({Scope.READ, Scope.ASSIGN, Scope.SEND})),
        "HEADGATE_ADMIN_TOKEN": (settings.admin_token, frozenset({Scope.ADMIN})),
    }
    return Gate(
        store,
        [Token(name, scopes, digest(secret.get_secret_value())) for name, (secret, scopes) in fixed.items() if secret],
    )


def embedded_url(settings: Settings) -> str:
    """The database of a settings tree; for `memory://`, one that lives in this process."""
    return "sqlite://" if settings.database_url.startswith("memory:") else settings.database_url


async def slot_store(url: str, *, pool_size: int = 10) -> SlotStore:
    """The slot store at a database URL; `memory://` for one that lives in this process."""
    if url.startswith("memory:"):
        return MemorySlotStore()
    return SqlSlotStore(await database(url, pool_size=pool_size))


async def queue_store(url: str, *, pool_size: int = 10) -> QueueStore:
    """The dispatch queue's store at a database URL; `memory://` for one that lives in this process."""
    if url.startswith("memory:"):
        return MemoryQueueStore()
    return SqlQueueStore(await database(url, pool_size=pool_size))


@asynccontextmanager
async def slot_scheduler(
    settings: Settings, *, registry: CollectorRegistry | None = None
) -> AsyncIterator[SlotScheduler]:
    """The scheduler of a settings tree, with its default config ready; counted in `registry`, if one is given."""
    observer = None
    if registry is not None:
        # Imported here: metrics come with the server, and the library works without it.
        from headgate.adapters.prometheus.slots import SlotMetrics

        observer = SlotMetrics(registry)
    wanted = settings.slots
    async with SlotScheduler(
        await slot_store(settings.database_url, pool_size=settings.database_pool_size),
        observer=observer,
        batch=wanted.batch,
        bulk_batch=wanted.bulk_batch,
        cache_ttl=wanted.cache_ttl_seconds,
    ) as scheduler:
        try:
            active = await scheduler.policy(wanted.default_config)
        except NotFound:
            policy = WindowPolicy(wanted.default_max_per_window, wanted.default_window)
            active = await scheduler.ensure(wanted.default_config, policy)
        if observer is not None:
            observer.remember([active])
            observer.learn_sizes_from(scheduler.history)
        yield scheduler


@asynccontextmanager
async def dispatch_queue(settings: Settings) -> AsyncIterator[DispatchQueue]:
    """The queue of a settings tree."""
    store = await queue_store(settings.database_url, pool_size=settings.database_pool_size)
    async with DispatchQueue(store, largest_context=settings.dispatch.max_context_bytes) as queue:
        yield queue


def dispatch_observer(registry: CollectorRegistry | None) -> DispatchObserver | None:
    """Counts dispatch in `registry`, if one is given."""
    if registry is None:
        return None
    # Imported here: metrics come with the server, and the library works without it.
    from headgate.adapters.prometheus.dispatch import DispatchMetrics

    return DispatchMetrics(registry)


def domains(settings: Settings) -> Registry:
    """The item types this process knows: those of installed packages (entry points `headgate.domains`) and those the
    settings name."""
    registry = Registry()
    named = [name.strip() for name in settings.dispatch.domains.split(",") if name.strip()]
    for name in [*(point.value for point in entry_points(group="headgate.domains")), *named]:
        for domain in _loaded(name, settings):
            registry.add(domain)
    return registry


def _loaded(name: str, settings: Settings) -> Iterable[Domain]:
    module, _, attribute = name.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` has it: modules of the working directory are found
    try:
        found = getattr(import_module(module), attribute or "domain")
        if callable(found):
            found = found(settings)
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError("dispatch.domains", f"{name!r} can't be loaded: {error}") from error
    loaded = [found] if isinstance(found, Domain) else list(found) if isinstance(found, Iterable) else []
    if not loaded or not all(isinstance(each, Domain) for each in loaded):
        raise ConfigurationError("dispatch.domains", f"{name!r} is no Domain, no Registry and makes none")
    return loaded


@asynccontextmanager
async def dispatch_guard(settings: Settings) -> AsyncIterator[Guard]:
    """Holds executions to the plans of the settings' database."""
    async with admission(settings) as limits:
        yield PlanGuard(limits.limiter)


@asynccontextmanager
async def local_dispatch(
    queue: DispatchQueue,
    domains: Iterable[Domain],
    *,
    guard: Guard | None = None,
    observer: DispatchObserver | None = None,
    limits: DispatchSettings | None = None,
) -> AsyncIterator[WorkflowEngine]:
    """Inside, items of these domains are dispatched and executed in this process. Leaving ends what runs, within its
    grace, and gives the rest back."""
    registry = Registry(*domains)
    for domain in registry:
        await queue.define(domain.config)
    limits = limits or DispatchSettings()
    outcomes = OutcomeReporter(queue.store, observer=observer)
    engine = LocalEngine(registry, outcomes, guard=guard, concurrency=limits.concurrency, backlog=limits.backlog)
    worker = DispatchWorker(queue.store, engine, [domain.item_type for domain in registry], observer=observer)
    running = asyncio.create_task(worker.run())
    try:
        yield engine
    finally:
        worker.stop()
        await running
        await outcomes.close()


@asynccontextmanager
async def dispatching(
    settings: Settings, *, guard: Guard | None = None, observer: DispatchObserver | None = None
) -> AsyncIterator[DispatchQueue]:
    """The queue of a service, measured; the domains of the settings are dispatched beside it, if that is left to it."""
    known = domains(settings)
    wanted = settings.dispatch
    inline = wanted.worker == "inline" or (wanted.worker == "auto" and settings.temporal_address is None)
    async with dispatch_queue(settings) as queue, AsyncExitStack() as running:
        for domain in known:
            await queue.define(domain.config)
        if observer is not None:
            metering = asyncio.create_task(QueueMeter(queue.store, observer).run())
            running.callback(metering.cancel)
        if inline and len(known):
            await running.enter_async_context(
                local_dispatch(queue, known, guard=guard, observer=observer, limits=wanted)
            )
        yield queue


async def temporal_engine(settings: Settings, outcomes: Outcomes | None = None) -> WorkflowEngine:
    """The engine on the settings' Temporal; it connects when first used."""
    address = _temporal_address(settings)
    # Imported here, as below: the SDK is an extra.
    from headgate.adapters.temporal.client import connect_for_dispatch
    from headgate.adapters.temporal.engine import TemporalEngine

    security = _temporal_security(settings)
    client = await connect_for_dispatch(address, settings.temporal_namespace, lazy=True, security=security)
    return TemporalEngine(client, outcomes)


async def temporal_crew(
    settings: Settings,
    domains: Iterable[Domain],
    store: QueueStore,
    roles: Collection[str],
    *,
    guard: Guard | None = None,
    observer: DispatchObserver | None = None,
) -> TemporalCrew:
    """The Temporal workers of this process, for some of the roles `dispatch`, `init` and `exec`."""
    address = _temporal_address(settings)
    from headgate.adapters.temporal.client import connect
    from headgate.adapters.temporal.crew import TemporalCrew
    from headgate.adapters.temporal.dispatcher import DispatcherActivities
    from headgate.adapters.temporal.schedule import DispatchSchedules
    from headgate.adapters.temporal.versioning import versioned
    from headgate.adapters.temporal.workers import WorkerOptions

    async def measure(item_type: str) -> None:
        if observer is not None:
            observer.measured(item_type, (await store.stats(item_type)).depth)

    client = await connect(address, settings.temporal_namespace, security=_temporal_security(settings))
    outcomes = OutcomeReporter(store, observer=observer)
    cycle = DispatchCycle(store, await temporal_engine(settings, outcomes), observer=observer)
    schedules = DispatchSchedules(client)
    build = settings.temporal_build_id
    return TemporalCrew.of(
        client,
        [replace(domain, config=await store.config(domain.item_type) or domain.config) for domain in domains],
        roles,
        dispatcher=DispatcherActivities(cycle.run, schedules, measure=measure),
        schedules=schedules,
        outcomes=outcomes,
        guard=guard,
        options=WorkerOptions(deployment=None if build is None else versioned(build)),
    )


def _temporal_security(settings: Settings) -> Security:
    from headgate.adapters.temporal.client import Security

    key = settings.temporal_api_key
    return Security(
        tls=settings.temporal_tls,
        api_key=None if key is None else key.get_secret_value(),
        ca_file=settings.temporal_ca_file,
        cert_file=settings.temporal_cert_file,
        key_file=settings.temporal_key_file,
    )


def _temporal_address(settings: Settings) -> str:
    if settings.temporal_address is None:
        raise ConfigurationError("temporal_address", "is not set; set HEADGATE_TEMPORAL_ADDRESS to host:port")
    if find_spec("temporalio") is None:
        raise ConfigurationError("temporal_address", "Temporal needs temporalio: pip install 'headgate[temporal]'")
    return settings.temporal_address


class Payments(NamedTuple):
    """The payments application of a settings tree."""

    intake: PaymentIntake | WorkflowIntake
    """Where payments are accepted: here, or by the init worker where there is Temporal."""
    desk: PaymentIntake
    """Shows and cancels."""
    store: PaymentStore
    domain: Domain
    """For whoever executes."""
    simulator: Simulator | None
    """The downstream, if no other is configured."""


@asynccontextmanager
async def payments(
    settings: Settings,
    slots: SlotScheduler,
    queue: DispatchQueue,
    *,
    execute: bool = False,
    tend: bool = False,
    notifications: Notifications | None = None,
    simulator: Simulator | None = None,
    observer: DispatchObserver | None = None,
) -> AsyncIterator[Payments]:
    """The payments application. With `execute`, payments are executed in this process; with Temporal, by its workers,
    wherever they are. With `tend`, this process takes payments from the Kafka topic, if there is Kafka, and gives
    back slots whose payment never came."""
    # Imported here: the bank's client and the check of accounts are extras.
    from headgate.apps.payments.intake import PaymentIntake, leave_to_dispatcher
    from headgate.apps.payments.notices import GatewayNotices, LoggedNotices
    from headgate.apps.payments.release import DirectRelease
    from headgate.apps.payments.rules import RuleBook, load_rules
    from headgate.apps.payments.steps import PaymentSteps

    wanted = settings.payments
    rules = RuleBook() if wanted.rules is None else load_rules(wanted.rules)
    async with AsyncExitStack() as opened:
        store = await _payment_store(settings, queue, opened)
        bank, simulator = _downstream(settings, simulator, opened)
        notifier: Notifier = LoggedNotices()
        if notifications is not None and rules.subscribers:
            notifier = GatewayNotices(notifications.intake.send, rules.subscribers)
        steps = PaymentSteps(store, bank, notifier)
        opened.push_async_callback(steps.close)
        domain = payment_domain(steps)
        await queue.define(domain.config)
        engine: WorkflowEngine | None = None
        if settings.temporal_address is not None:
            engine = await temporal_engine(settings, OutcomeReporter(queue.store))
        elif execute:
            engine = await opened.enter_async_context(
                local_dispatch(queue, [domain], observer=observer, limits=settings.dispatch)
            )
        direct = wanted.mode == "direct" and engine is not None
        release = DirectRelease(queue.store, engine) if direct and engine is not None else leave_to_dispatcher
        desk = PaymentIntake(store, slots, rules=rules, slot_config=wanted.config, release=release)
        opened.push_async_callback(desk.close)
        application = Payments(desk, desk, store, domain, simulator)
        if settings.temporal_address is not None:
            from headgate.adapters.temporal.client import connect
            from headgate.apps.payments.workflow_domain import on_temporal
            from headgate.apps.payments.workflow_intake import WorkflowIntake

            domain = on_temporal(domain, steps, desk)
            address, security = _temporal_address(settings), _temporal_security(settings)
            client = await connect(address, settings.temporal_namespace, lazy=True, security=security)
            intake = WorkflowIntake(client, domain.init_task_queue)
            application = application._replace(intake=intake, domain=domain)
        if tend:
            await opened.enter_async_context(_tending(settings, application))
        yield application


@asynccontextmanager
async def _tending(settings: Settings, application: Payments) -> AsyncIterator[None]:
    """Inside, payments are taken from their topic, and slots without a payment are given back now and then."""
    stop = asyncio.Event()
    tasks = [asyncio.create_task(application.desk.keep_reclaiming(stop))]
    async with AsyncExitStack() as opened:
        if settings.kafka_bootstrap is not None:
            # Imported here: the driver is an extra.
            from headgate.adapters.kafka.log import KafkaLog
            from headgate.apps.payments.topic import PaymentTopic, rejected_topic

            topic = settings.payments.topic
            messages = KafkaLog(settings.kafka_bootstrap, topics=(topic, rejected_topic(topic)))
            opened.push_async_callback(messages.close)
            tasks.append(asyncio.create_task(PaymentTopic(messages, topic, application.intake.initiate).run(stop)))
        try:
            yield
        finally:
            stop.set()
            await asyncio.gather(*tasks)


def payment_domain(steps: PaymentSteps) -> Domain:
    """Payments as dispatch knows them. Their own gate stands at the call, so no plan is named here."""
    return Domain(DispatchConfig(item_type=PAYMENT, dispatch_interval_secs=2), steps.execute, guarded=())


async def _payment_store(settings: Settings, queue: DispatchQueue, opened: AsyncExitStack) -> PaymentStore:
    if isinstance(queue.store, MemoryQueueStore):
        return MemoryPaymentStore(queue.store)
    shared = await database(settings.database_url, pool_size=settings.database_pool_size)
    opened.push_async_callback(shared.close)
    return SqlPaymentStore(shared)


def _downstream(
    settings: Settings, simulator: Simulator | None, opened: AsyncExitStack
) -> tuple[Downstream, Simulator | None]:
    """The bank behind its gate: the configured one, or a simulator in this process."""
    from headgate.admission.async_limiter import AsyncLimiter
    from headgate.apps.payments.downstream.client import HttpDownstream
    from headgate.apps.payments.downstream.gate import PermitGate, SharedGate, downstream_plan
    from headgate.apps.payments.downstream.simulator import Behaviour, Simulator, SimulatorTransport

    wanted = settings.payments
    gate: DownstreamGate
    if settings.redis_url is not None:
        permits = _redis_permits(settings.redis_url, wanted.tps)
        opened.push_async_callback(permits.close)
        gate = PermitGate(permits)
        opened.push_async_callback(gate.close)
    else:
        # Processes on one PostgreSQL share the limit through it. On SQLite one process executes.
        shared = settings.database_url if settings.database_url.startswith("postgres") else "memory://"
        limiter = AsyncLimiter(shared, plans=[downstream_plan(wanted.tps)], deadline=2.0)
        opened.push_async_callback(limiter.close)
        gate = SharedGate(limiter, wanted.tps)
    if wanted.downstream_url is not None:
        bank = HttpDownstream(wanted.downstream_url, gate)
    else:
        simulator = simulator or Simulator(Behaviour(tps=wanted.tps))
        bank = HttpDownstream("http://simulator", gate, transport=SimulatorTransport(simulator))
    opened.push_async_callback(bank.close)
    return bank, simulator


def _redis_permits(url: str, count: int) -> Permits:
    try:
        from headgate.adapters.redis.permits import RedisPermits
    except ModuleNotFoundError as error:
        raise ConfigurationError("redis_url", f"Redis needs {error.name}: pip install 'headgate[redis]'") from error
    return RedisPermits(url, count, timeout=2.0)


class Notifications(NamedTuple):
    """The SMS gateway of a settings tree."""

    intake: Intake
    analytics: SqlAnalyticsStore
    probes: dict[str, Callable[[], Awaitable[object]]]


@asynccontextmanager
async def notifications(
    settings: Settings, *, registry: CollectorRegistry | None = None
) -> AsyncIterator[Notifications]:
    """The gateway, with its sender running beside it if the settings say so; counted in `registry`, if given."""
    wanted = settings.sms
    observer = _notification_observer(registry)
    inline = wanted.sender == "inline" or (wanted.sender == "auto" and settings.kafka_bootstrap is None)
    async with _gateway_stores(settings) as (shared, log):
        probes: dict[str, Callable[[], Awaitable[object]]] = {}
        if settings.kafka_bootstrap is not None:
            probes["kafka"] = log.ping
        cache = None
        if settings.redis_url is not None:
            # Imported here: the driver is an extra.
            from headgate.adapters.redis.quotas import RedisQuotaCache

            publish_seconds = wanted.kafka_delivery_seconds + 10
            cache = RedisQuotaCache(
                settings.redis_url, timeout=wanted.redis_timeout_seconds, publish_seconds=publish_seconds
            )
        intake = Intake(
            SqlQuotaLedger(shared, topic=wanted.topic),
            log,
            cache=cache,
            topic=wanted.topic,
            events_topic=wanted.events_topic,
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
            told = asyncio.create_task(stop.wait())
            await asyncio.wait([told, *readers], return_when=asyncio.FIRST_COMPLETED)
            told.cancel()
        for reader in readers:
            reader.result()


async def prune_notifications(settings: Settings, before: datetime) -> dict[str, int]:
    """Forgets attempts, delivered message ids and idempotency keys from before a time; of the latter two only what
    has no effect any more."""
    async with _gateway_stores(settings) as (shared, _):
        before_ms = to_ms(before)
        return {
            "attempts": await SqlAnalyticsStore(shared).prune(before_ms),
            "deliveries": await SqlDeliveryLedger(shared).prune(before_ms),
            "keys": await SqlQuotaLedger(shared, topic=settings.sms.topic).prune(before_ms),
        }


@asynccontextmanager
async def _gateway_stores(settings: Settings) -> AsyncIterator[tuple[Database, MessageLog]]:
    shared = await database(embedded_url(settings), pool_size=settings.database_pool_size)
    log: MessageLog = SqlOutbox(shared)
    if settings.kafka_bootstrap is not None:
        # Imported here: the driver is an extra.
        from headgate.adapters.kafka.log import KafkaLog

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
        # Imported here: the HTTP client is an extra.
        from headgate.adapters.senders.webhook import WebhookSender

        sender = WebhookSender(settings.sms.webhook_url)
    stop = asyncio.Event()
    delivery = Delivery(
        lambda: log.read(settings.sms.topic, SENDER_GROUP),
        SqlDeliveryLedger(shared),
        sender,
        log,
        observer=observer,
        attempts=settings.sms.attempts,
    )
    reader = AttemptReader(lambda: log.read(settings.sms.events_topic, ANALYTICS_GROUP), SqlAnalyticsStore(shared))
    readers = [asyncio.create_task(delivery.run(stop)), asyncio.create_task(reader.run(stop))]
    for each in readers:
        each.add_done_callback(_told_if_failed)
    try:
        yield readers
    finally:
        stop.set()
        await asyncio.wait(readers)
        await sender.close()


def _told_if_failed(reader: asyncio.Task[None]) -> None:
    if not reader.cancelled() and (error := reader.exception()) is not None:
        _log.error("a reader of the message log ended", exc_info=error)


def _notification_observer(registry: CollectorRegistry | None) -> NotificationObserver | None:
    if registry is None:
        return None
    # Imported here: metrics come with the server, and the library works without it.
    from headgate.adapters.prometheus.notifications import NotificationMetrics

    return NotificationMetrics(registry)


class Admission(NamedTuple):
    """The limits of a settings tree."""

    limiter: AsyncLimiter
    plans: LivePlans


@asynccontextmanager
async def admission(settings: Settings, *, registry: CollectorRegistry | None = None) -> AsyncIterator[Admission]:
    """The limiter, with its plans from the database; counted in `registry`, if one is given."""
    observer = None
    if registry is not None:
        # Imported here: metrics come with the server, and the library works without it.
        from headgate.adapters.prometheus.admission import AdmissionMetrics

        observer = AdmissionMetrics(registry)
    wanted = settings.limits
    url = _limits_url(settings)
    in_memory = settings.database_url.startswith("memory:")
    database = Database("sqlite://" if in_memory else settings.database_url, pool_size=2)
    # Asking again is left to `stay_fresh`: an idle limiter would else decide its next call by old plans.
    documents = AsyncSqlPlans(database, refresh_every=None)
    deadline = wanted.deadline_seconds or (5.0 if url == settings.database_url else 0.5)
    limiter = AsyncLimiter(url, plans=documents, on_error=wanted.on_error, deadline=deadline, observer=observer)
    async with AsyncExitStack() as opened:
        opened.push_async_callback(documents.close)
        await opened.enter_async_context(limiter)
        plans = LivePlans(limiter, documents)
        await plans.refresh()
        freshness = asyncio.create_task(plans.stay_fresh(wanted.plans_ttl_seconds))
        try:
            yield Admission(limiter, plans)
        finally:
            freshness.cancel()
            await asyncio.gather(freshness, return_exceptions=True)


def _limits_url(settings: Settings) -> str:
    """Where a settings tree counts its limits. A database all processes share keeps one count for the service, its
    workers and the command line; one that only this process has, or that can't count limits, leaves memory."""
    if settings.limits.store == "auto" and settings.redis_url is not None:
        return settings.redis_url
    url = settings.database_url
    countable = url.partition(":")[0].partition("+")[0] in SQL_SCHEMES
    if settings.limits.store == "database" and not countable:
        raise ConfigurationError("limits.store", "this database can't count limits; use memory, or set redis_url")
    is_shared = countable and not url.startswith(("sqlite://:", "sqlite:///:")) and url != "sqlite://"
    return url if is_shared and settings.limits.store != "memory" else "memory://"


class DatabaseFacts(NamedTuple):
    """What a database says about itself."""

    dialect: str
    version: str
    now: datetime
    revision: str | None
    pending: list[str]
    """Migrations this version of headgate knows and the database lacks."""


async def migrate_up(url: str) -> list[str]:
    """Migrates a database and returns the names of what was applied."""
    opened = Database(url)
    try:
        return await migrate.upgrade(opened)
    finally:
        await opened.close()


async def database_facts(url: str) -> DatabaseFacts:
    """Asks a database about itself, changing nothing."""
    opened = Database(url)
    try:
        revision, pending = await migrate.status(opened)
        now = await opened.read(sql_tables.now)
        version = await opened.read(lambda connection: connection.dialect.server_version_info)
        return DatabaseFacts(opened.dialect, ".".join(map(str, version or ())), now, revision, pending)
    finally:
        await opened.close()


def migration_script(dialect: str) -> str:
    """The SQL that would make the schema on `dialect`, for a database administrator to review."""
    return migrate.script(dialect)


def plan_registry(url: str) -> SqlPlans:
    """The plans in a database, for a `Limiter` and for changing them."""
    return SqlPlans(url)


def async_plan_registry(url: str) -> AsyncSqlPlans:
    """The plans in a database, for an `AsyncLimiter` and for changing them."""
    return AsyncSqlPlans(Database(url, pool_size=2))
