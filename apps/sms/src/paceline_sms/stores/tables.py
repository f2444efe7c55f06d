"""The tables of the SMS gateway: quotas, idempotency keys, messages, dead letters, opt-outs, attempts."""

from __future__ import annotations

import sqlalchemy as sa

from paceline.sql.schema import Instant, metadata

notification_quota = sa.Table(
    "paceline_notification_quota",
    metadata,
    sa.Column("user_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("rate_limit", sa.Integer, nullable=False),
    sa.Column("time_window", sa.Integer, nullable=False),
    sa.Column("current_count", sa.Integer, nullable=False),
    sa.Column("last_refresh_time", Instant, nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("algorithm", sa.String(32), nullable=False),
    sa.Column("unit", sa.String(16), nullable=False),
    sa.Column("state", sa.Text),
    sa.Column("phone", sa.String(128)),
    sa.Column("locale", sa.String(35)),
    sa.Column("zone", sa.String(64)),
    info={
        "about": "One row per user: what may be sent in time_window minutes, and was sent since last_refresh_time. "
        "What was leased to Redis is counted. version grows with each configuration. algorithm, unit and state "
        "are the limiter's; phone, locale and zone are the recipient's."
    },
)

notification_key = sa.Table(
    "paceline_notification_key",
    metadata,
    sa.Column("message_id", sa.String(64), primary_key=True),
    sa.Column("created_at", Instant, nullable=False),
    sa.Column("fingerprint", sa.String(64), nullable=False),
    sa.Index("paceline_notification_key_created_at_ix", "created_at"),
    info={"about": "Messages sent under an idempotency key; the id is made from user and key."},
)

notification_message = sa.Table(
    "paceline_notification_message",
    metadata,
    sa.Column("message_id", sa.String(64), primary_key=True),
    sa.Column("user_id", sa.Integer, nullable=False),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("segments", sa.Integer, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("accepted_at", Instant, nullable=False),
    sa.Column("expires_at", Instant),
    sa.Column("send_at", Instant),
    sa.Column("settled_at", Instant),
    sa.Column("delivered_at", Instant),
    sa.Column("provider", sa.String(64)),
    sa.Column("provider_id", sa.String(128)),
    sa.Column("reason", sa.String(255)),
    sa.Column("price", sa.String(32)),
    sa.Column("currency", sa.String(8)),
    sa.Column("unknown_provider", sa.String(64)),
    sa.Column("record", sa.Text),
    sa.Index("paceline_notification_message_settled_at_ix", "settled_at"),
    sa.Index("paceline_notification_message_status_accepted_at_ix", "status", "accepted_at"),
    sa.Index("paceline_notification_message_provider_id_ix", "provider_id"),
    sa.Index("paceline_notification_message_status_expires_at_ix", "status", "expires_at"),
    info={
        "about": "One row per message: QUEUED, then SENT, DELIVERED, FAILED, EXPIRED, CANCELLED or UNKNOWN. Its item "
        "in the dispatch queue has its id, and its text. unknown_provider may have taken a message that is queued "
        "again. record is what its topic got, with the text, until there is an item."
    },
)

notification_dead_letter = sa.Table(
    "paceline_notification_dead_letter",
    metadata,
    sa.Column("letter_id", sa.String(64), primary_key=True),
    sa.Column("message_id", sa.String(64)),
    sa.Column("message_key", sa.String(128), nullable=False),
    sa.Column("message_value", sa.Text, nullable=False),
    sa.Column("sha256", sa.String(64), nullable=False),
    sa.Column("whole", sa.Boolean, nullable=False),
    sa.Column("reason", sa.String(255), nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("dead_at", Instant, nullable=False),
    sa.Index("paceline_notification_dead_letter_dead_at_ix", "dead_at", "letter_id"),
    sa.Index("paceline_notification_dead_letter_message_id_ix", "message_id"),
    info={
        "about": "Messages that were refused or expired, and records that could not be read, until an operator "
        "redrives or drops them. Of a record, message_value is a JSON string, truncated if it was very long, and "
        "sha256 is of the whole; the text of a message is in its item."
    },
)

notification_optout = sa.Table(
    "paceline_notification_optout",
    metadata,
    sa.Column("lookup", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("phone", sa.String(128), nullable=False),
    sa.Column("reason", sa.String(255), nullable=False),
    sa.Column("created_at", Instant, nullable=False),
    info={"about": "Numbers that have opted out (STOP). lookup is the number, or its keyed hash."},
)

notification_inbound = sa.Table(
    "paceline_notification_inbound",
    metadata,
    sa.Column("inbound_id", sa.String(200), primary_key=True),
    sa.Column("phone", sa.String(128), nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("received_at", Instant, nullable=False),
    sa.Index("paceline_notification_inbound_received_at_ix", "received_at"),
    info={
        "about": "Messages that people sent to us, without their texts: the provider's name and id, and the word "
        "(STOP, START, HELP or OTHER)."
    },
)

notification_attempt = sa.Table(
    "paceline_notification_attempt",
    metadata,
    sa.Column("event_id", sa.String(64), primary_key=True),
    sa.Column("user_id", sa.Integer, nullable=False),
    sa.Column("outcome", sa.String(16), nullable=False),
    sa.Column("minute", Instant, nullable=False),
    sa.Column("attempted_at", Instant, nullable=False),
    sa.Index("paceline_notification_attempt_minute_ix", "minute"),
    sa.Index("paceline_notification_attempt_user_id_minute_ix", "user_id", "minute"),
    info={"about": "Every attempt to send, for analytics."},
)
