"""The payments application: intake, bank, and maintenance."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.model import Claim
from paceline.dispatch.ports import DispatchObserver, NullObserver, WorkflowEngine
from paceline.dispatch.queue import DispatchQueue
from paceline.dispatch.registry import Domain
from paceline.dispatch.start_limits import StartLimits
from paceline.dispatch.worker.outcome_reporter import OutcomeReporter
from paceline.downstream.shared_breaker import SharedBreakerStore
from paceline.downstream.stores.sql_states import SqlStateStore
from paceline.durations import EPOCH
from paceline.errors import ConfigurationError
from paceline.extras import require
from paceline.server.apps import part
from paceline.server.settings import Settings, spelled
from paceline.server.wiring.database import embedded_url, shared_database
from paceline.slots.scheduler import SlotScheduler
from paceline_payments.feeds.accepting import Feeds
from paceline_payments.feeds.receiving import FeedReceiver
from paceline_payments.four_eyes import FeedsAlone
from paceline_payments.meter import PaymentMeter
from paceline_payments.model import ITEM_TYPE as PAYMENT
from paceline_payments.operations import PaymentOperations, StopExecutions
from paceline_payments.reconciliation.comparing import ReconciliationStore
from paceline_payments.settings import PaymentSettings
from paceline_payments.stores.encrypting import account_texts
from paceline_payments.stores.feeds import SqlFeedStore
from paceline_payments.stores.migrations import steps
from paceline_payments.stores.reconciliation import SqlReconciliationStore
from paceline_payments.stores.sql import SqlPaymentStore

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from paceline.downstream.ports import BreakerStore
    from paceline_payments.downstream.simulator import Simulator
    from paceline_payments.execution import PaymentExecution
    from paceline_payments.intake import PaymentIntake
    from paceline_payments.ports import Intake, Notifier, PaymentStore
    from paceline_payments.rules import RuleBook
    from paceline_payments.screening import Screener
    from paceline_sms.service.wiring.notifications import Notifications

from paceline.server.wiring.kafka import lag_observer
from paceline.server.wiring.queue import queue_encryption
from paceline.server.wiring.temporal import temporal_address, temporal_engine, temporal_security
from paceline.sql.engine import Database
from paceline.sql.migrate import current
from paceline_payments.service.wiring.downstream import (
    NAME,
    OperatorInquiry,
    open_downstream,
    open_downstream_observer,
    payment_observer,
)
from paceline_payments.service.wiring.rows import audit_key

log = logging.getLogger(__name__)


class Payments(NamedTuple):
    """The payments application of a settings tree."""

    intake: Intake
    """Accepts payments: here, or by the init worker where there is Temporal."""
    operations: PaymentOperations
    """Shows, lists, cancels and retries payments."""
    local_intake: PaymentIntake
    """Cancels slots without a payment."""
    feeds: Feeds
    """Accepts, shows and cancels feeds."""
    receiver: FeedReceiver
    statements: ReconciliationStore
    """The payments that a bank statement is compared with."""
    background: Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]]
    """Runs work that outlives its request; it ends with the application."""
    store: PaymentStore
    domain: Domain
    """For the process that executes payments."""
    simulator: Simulator | None
    """The downstream, if no other is configured."""
    breaker: BreakerStore
    """The state of the downstream's breaker."""
    four_eyes: bool
    """Whether a second person releases feeds and retries of payments in doubt."""


