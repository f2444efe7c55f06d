"""Notifications: quotas, idempotency keys, deliveries, attempts; the outbox."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from paceline.sql.schema import Instant

revision = "0004_notifications"
down_revision = "0003_limits"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "paceline_notification_quota",
        sa.Column("user_id", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("rate_limit", sa.Integer, nullable=False),
        sa.Column("time_window", sa.Integer, nullable=False),
        sa.Column("current_count", sa.Integer, nullable=False),
        sa.Column("last_refresh_time", Instant, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("user_id", name="paceline_notification_quota_pk"),
    )
    op.create_table(
        "paceline_notification_key",
        sa.Column("message_id", sa.String(64), nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("message_id", name="paceline_notification_key_pk"),
    )
    op.create_index("paceline_notification_key_created_at_ix", "paceline_notification_key", ["created_at"])
    op.create_table(
        "paceline_notification_delivery",
        sa.Column("message_id", sa.String(64), nullable=False),
        sa.Column("user_id", sa.Integer, nullable=False),
        sa.Column("sent", sa.Boolean, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("settled_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("message_id", name="paceline_notification_delivery_pk"),
    )
    op.create_index("paceline_notification_delivery_settled_at_ix", "paceline_notification_delivery", ["settled_at"])
    op.create_table(
        "paceline_notification_attempt",
        sa.Column("event_id", sa.String(64), nullable=False),
        sa.Column("user_id", sa.Integer, nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("minute", Instant, nullable=False),
        sa.Column("attempted_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("event_id", name="paceline_notification_attempt_pk"),
    )
    op.create_index("paceline_notification_attempt_minute_ix", "paceline_notification_attempt", ["minute"])
    op.create_index(
        "paceline_notification_attempt_user_id_minute_ix", "paceline_notification_attempt", ["user_id", "minute"]
    )
    op.create_table(
        "paceline_outbox",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), sa.Identity(), nullable=False),
        sa.Column("topic", sa.String(128), nullable=False),
        sa.Column("message_key", sa.String(128), nullable=False),
        sa.Column("message_value", sa.Text, nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("id", name="paceline_outbox_pk"),
        sqlite_autoincrement=True,
    )
    op.create_index("paceline_outbox_topic_id_ix", "paceline_outbox", ["topic", "id"])
    op.create_table(
        "paceline_outbox_reader",
        sa.Column("topic", sa.String(128), nullable=False),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("leased_until", Instant, nullable=False),
        sa.PrimaryKeyConstraint("topic", name="paceline_outbox_reader_pk"),
    )


def downgrade() -> None:
    for table in (
        "outbox_reader",
        "outbox",
        "notification_attempt",
        "notification_delivery",
        "notification_key",
        "notification_quota",
    ):
        op.drop_table(f"paceline_{table}")
