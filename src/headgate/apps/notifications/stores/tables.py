"""The tables of the SMS gateway: quotas, idempotency keys, deliveries, attempts."""

from __future__ import annotations

import sqlalchemy as sa

from headgate.sql.schema import Instant, metadata

notification_quota = sa.Table(
    "headgate_notification_quota",
    metadata,
    sa.Column("user_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("rate_limit", sa.Integer, nullable=False),
    sa.Column("time_window", sa.Integer, nullable=False),
    sa.Column("current_count", sa.Integer, nullable=False),
    sa.Column("last_refresh_time", Instant, nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("generation", sa.BigInteger, nullable=False),
    info={
        "about": "One row a user: what may be sent in time_window minutes, and what was sent since last_refresh_time. "
        "version grows with each configuration, generation whenever the SQL path counts."
    },
)

notification_key = sa.Table(
    "headgate_notification_key",
    metadata,
    sa.Column("message_id", sa.String(64), primary_key=True),
    sa.Column("created_at", Instant, nullable=False),
    sa.Index("headgate_notification_key_created_at_ix", "created_at"),
    info={"about": "Messages sent under an idempotency key; the id is made from user and key."},
)

notification_delivery = sa.Table(
    "headgate_notification_delivery",
    metadata,
    sa.Column("message_id", sa.String(64), primary_key=True),
    sa.Column("user_id", sa.Integer, nullable=False),
    sa.Column("sent", sa.Boolean, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("settled_at", Instant, nullable=False),
    sa.Index("headgate_notification_delivery_settled_at_ix", "settled_at"),
    info={"about": "Messages the sender has dealt with: sent, or dead-lettered. A second delivery is suppressed."},
)

notification_attempt = sa.Table(
    "headgate_notification_attempt",
    metadata,
    sa.Column("event_id", sa.String(64), primary_key=True),
    sa.Column("user_id", sa.Integer, nullable=False),
    sa.Column("outcome", sa.String(16), nullable=False),
    sa.Column("minute", Instant, nullable=False),
    sa.Column("attempted_at", Instant, nullable=False),
    sa.Index("headgate_notification_attempt_minute_ix", "minute"),
    sa.Index("headgate_notification_attempt_user_id_minute_ix", "user_id", "minute"),
    info={"about": "Every attempt to send, for analytics."},
)
