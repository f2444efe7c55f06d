"""SMS: messages with a status and a claim, dead letters, opt-outs, recipients, and quotas of every algorithm."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from paceline.sql.schema import Instant

revision = "0015_sms_messages"
down_revision = "0014_downstream"
branch_labels = None
depends_on = None

QUOTA = "paceline_notification_quota"
QUOTA_COLUMNS = {
    "algorithm": sa.String(32),
    "unit": sa.String(16),
    "state": sa.Text(),
    "phone": sa.String(32),
    "locale": sa.String(35),
    "zone": sa.String(64),
}


def upgrade() -> None:
    for name, kind in QUOTA_COLUMNS.items():
        op.add_column(QUOTA, sa.Column(name, kind))
    op.add_column("paceline_notification_key", sa.Column("fingerprint", sa.String(64)))
    op.add_column("paceline_outbox", sa.Column("available_at", Instant))
    op.create_table(
        "paceline_notification_message",
        sa.Column("message_id", sa.String(64), nullable=False),
        sa.Column("user_id", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("segments", sa.Integer(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("owner", sa.String(64)),
        sa.Column("claimed_until", Instant),
        sa.Column("accepted_at", Instant, nullable=False),
        sa.Column("expires_at", Instant),
        sa.Column("settled_at", Instant),
        sa.Column("delivered_at", Instant),
        sa.Column("provider", sa.String(64)),
        sa.Column("provider_id", sa.String(128)),
        sa.Column("reason", sa.String(255)),
        sa.PrimaryKeyConstraint("message_id", name="paceline_notification_message_pk"),
    )
    for columns in (["settled_at"], ["status", "accepted_at"], ["provider_id"]):
        name = f"paceline_notification_message_{'_'.join(columns)}_ix"
        op.create_index(name, "paceline_notification_message", columns)
    op.create_table(
        "paceline_notification_dead_letter",
        sa.Column("letter_id", sa.String(64), nullable=False),
        sa.Column("message_id", sa.String(64)),
        sa.Column("message_key", sa.String(128), nullable=False),
        sa.Column("message_value", sa.Text(), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("whole", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.String(255), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("dead_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("letter_id", name="paceline_notification_dead_letter_pk"),
    )
    letter = "paceline_notification_dead_letter"
    op.create_index(f"{letter}_dead_at_ix", letter, ["dead_at", "letter_id"])
    op.create_table(
        "paceline_notification_optout",
        sa.Column("phone", sa.String(32), nullable=False),
        sa.Column("reason", sa.String(255), nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("phone", name="paceline_notification_optout_pk"),
    )


def downgrade() -> None:
    for table in ("optout", "dead_letter", "message"):
        op.drop_table(f"paceline_notification_{table}")
    op.drop_column("paceline_outbox", "available_at")
    op.drop_column("paceline_notification_key", "fingerprint")
    for name in reversed(QUOTA_COLUMNS):
        op.drop_column(QUOTA, name)
