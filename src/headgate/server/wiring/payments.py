"""The payments application: intake, bank, and what tends them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from headgate.apps.payments.model import ITEM_TYPE as PAYMENT
from headgate.apps.payments.stores.sql import SqlPaymentStore
from headgate.dispatch.config import DispatchConfig
from headgate.dispatch.outcome_reporter import OutcomeReporter
from headgate.dispatch.ports import DispatchObserver, WorkflowEngine
from headgate.dispatch.queue import DispatchQueue
from headgate.dispatch.registry import Domain
from headgate.durations import EPOCH
from headgate.errors import ConfigurationError
from headgate.extras import require
from headgate.limits.limiter import AsyncLimiter
from headgate.server.settings import Settings, spelled
from headgate.slots.scheduler import SlotScheduler

if TYPE_CHECKING:
    from headgate.apps.payments.downstream.simulator import Simulator
    from headgate.apps.payments.execution import PaymentExecution
    from headgate.apps.payments.intake import PaymentIntake
    from headgate.apps.payments.ports import Downstream, Notifier, PaymentStore, PermitStore, RateGate
    from headgate.apps.payments.rules import RuleBook
    from headgate.apps.payments.workflows import WorkflowIntake


from headgate.server.wiring.database import embedded_url
from headgate.server.wiring.dispatch import local_dispatch
from headgate.server.wiring.notifications import Notifications
from headgate.server.wiring.temporal import temporal_address, temporal_engine, temporal_security
from headgate.sql.databases import database


class Payments(NamedTuple):
    """The payments application of a settings tree."""

    intake: PaymentIntake | WorkflowIntake
    """Where payments are accepted: here, or by the init worker where there is Temporal."""
    queries: PaymentIntake
    """Shows and cancels payments; gives back slots without a payment."""
    store: PaymentStore
    domain: Domain
    """For the process that executes payments."""
    simulator: Simulator | None
    """The downstream, if no other is configured."""


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
) -> AsyncIterator[Payments]:
    """The payments application. With `execute`, payments are executed in this process; with Temporal, by its workers,
    wherever they are. With `maintenance`, this process takes payments from the Kafka topic, if there is Kafka, and
    gives back slots whose payment never came."""
    require("the payments application", "payments")
    from headgate.apps.payments.execution import PaymentExecution
    from headgate.apps.payments.intake import DirectStart, PaymentIntake, StartPayments, leave_to_dispatcher
    from headgate.apps.payments.notifier import GatewayNotifier, LogNotifier

    payment_settings = settings.payments
    rules = rule_book(settings)
    async with AsyncExitStack() as stack:
        store = await _payment_store(settings, stack)
        bank, simulator = _downstream(settings, simulator, stack)
        notifier: Notifier = LogNotifier()
        if notifications is not None and rules.subscribers:
            notifier = GatewayNotifier(notifications.intake.send, rules.subscribers)
        execution = PaymentExecution(store, bank, notifier)
        stack.push_async_callback(execution.close)
        domain = payment_domain(execution)
        await queue.define(domain.config)
        engine: WorkflowEngine | None = None
        if settings.temporal_address is not None:
            engine = await temporal_engine(settings, OutcomeReporter(queue.store))
        elif execute:
            engine = await stack.enter_async_context(
                local_dispatch(queue, [domain], observer=observer, limits=settings.dispatch)
            )
        direct = payment_settings.mode == "direct" and engine is not None
        start: StartPayments = leave_to_dispatcher
        if direct and engine is not None:
            start = DirectStart(queue.store, engine)
        local_intake = PaymentIntake(store, slots, rules=rules, slot_config=payment_settings.config, start=start)
        stack.push_async_callback(local_intake.close)
        application = Payments(local_intake, local_intake, store, domain, simulator)
        if settings.temporal_address is not None:
            from headgate.apps.payments.workflows import WorkflowIntake, on_temporal
            from headgate.dispatch.engines.temporal.client import connect

            domain = on_temporal(domain, execution, local_intake)
            address, security = temporal_address(settings), temporal_security(settings)
            client = await connect(address, settings.temporal_namespace, lazy=True, security=security)
            intake = WorkflowIntake(client, domain.init_task_queue)
            application = application._replace(intake=intake, domain=domain)
        if maintenance:
            await stack.enter_async_context(_maintenance(settings, application))
        yield application


async def prune_payments(settings: Settings, before: datetime, now: datetime) -> int:
    """Forgets payments that are over since before a time; none that a rule against duplicates may still have to find.
    Prune the queue first: what stands there is kept."""
    if settings.payments.rules is not None:
        from headgate.apps.payments.rules import load_rules

        rules = load_rules(settings.payments.rules)
        if rules.reject_duplicates:
            before = min(before, now - min(rules.duplicate_window, now - EPOCH))
    async with AsyncExitStack() as stack:
        store = await _payment_store(settings, stack)
        return await store.prune(before)


@asynccontextmanager
async def _maintenance(settings: Settings, application: Payments) -> AsyncIterator[None]:
    """Inside, payments are taken from their topic, and slots without a payment are given back now and then."""
    stop = asyncio.Event()
    tasks = [asyncio.create_task(application.queries.run_reclaiming(stop))]
    async with AsyncExitStack() as stack:
        if settings.kafka_bootstrap is not None:
            # Imported here: the driver is an extra.
            from headgate.apps.payments.intake_topic import PaymentTopic, rejected_topic
            from headgate.kafka.log import KafkaLog

            topic = settings.payments.topic
            messages = KafkaLog(settings.kafka_bootstrap, topics=(topic, rejected_topic(topic)))
            stack.push_async_callback(messages.close)
            tasks.append(asyncio.create_task(PaymentTopic(messages, topic, application.intake.initiate).run(stop)))
        try:
            yield
        finally:
            stop.set()
            await asyncio.gather(*tasks)


def rule_book(settings: Settings) -> RuleBook:
    """The bank's rules, as the settings name them; `ConfigurationError` says which setting to look at."""
    from headgate.apps.payments.rules import RuleBook, load_rules

    if settings.payments.rules is None:
        return RuleBook()
    try:
        return load_rules(settings.payments.rules)
    except ConfigurationError as error:
        raise ConfigurationError(spelled("payments", "rules"), str(error)) from None


