"""The bank behind its hard limit, the kill switch and the breaker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from paceline.dispatch.model import Postponed
from paceline.dispatch.ports import DispatchObserver
from paceline.dispatch.queue import DispatchQueue
from paceline.downstream.ports import NullDownstreamObserver
from paceline.errors import ConfigurationError
from paceline.limits.rate_text import parse_rate
from paceline.server.rollups.observers import DownstreamRollups, with_rollups
from paceline.server.settings import Settings, spelled
from paceline.server.wiring.database import embedded_url
from paceline.server.wiring.rollups import open_recorder
from paceline_payments.model import ITEM_TYPE as PAYMENT
from paceline_payments.model import Payment
from paceline_payments.ports import DownstreamBusy
from paceline_payments.settings import PaymentSettings, key_lifetime, statuses

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from paceline.downstream.adaptation import Report
    from paceline.downstream.ports import DownstreamObserver, StateStore
    from paceline.downstream.state import Totals
    from paceline_payments.downstream.connection import DownstreamConnection
    from paceline_payments.downstream.simulator import Simulator
    from paceline_payments.meter import PaymentObserver
    from paceline_payments.ports import Downstream, InquiryResult

NAME = "payments"
"""Of the downstream, where its permits and its breaker are shared."""
INQUIRY_WAIT = 20.0
"""Seconds an operator's inquiry may wait for limit and breaker."""


class OperatorInquiry:
    """The `Inquiry` port for operators, with a timeout."""

    def __init__(self, bank: Downstream) -> None:
        self._bank = bank

    async def inquire(self, payment: Payment) -> InquiryResult:
        try:
            return await self._bank.inquire(payment, wait=INQUIRY_WAIT)
        except Postponed as postponed:
            raise DownstreamBusy(f"the downstream can't be called now: {postponed}") from postponed


@asynccontextmanager
async def open_downstream_observer(
    settings: Settings, registry: CollectorRegistry | None
) -> AsyncIterator[DownstreamObserver]:
    """Counts calls to the downstream for the console, and in `registry`, if one is given."""
    observer: DownstreamObserver = NullDownstreamObserver()
    if registry is not None:
        from paceline_payments.service.metrics import DownstreamMetrics

        observer = DownstreamMetrics(registry)
    async with open_recorder(settings) as recorder:
        yield with_rollups(observer, DownstreamRollups(recorder))


def payment_observer(registry: CollectorRegistry) -> PaymentObserver:
    """The metrics of payments by status, in a registry."""
    from paceline_payments.service.metrics import PaymentMetrics

    return PaymentMetrics(registry)


def downstream_connection(settings: Settings) -> DownstreamConnection:
    """The connection to the downstream.

    Raises:
        ConfigurationError: A setting can't work.
    """
    from paceline_payments.downstream.connection import DownstreamConnection

    chosen = settings.section(PaymentSettings)
    token, hmac_key = chosen.downstream_token, chosen.downstream_hmac_key
    with _settings_named():
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
            verdict=chosen.downstream_verdict,
            key_lifetime=key_lifetime(chosen.downstream_key_lifetime),
        )


def check_downstream(settings: Settings) -> None:
    """Checks the settings of the downstream.

    Raises:
        ConfigurationError: A setting can't work, or the file that it names can't be read.
    """
    with _settings_named():
        downstream_connection(settings).ssl_context()


@contextmanager
def _settings_named() -> Iterator[None]:
    """Translates errors, so that they name a setting as the user types it."""
    try:
        yield
    except ConfigurationError as error:
        section, dot, name = error.field.partition(".")
        raise ConfigurationError(spelled(section, name) if dot else error.field, error.problem) from None


async def open_downstream(
    settings: Settings,
    queue: DispatchQueue,
    states: StateStore,
    simulator: Simulator | None,
    observer: DownstreamObserver | None,
    dispatch_observer: DispatchObserver,
    stack: AsyncExitStack,
) -> tuple[Downstream, Simulator | None]:
    """The bank behind its limit, kill switch and breaker: the configured one, or a simulator in this process."""
    from paceline.dispatch.kill_switch import KillSwitch
    from paceline.downstream.breaker import DownstreamBreaker
    from paceline.downstream.observations import Observations
    from paceline.downstream.rate_gate import PermitRateGate, longest_hold, paced_policy, permit_policy
    from paceline.downstream.shared_breaker import SharedBreakerStore
    from paceline.downstream.state import reported
    from paceline.downstream.stores import open_permits
    from paceline_payments.downstream.client import HttpDownstream
    from paceline_payments.downstream.simulator import Behaviour, Simulator, SimulatorTransport

    chosen, connection = settings.section(PaymentSettings), downstream_connection(settings)
    policy, hold = permit_policy(chosen.tps, chosen.burst), longest_hold(connection.timeout)
    # Shared by all processes: in Redis, if there is one, else in the database.
    permits = await open_permits(settings.redis_url or embedded_url(settings), NAME, policy, hold)
    stack.push_async_callback(permits.close)
    gate = PermitRateGate(permits, call_timeout=connection.timeout, limit_at=chosen.limit_at)
    stack.push_async_callback(gate.close)

    async def is_on() -> bool:
        known, _ = await states.read()
        lower = chosen.tps if known.rate is None else min(float(parse_rate(known.rate).per_second), chosen.tps)
        gate.pace(policy if lower == chosen.tps else paced_policy(lower, chosen.burst))
        return known.paused is None and (await queue.config(PAYMENT)).enabled

    async def report(_: Report, totals: Totals, __: int) -> None:
        await states.change(lambda known, now_us: reported(known, totals, f"{chosen.tps}/second", None, now_us))

    observations = Observations(report, lambda: 0)
    stack.push_async_callback(observations.close)

    async def throw_switch(reason: str) -> None:
        await queue.pause(PAYMENT)

    breaker = None
    if chosen.breaker != "off":
        breaker = DownstreamBreaker(
            SharedBreakerStore(states),
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
        switch=KillSwitch(is_on, unread=lambda: dispatch_observer.switch_unread(PAYMENT)),
        breaker=breaker,
        observer=observer,
        observations=observations,
        transport=transport,
    )
    stack.push_async_callback(bank.close)
    return bank, simulator
