"""Every table of version 1."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from paceline.sql.schema import Instant

revision = "0001_sms"
down_revision = None
branch_labels = None
depends_on = None

TABLES = (
    "notification_quota",
    "notification_key",
    "notification_message",
    "notification_dead_letter",
    "notification_optout",
    "notification_inbound",
    "notification_attempt",
)


def upgrade() -> None:
    op.create_table(
        "paceline_notification_quota",
        sa.Column("user_id", sa.Integer, nullable=False, autoincrement=False),
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
        sa.PrimaryKeyConstraint("user_id", name="paceline_notification_quota_pk"),
    )
    op.create_table(
        "paceline_notification_key",
        sa.Column("message_id", sa.String(64), nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("message_id", name="paceline_notification_key_pk"),
    )
    op.create_index("paceline_notification_key_created_at_ix", "paceline_notification_key", ["created_at"])
    op.create_table(
        "paceline_notification_message",
        sa.Column("message_id", sa.String(64), nullable=False),
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
        sa.PrimaryKeyConstraint("message_id", name="paceline_notification_message_pk"),
    )
    op.create_index("paceline_notification_message_provider_id_ix", "paceline_notification_message", ["provider_id"])
    op.create_index("paceline_notification_message_settled_at_ix", "paceline_notification_message", ["settled_at"])
    op.create_index(
        "paceline_notification_message_status_accepted_at_ix",
        "paceline_notification_message",
        ["status", "accepted_at"],
    )
    op.create_index(
        "paceline_notification_message_status_expires_at_ix", "paceline_notification_message", ["status", "expires_at"]
    )
    op.create_table(
        "paceline_notification_dead_letter",
        sa.Column("letter_id", sa.String(64), nullable=False),
        sa.Column("message_id", sa.String(64)),
        sa.Column("message_key", sa.String(128), nullable=False),
        sa.Column("message_value", sa.Text, nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("whole", sa.Boolean, nullable=False),
        sa.Column("reason", sa.String(255), nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("dead_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("letter_id", name="paceline_notification_dead_letter_pk"),
    )
    op.create_index(
        "paceline_notification_dead_letter_dead_at_ix", "paceline_notification_dead_letter", ["dead_at", "letter_id"]
    )
    op.create_index(
        "paceline_notification_dead_letter_message_id_ix", "paceline_notification_dead_letter", ["message_id"]
    )
    op.create_table(
        "paceline_notification_optout",
        sa.Column("lookup", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("phone", sa.String(128), nullable=False),
        sa.Column("reason", sa.String(255), nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("lookup", name="paceline_notification_optout_pk"),
    )
    op.create_table(
        "paceline_notification_inbound",
        sa.Column("inbound_id", sa.String(200), nullable=False),
        sa.Column("phone", sa.String(128), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("received_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("inbound_id", name="paceline_notification_inbound_pk"),
    )
    op.create_index("paceline_notification_inbound_received_at_ix", "paceline_notification_inbound", ["received_at"])
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


def downgrade() -> None:
    for table in TABLES:
        op.drop_table(f"paceline_{table}")