def payment_domain(execution: PaymentExecution) -> Domain:
    """Payments as dispatch knows them. Their own rate gate limits the calls, so no plan is named here."""
    return Domain(DispatchConfig(item_type=PAYMENT, dispatch_interval_secs=2), execution.execute, guarded=())


async def _payment_store(settings: Settings, stack: AsyncExitStack) -> PaymentStore:
    shared = await database(embedded_url(settings), pool_size=settings.database_pool_size)
    stack.push_async_callback(shared.close)
    return SqlPaymentStore(shared)


def _downstream(
    settings: Settings, simulator: Simulator | None, stack: AsyncExitStack
) -> tuple[Downstream, Simulator | None]:
    """The bank behind its rate gate: the configured one, or a simulator in this process."""
    from headgate.apps.payments.downstream.client import HttpDownstream
    from headgate.apps.payments.downstream.rate_gate import PermitRateGate, SharedRateGate, downstream_plan
    from headgate.apps.payments.downstream.simulator import Behaviour, Simulator, SimulatorTransport

    payment_settings = settings.payments
    gate: RateGate
    if settings.redis_url is not None:
        permits = _redis_permits(settings.redis_url, payment_settings.tps)
        stack.push_async_callback(permits.close)
        gate = PermitRateGate(permits)
        stack.push_async_callback(gate.close)
    else:
        # Processes on one PostgreSQL share the limit through it. On SQLite one process executes.
        shared = settings.database_url if settings.database_url.startswith("postgres") else "memory://"
        limiter = AsyncLimiter(shared, plans=[downstream_plan(payment_settings.tps)], deadline=2.0)
        stack.push_async_callback(limiter.close)
        gate = SharedRateGate(limiter, payment_settings.tps)
    if payment_settings.downstream_url is not None:
        bank = HttpDownstream(payment_settings.downstream_url, gate)
    else:
        simulator = simulator or Simulator(Behaviour(tps=payment_settings.tps))
        transport = SimulatorTransport(simulator)
        bank = HttpDownstream("http://simulator", gate, transport=transport)
    stack.push_async_callback(bank.close)
    return bank, simulator


def _redis_permits(url: str, count: int) -> PermitStore:
    from headgate.apps.payments.stores.redis import RedisPermitStore

    return RedisPermitStore(url, count, timeout=2.0)