@asynccontextmanager
async def open_payments(
    settings: Settings,
    slots: SlotScheduler,
    queue: DispatchQueue,
    *,
    execute: bool = False,
    maintenance: bool = False,
    notifications: Notifications | None = None,
    simulator: Simulator | None = None,
    observer: DispatchObserver | None = None,
    registry: CollectorRegistry | None = None,
) -> AsyncIterator[Payments]:
    """The payments application. With `execute`, payments are executed in this process; with Temporal, by its workers,
    wherever they are. With `maintenance`, this process reads payments from the Kafka topic, if there is Kafka, and
    cancels slots without a payment."""
    require("the payments application", "payments")
    from paceline_payments.execution import PaymentExecution
    from paceline_payments.intake import DirectStart, PaymentIntake, StartPayments, leave_to_dispatcher
    from paceline_payments.notifier import GatewayNotifier, LogNotifier

    payment_settings = settings.section(PaymentSettings)
    rules = rule_source(settings)
    async with AsyncExitStack() as stack:
        watcher = await stack.enter_async_context(open_downstream_observer(settings, registry))
        store = await _payment_store(settings, stack)
        states = SqlStateStore(await _database(settings, stack), NAME)
        breaker_store = SharedBreakerStore(states)
        bank, simulator = await open_downstream(
            settings, queue, states, simulator, watcher, observer or NullObserver(), stack
        )
        notifier: Notifier = LogNotifier()
        if notifications is not None and rules().subscribers:
            notifier = GatewayNotifier(notifications.intake.send, rules().subscribers)
        screening = screener(settings)
        if screening is not None:
            stack.push_async_callback(screening.close)
        execution = PaymentExecution(store, bank, notifier, rules=rules, screening=screening, observer=watcher)
        stack.push_async_callback(execution.close)
        domain = payment_domain(execution)
        await queue.define(domain.config)
        engine: WorkflowEngine | None = None
        if settings.temporal_address is not None:
            engine = await temporal_engine(settings, OutcomeReporter(queue.store))
        elif execute:
            # Imported here: a command that submits a feed executes nothing, and starts sooner without it.
            from paceline.server.wiring.dispatch import local_dispatch

            engine = await stack.enter_async_context(
                local_dispatch(
                    queue,
                    [domain],
                    observer=observer,
                    limits=await stack.enter_async_context(StartLimits.open(embedded_url(settings))),
                    settings=settings.dispatch,
                    shutdown_seconds=settings.http.shutdown_seconds,
                )
            )
        direct = payment_settings.mode == "direct" and engine is not None
        start: StartPayments = leave_to_dispatcher
        if direct and engine is not None:
            start = DirectStart(queue.store, engine)
        local_intake = PaymentIntake(
            store,
            slots,
            rules=rules,
            screening=screening,
            slot_config=payment_settings.config,
            accounts=account_texts(queue_encryption(settings)),
            start=start,
        )
        stack.push_async_callback(local_intake.close)
        stop = _stop_executions(engine)

        async def outage() -> str | None:
            status = await breaker_store.read()
            return None if status is None else f"the downstream gets no calls: {status.reason}"

        four_eyes = payment_settings.four_eyes
        operations = PaymentOperations(store, OperatorInquiry(bank), stop, outage=outage, four_eyes=four_eyes)
        intake: Intake = local_intake
        if settings.temporal_address is not None:
            from paceline.dispatch.engines.temporal.client import connect
            from paceline_payments.workflows import WorkflowIntake, on_temporal

            domain = on_temporal(domain, execution, local_intake)
            address, security = temporal_address(settings), temporal_security(settings)
            encryption = queue_encryption(settings)
            client = await connect(
                address, settings.temporal_namespace, lazy=True, security=security, encryption=encryption
            )
            intake = WorkflowIntake(client, domain.init_task_queue)
        if registry is not None:
            from paceline_payments.service.metrics import CountedIntake, IntakeMetrics

            intake = CountedIntake(intake, IntakeMetrics(registry))
        if four_eyes:
            intake = FeedsAlone(intake)
        feed_store = await _feed_store(settings, stack)
        feeds = Feeds(feed_store, store, intake, stop, outage=outage)
        background = await stack.enter_async_context(_background())
        receiver = FeedReceiver(feed_store, hold=four_eyes)
        statements = await _reconciliation_store(settings, stack)
        application = Payments(
            intake,
            operations,
            local_intake,
            feeds,
            receiver,
            statements,
            background,
            store,
            domain,
            simulator,
            breaker_store,
            four_eyes,
        )
        if registry is not None:
            metering = asyncio.create_task(
                PaymentMeter(store, breaker_store, payment_settings.tps, payment_observer(registry), watcher).run()
            )
            stack.callback(metering.cancel)
        if maintenance:
            await stack.enter_async_context(_maintenance(settings, application, registry))
        yield application


