"""The payments application: intake, bank, and what tends them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from headgate.apps.payments.model import ITEM_TYPE as PAYMENT
from headgate.apps.payments.model import Payment
from headgate.apps.payments.operations import PaymentOperations, StopExecutions
from headgate.apps.payments.ports import BreakerOpen, DownstreamBusy
from headgate.apps.payments.stores.sql import SqlPaymentStore
from headgate.apps.payments.stores.sql_breaker import SqlBreakerStore
from headgate.dispatch.config import DispatchConfig
from headgate.dispatch.model import Claim, Postponed
from headgate.dispatch.outcome_reporter import OutcomeReporter
from headgate.dispatch.ports import DispatchObserver, WorkflowEngine
from headgate.dispatch.queue import DispatchQueue
from headgate.dispatch.registry import Domain
from headgate.durations import EPOCH
from headgate.errors import ConfigurationError
from headgate.extras import require
from headgate.server.settings import Settings, spelled, statuses
from headgate.slots.scheduler import SlotScheduler

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from headgate.apps.payments.downstream.connection import DownstreamConnection
    from headgate.apps.payments.downstream.simulator import Simulator
    from headgate.apps.payments.execution import PaymentExecution
    from headgate.apps.payments.intake import PaymentIntake
    from headgate.apps.payments.ports import (
        BreakerStore,
        Downstream,
        DownstreamObserver,
        InquiryResult,
        Notifier,
        PaymentStore,
        PermitStore,
    )
    from headgate.apps.payments.rules import RuleBook
    from headgate.apps.payments.workflows import WorkflowIntake


from headgate.server.wiring.database import embedded_url
from headgate.server.wiring.dispatch import local_dispatch
from headgate.server.wiring.notifications import Notifications
from headgate.server.wiring.telemetry import get_tracer
from headgate.server.wiring.temporal import temporal_address, temporal_engine, temporal_security
from headgate.sql.databases import database
from headgate.sql.engine import Database

INQUIRY_WAIT = 20.0
"""Seconds an operator's inquiry may wait for limit and breaker."""
PERMIT_TIMEOUT = 2.0
"""Seconds in which the store of permits must answer; no call is made meanwhile."""


class Payments(NamedTuple):
    """The payments application of a settings tree."""

    intake: PaymentIntake | WorkflowIntake
    """Where payments are accepted: here, or by the init worker where there is Temporal."""
    operations: PaymentOperations
    """Shows, lists, cancels and retries payments."""
    local_intake: PaymentIntake
    """Gives back slots without a payment."""
    store: PaymentStore
    domain: Domain
    """For the process that executes payments."""
    simulator: Simulator | None
    """The downstream, if no other is configured."""
    breaker: BreakerStore
    """The state of the downstream's breaker."""


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
    wherever they are. With `maintenance`, this process takes payments from the Kafka topic, if there is Kafka, and
    gives back slots whose payment never came."""
    require("the payments application", "payments")
    from headgate.apps.payments.execution import PaymentExecution
    from headgate.apps.payments.intake import DirectStart, PaymentIntake, StartPayments, leave_to_dispatcher
    from headgate.apps.payments.notifier import GatewayNotifier, LogNotifier

    payment_settings, tracer = settings.payments, get_tracer(settings)
    rules = rule_book(settings)
    watcher = downstream_observer(registry)
    async with AsyncExitStack() as stack:
        store = await _payment_store(settings, stack)
        breaker_store = SqlBreakerStore(await _database(settings, stack))
        bank, simulator = await _downstream(settings, queue, breaker_store, simulator, watcher, stack)
        notifier: Notifier = LogNotifier()
        if notifications is not None and rules.subscribers:
            notifier = GatewayNotifier(notifications.intake.send, rules.subscribers)
        execution = PaymentExecution(store, bank, notifier, observer=watcher)
        stack.push_async_callback(execution.close)
        domain = payment_domain(execution)
        await queue.define(domain.config)
        engine: WorkflowEngine | None = None
        if settings.temporal_address is not None:
            engine = await temporal_engine(settings, OutcomeReporter(queue.store))
        elif execute:
            engine = await stack.enter_async_context(
                local_dispatch(queue, [domain], observer=observer, limits=settings.dispatch, tracer=tracer)
            )
        direct = payment_settings.mode == "direct" and engine is not None
        start: StartPayments = leave_to_dispatcher
        if direct and engine is not None:
            start = DirectStart(queue.store, engine, tracer=tracer)
        local_intake = PaymentIntake(
            store, slots, rules=rules, slot_config=payment_settings.config, start=start, tracer=tracer
        )
        stack.push_async_callback(local_intake.close)
        operations = PaymentOperations(store, _OperatorInquiry(bank), _stop_executions(engine))
        application = Payments(local_intake, operations, local_intake, store, domain, simulator, breaker_store)
        if settings.temporal_address is not None:
            from headgate.apps.payments.workflows import WorkflowIntake, on_temporal
            from headgate.dispatch.engines.temporal.client import connect

            domain = on_temporal(domain, execution, local_intake)
            address, security = temporal_address(settings), temporal_security(settings)
            client = await connect(address, settings.temporal_namespace, lazy=True, security=security)
            intake = WorkflowIntake(client, domain.init_task_queue, tracer=tracer)
            application = application._replace(intake=intake, domain=domain)
        if maintenance:
            await stack.enter_async_context(_maintenance(settings, application))
        yield application


class _OperatorInquiry:
    """The `Inquiry` port for operators, who don't wait for long."""

    def __init__(self, bank: Downstream) -> None:
        self._bank = bank

    async def inquire(self, payment: Payment) -> InquiryResult:
        try:
            return await self._bank.inquire(payment, wait=INQUIRY_WAIT)
        except Postponed as postponed:
            raise DownstreamBusy(f"the downstream can't be asked now: {postponed}") from postponed


