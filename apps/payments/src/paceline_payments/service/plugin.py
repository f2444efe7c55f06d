"""The functions that `app` names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import datetime

from paceline.downstream.ports import BreakerOpen, BreakerStore
from paceline.server.opened_apps import AppContext, OpenedApp
from paceline.server.settings import Settings
from paceline_payments.intake_topic import rejected_topic
from paceline_payments.service.wiring.downstream import check_downstream
from paceline_payments.service.wiring.payments import (
    open_payments,
    prune_payments,
    rule_source,
    screener,
    verify_payments,
)
from paceline_payments.settings import PaymentSettings

DOWNSTREAM = "downstream"
"""The downstream's name in `/health/ready` and among the breakers."""


def check(settings: Settings) -> None:
    """Checks the downstream's settings, the rules and the screening."""
    check_downstream(settings)
    rule_source(settings)
    screener(settings)


def extras(settings: Settings) -> Iterator[str]:
    chosen = settings.section(PaymentSettings)
    if chosen.downstream_url is not None or chosen.rules is not None:
        yield "payments"


def topics(settings: Settings) -> tuple[str, str]:
    inbound = settings.section(PaymentSettings).topic
    return inbound, rejected_topic(inbound)


async def prune(settings: Settings, before: datetime, now: datetime) -> dict[str, int]:
    return {"payments": await prune_payments(settings, before, now)}


async def verify_audit(settings: Settings) -> tuple[int, list[str]]:
    return await verify_payments(settings)


@asynccontextmanager
async def open_app(context: AppContext) -> AsyncIterator[OpenedApp]:
    """The application in the service, which executes payments itself unless workers do, or in a worker."""
    settings, chosen = context.settings, context.settings.section(PaymentSettings)
    if context.roles is None:
        executes = chosen.worker == "inline" or (chosen.worker == "auto" and settings.temporal_address is None)
        maintains = executes
    else:
        executes, maintains = False, settings.temporal_address is None or "init" in context.roles
    async with open_payments(
        settings,
        context.slots,
        context.queue,
        execute=executes,
        maintenance=maintains,
        notifications=context.parts_of("sms"),
        observer=context.observer,
        registry=context.registry,
    ) as payments:
        probes = {} if chosen.downstream_url is None else {DOWNSTREAM: lambda: check_breaker(payments.breaker)}
        yield OpenedApp(
            parts=payments,
            domains=[payments.domain],
            probes=probes,
            breakers={DOWNSTREAM: payments.breaker},
            call_limits={DOWNSTREAM: chosen.tps},
        )


async def check_breaker(breaker: BreakerStore) -> None:
    """Returns if the downstream's breaker is closed.

    Raises:
        BreakerOpen: It is open.
    """
    status = await breaker.read()
    if status is not None:
        raise BreakerOpen(status.reason)
