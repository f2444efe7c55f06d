"""The functions that `app` names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import datetime
from urllib.parse import quote

from paceline.server.opened_apps import AppContext, OpenedApp
from paceline.server.settings import Settings
from paceline.server.shapes.search import Found
from paceline_sms.dead_letters import dead_letter_topic
from paceline_sms.service.wiring.notifications import Notifications, open_notifications, prune_notifications
from paceline_sms.service.wiring.sms_providers import PROVIDERS, provider_places
from paceline_sms.settings import SmsSettings


def message_extras(settings: Settings) -> Iterator[str]:
    """The extras that a command needs which opens the gateway."""
    if settings.kafka_bootstrap is not None:
        yield "kafka"
    yield from extras(settings)


def extras(settings: Settings) -> Iterator[str]:
    places = provider_places(settings)
    if any(provider in PROVIDERS for provider, place in places.items() if place is None):
        yield "sms"
    elif settings.section(SmsSettings).opensearch_url is not None:
        yield "httpx"  # which `sms` brings, too


def topics(settings: Settings) -> tuple[str, ...]:
    sms = settings.section(SmsSettings)
    return sms.topic, dead_letter_topic(sms.topic), sms.events_topic


async def prune(settings: Settings, before: datetime, _now: datetime) -> dict[str, int]:
    return await prune_notifications(settings, before)


@asynccontextmanager
async def open_app(context: AppContext) -> AsyncIterator[OpenedApp]:
    """The gateway in the service; a worker only queues messages, and `paceline worker sender` sends them."""
    settings, registry = context.settings, context.registry
    if context.roles is not None:
        settings = settings.with_section(settings.section(SmsSettings).model_copy(update={"sender": "worker"}))
        registry = None
    async with open_notifications(
        settings, queue=context.queue, dispatch_observer=context.observer, registry=registry
    ) as notifications:
        yield OpenedApp(parts=notifications, probes=notifications.probes)


async def find_messages(notifications: Notifications, text: str, limit: int) -> list[Found]:
    messages = await notifications.messages.beginning(text, limit)
    return [
        Found.of(
            kind="message",
            id=message.message_id,
            status=message.status.value,
            at=message.accepted_at,
            exact=message.message_id == text,
            href=f"/api/messages/{quote(message.message_id, safe='')}",
        )
        for message in messages
    ]