@asynccontextmanager
async def _background() -> AsyncIterator[Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]]]:
    """Runs work that outlives its request; on exit it is cancelled. The next process resumes an interrupted feed."""
    running: set[asyncio.Task[Any]] = set()

    def run(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        running.add(task)
        task.add_done_callback(_log_failure)
        task.add_done_callback(running.discard)
        return task

    try:
        yield run
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def _log_failure(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("a feed was left, and will be taken up again: %s", error)


async def _feed_store(settings: Settings, stack: AsyncExitStack) -> SqlFeedStore:
    return SqlFeedStore(await _database(settings, stack), encryption=queue_encryption(settings))


async def _reconciliation_store(settings: Settings, stack: AsyncExitStack) -> ReconciliationStore:
    return SqlReconciliationStore(await _database(settings, stack))


def _stop_executions(engine: WorkflowEngine | None) -> StopExecutions:
    """Ends executions of cancelled payments that wait in the engine for their time."""

    async def stop(payment_ids: Sequence[str]) -> None:
        if engine is not None:
            await engine.stop([Claim(PAYMENT, payment_id, 0, 0) for payment_id in payment_ids])

    return stop


async def prune_payments(settings: Settings, before: datetime, now: datetime) -> int:
    """Deletes payments that ended before a time, except those that the duplicate rule may still need. Prune the queue
    first: payments with items are kept."""
    path = settings.section(PaymentSettings).rules
    if path is not None:
        from paceline_payments.rules import load_rules

        rules = load_rules(path)
        if rules.reject_duplicates:
            before = min(before, now - min(rules.duplicate_window, now - EPOCH))
    async with AsyncExitStack() as stack:
        store = await _payment_store(settings, stack)
        forgotten = await store.prune(before)
        await (await _feed_store(settings, stack)).prune(before)
        return forgotten


@asynccontextmanager
async def _maintenance(
    settings: Settings, application: Payments, registry: CollectorRegistry | None
) -> AsyncIterator[None]:
    """While the block runs, reads payments from their topic, resumes feeds without a live runner, and cancels slots
    without a payment periodically."""
    stop = asyncio.Event()
    tasks = [
        asyncio.create_task(application.local_intake.run_reclaiming(stop)),
        asyncio.create_task(application.feeds.run_resuming(stop)),
    ]
    async with AsyncExitStack() as stack:
        if settings.kafka_bootstrap is not None:
            # Imported here: the driver is an extra.
            from paceline.kafka.log import KafkaLog
            from paceline_payments.intake_topic import PaymentTopic, rejected_topic

            topic = settings.section(PaymentSettings).topic
            messages = KafkaLog(
                settings.kafka_bootstrap,
                topics=(topic, rejected_topic(topic)),
                settings=settings.kafka_config,
                report_lag=lag_observer(registry),
            )
            stack.push_async_callback(messages.close)
            tasks.append(asyncio.create_task(PaymentTopic(messages, topic, application.intake.initiate).run(stop)))
        try:
            yield
        finally:
            stop.set()
            await asyncio.gather(*tasks)


def rule_source(settings: Settings) -> Callable[[], RuleBook]:
    """The bank's rules as they are now; the file that the settings name is read again when it changes.

    Raises:
        ConfigurationError: The file has an error; the error names the setting.
    """
    from paceline_payments.rule_file import RuleFile
    from paceline_payments.rules import RuleBook, load_rules

    path = settings.section(PaymentSettings).rules
    if path is None:
        return RuleBook().itself

    texts = len(account_texts(queue_encryption(settings))(""))

    def load(file: Path) -> RuleBook:
        rules = load_rules(file)
        rules.slot_configs.check_room(texts)
        return rules

    try:
        return RuleFile(path, load)
    except ConfigurationError as error:
        raise ConfigurationError(spelled("payments", "rules"), str(error)) from None


def names_of_account(settings: Settings, account: str) -> list[str]:
    """The slot configs that the rules name after an account."""
    return rule_source(settings)().slot_configs.names_of(account, account_texts(queue_encryption(settings)))


def screener(settings: Settings) -> Screener | None:
    """The screening that the settings name.

    Raises:
        ConfigurationError: Its function can't be imported; the error names the setting.
    """
    from paceline_payments.screening import FunctionScreening, HttpScreening

    place = settings.section(PaymentSettings).screening
    if place is None:
        return None
    if place.startswith(("http://", "https://")):
        return HttpScreening(place)
    try:
        return FunctionScreening(part(place))
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(spelled("payments", "screening"), f"{place} can't be imported: {error}") from None


def payment_domain(execution: PaymentExecution) -> Domain:
    """The dispatch domain of payments. Their own rate gate limits the calls, so no plan is named here."""
    return Domain(DispatchConfig(item_type=PAYMENT, dispatch_interval_secs=2), execution.execute, guarded=())


async def _database(settings: Settings, stack: AsyncExitStack) -> Database:
    shared = await shared_database(settings, steps)
    stack.push_async_callback(shared.close)
    return shared


async def _payment_store(settings: Settings, stack: AsyncExitStack) -> PaymentStore:
    return await _sql_payment_store(settings, stack)


async def _sql_payment_store(settings: Settings, stack: AsyncExitStack) -> SqlPaymentStore:
    database = await _database(settings, stack)
    return SqlPaymentStore(database, encryption=queue_encryption(settings), audit_key=audit_key(settings))


async def verify_payments(settings: Settings) -> tuple[int, list[str]]:
    """How many payments there are, and those that differ from their histories; none before their tables are made."""
    async with AsyncExitStack() as stack:
        database = await shared_database(settings)
        stack.push_async_callback(database.close)
        if await database.read(current, steps) is None:
            return 0, []
        return await (await _sql_payment_store(settings, stack)).verify_history()