def _stop_executions(engine: WorkflowEngine | None) -> StopExecutions:
    """Ends executions of cancelled payments that wait in the engine for their time."""

    async def stop(payment_ids: Sequence[str]) -> None:
        if engine is not None:
            await engine.stop([Claim(PAYMENT, payment_id, 0, 0) for payment_id in payment_ids])

    return stop


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
    tasks = [asyncio.create_task(application.local_intake.run_reclaiming(stop))]
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


async def _database(settings: Settings, stack: AsyncExitStack) -> Database:
    shared = await database(embedded_url(settings), pool_size=settings.database_pool_size)
    stack.push_async_callback(shared.close)
    return shared


async def _payment_store(settings: Settings, stack: AsyncExitStack) -> PaymentStore:
    return SqlPaymentStore(await _database(settings, stack))


async def check_breaker(breaker: BreakerStore) -> None:
    """Returns if the downstream's breaker is closed.

    Raises:
        BreakerOpen: It is open.
    """
    status = await breaker.read()
    if status is not None:
        raise BreakerOpen(status.reason)


def downstream_observer(registry: CollectorRegistry | None) -> DownstreamObserver | None:
    """Counts calls to the downstream into a registry."""
    if registry is None:
        return None
    from headgate.server.metrics.payments import DownstreamMetrics

    return DownstreamMetrics(registry)


def downstream_connection(settings: Settings) -> DownstreamConnection:
    """How the downstream is called.

    Raises:
        ConfigurationError: A setting can't work.
    """
    from headgate.apps.payments.downstream.connection import DownstreamConnection

    chosen = settings.payments
    token, hmac_key = chosen.downstream_token, chosen.downstream_hmac_key
    return DownstreamConnection(
        chosen.downstream_url or "http://simulator",
        token=None if token is None else token.get_secret_value(),
        token_file=chosen.downstream_token_file,
        headers=chosen.downstream_headers,
        client_cert=chosen.downstream_client_cert,
        client_key=chosen.downstream_client_key,
        hmac_key=None if hmac_key is None else hmac_key.get_secret_value(),
        timeout=chosen.downstream_timeout,
        attempts=chosen.downstream_attempts,
        inquiry_path=chosen.downstream_inquiry_path,
        rejected_statuses=statuses(chosen.downstream_rejected_statuses),
    )


async def _downstream(
    settings: Settings,
    queue: DispatchQueue,
    breaker_store: BreakerStore,
    simulator: Simulator | None,
    observer: DownstreamObserver | None,
    stack: AsyncExitStack,
) -> tuple[Downstream, Simulator | None]:
    """The bank behind its limit, kill switch and breaker: the configured one, or a simulator in this process."""
    from headgate.apps.payments.downstream.breaker import DownstreamBreaker
    from headgate.apps.payments.downstream.client import HttpDownstream
    from headgate.apps.payments.downstream.rate_gate import PermitRateGate
    from headgate.apps.payments.downstream.simulator import Behaviour, Simulator, SimulatorTransport
    from headgate.dispatch.kill_switch import KillSwitch

    chosen, connection = settings.payments, downstream_connection(settings)
    permits = await _permits(settings, connection.timeout, stack)
    stack.push_async_callback(permits.close)
    gate = PermitRateGate(permits, call_timeout=connection.timeout, limit_at=chosen.limit_at)
    stack.push_async_callback(gate.close)

    async def is_on() -> bool:
        return (await queue.config(PAYMENT)).enabled

    async def throw_switch(reason: str) -> None:
        await queue.pause(PAYMENT)

    breaker = None
    if chosen.breaker != "off":
        breaker = DownstreamBreaker(
            breaker_store,
            call_timeout=connection.timeout,
            throw_switch=throw_switch if chosen.breaker == "pause" else None,
            observer=observer,
        )
    transport = None
    if chosen.downstream_url is None:
        simulator = simulator or Simulator(Behaviour(tps=chosen.tps))
        transport = SimulatorTransport(simulator)
    bank = HttpDownstream(
        connection,
        gate,
        switch=KillSwitch(is_on),
        breaker=breaker,
        observer=observer,
        transport=transport,
        tracer=get_tracer(settings),
    )
    stack.push_async_callback(bank.close)
    return bank, simulator


async def _permits(settings: Settings, call_timeout: float, stack: AsyncExitStack) -> PermitStore:
    """The permits that all processes share: in Redis, if there is one, else in the database."""
    from headgate.apps.payments.downstream.rate_gate import longest_hold, permit_policy

    chosen = settings.payments
    policy, hold = permit_policy(chosen.tps, chosen.burst, chosen.limit_at), longest_hold(call_timeout)
    if settings.redis_url is not None:
        from headgate.apps.payments.stores.redis import RedisPermitStore

        return RedisPermitStore(settings.redis_url, policy, longest_hold=hold, timeout=PERMIT_TIMEOUT)
    from headgate.apps.payments.stores.sql_permits import SqlPermitStore

    shared = await database(embedded_url(settings), pool_size=settings.database_pool_size)
    return SqlPermitStore(shared, policy, longest_hold=hold, timeout=PERMIT_TIMEOUT)
