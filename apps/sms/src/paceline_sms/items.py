"""Messages as items of the queue: one item per message, of its id, in the lane of its user.

Urgent messages have an item type of their own: lanes take turns, and an urgent message must not wait for the turns of
a thousand users whose messages are not.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.dispatch.config import DispatchConfig, OnUnknown
from paceline.dispatch.model import EnqueueRequest
from paceline.durations import from_ms
from paceline_sms.model import Message, Priority

SMS = "SMS"
SMS_HIGH = "SMS_HIGH"
"""Messages of the priority `high`."""
ITEM_TYPES = (SMS, SMS_HIGH)
SMS_STATUS = "SMS_STATUS"
"""What became of messages, for the caller's webhook."""
PRIORITIES = {Priority.HIGH: 5, Priority.NORMAL: 5, Priority.LOW: 7}
"""In their user's lane."""
INTERVAL_SECONDS = 1
"""How often a sender looks for items of which no notification came."""
MAX_ATTEMPTS = 1000
"""With growing pauses, more than fit into the longest expiry."""


def request_of(message: Message, traceparent: str | None = None) -> EnqueueRequest:
    """The item of a message. Its context is the message as the log carries it."""
    return EnqueueRequest(
        SMS_HIGH if message.priority is Priority.HIGH else SMS,
        message.message_id,
        message.to_record_value(),
        None if message.send_at_ms is None else from_ms(message.send_at_ms),
        traceparent=traceparent,
        lane=str(message.user_id),
        priority=PRIORITIES[message.priority],
    )


def status_config() -> DispatchConfig:
    """The settings of events of messages. An event is retried for about half a day."""
    return DispatchConfig(
        item_type=SMS_STATUS,
        dispatch_interval_secs=INTERVAL_SECONDS,
        jitter_window_ms=0,
        retry_backoff_secs=1,
        max_dispatch_retries=24,
    )


def dispatch_configs(*, lease_seconds: float, hold_seconds: float, resends: bool) -> Sequence[DispatchConfig]:
    """The settings of both item types. One message of a user at a time is in flight, so that they arrive in order. With
    `resends`, what a sender that died had on the wire is sent again; else it is held."""
    return [
        DispatchConfig(
            item_type=item_type,
            dispatch_interval_secs=INTERVAL_SECONDS,
            jitter_window_ms=0,
            max_dispatch_retries=MAX_ATTEMPTS,
            lane_concurrency=1,
            stale_claim_threshold_mins=lease_seconds / 60,
            on_unknown=OnUnknown.RETRY if resends else OnUnknown.HOLD,
            hold_for_secs=hold_seconds,
        )
        for item_type in ITEM_TYPES
    ]
