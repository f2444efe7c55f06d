"""The rows of messages that move with their items. Loaded by everything that opens a queue, so it imports little."""

from __future__ import annotations

from functools import partial

from paceline.dispatch.ports import Follower
from paceline.durations import parse_duration
from paceline.server.settings import Settings
from paceline.server.wiring.queue import queue_encryption
from paceline_sms.dead_letters import dead_letter_topic
from paceline_sms.items import ITEM_TYPES
from paceline_sms.settings import SmsSettings
from paceline_sms.stores.following import MessageFollower
from paceline_sms.stores.status_statements import Tell, tell_nobody, tell_statuses


def followers(settings: Settings) -> dict[str, Follower]:
    """By item type."""
    expiry = parse_duration(settings.section(SmsSettings).expires_in)
    encryption = queue_encryption(settings)
    return {
        item_type: MessageFollower(
            item_type, expiry=expiry, copies=copies_topic(settings), encryption=encryption, tell=tell_of(settings)
        )
        for item_type in ITEM_TYPES
    }


def tell_of(settings: Settings) -> Tell:
    """Makes the events for the caller's webhook, if there is one."""
    if settings.section(SmsSettings).status_url is None:
        return tell_nobody
    return partial(tell_statuses, encryption=queue_encryption(settings))


def copies_topic(settings: Settings) -> str | None:
    """The topic to which dead letters are copied, through the outbox; None without Kafka."""
    if settings.kafka_bootstrap is None:
        return None
    return dead_letter_topic(settings.section(SmsSettings).topic)
