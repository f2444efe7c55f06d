"""Slots: records of cancelled ones, and when a slot was moved."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from paceline.sql.schema import Instant

revision = "0019_slot_records"
down_revision = "0018_workers"
branch_labels = None
depends_on = None

CANCELLED = "paceline_slot_cancelled"


def upgrade() -> None:
    op.add_column("paceline_slot", sa.Column("moved_at", Instant))
    op.create_table(
        CANCELLED,
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), sa.Identity(), nullable=False),
        sa.Column("event_id", sa.String(255), nullable=False),
        sa.Column("config_name", sa.String(128), nullable=False),
        sa.Column("config_version", sa.Integer, nullable=False),
        sa.Column("requested_at", Instant, nullable=False),
        sa.Column("window_start", Instant, nullable=False),
        sa.Column("scheduled_at", Instant, nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("owner", sa.String(64)),
        sa.Column("other_windows", sa.Text),
        sa.Column("moved_at", Instant),
        sa.Column("cancelled_at", Instant, nullable=False),
        sa.Column("reason", sa.String(500)),
        sa.Column("actor", sa.String(64)),
        sa.PrimaryKeyConstraint("id", name="paceline_slot_cancelled_pk"),
        sqlite_autoincrement=True,
    )
    op.create_index("paceline_slot_cancelled_scheduled_at_ix", CANCELLED, ["scheduled_at"])
    op.create_index("paceline_slot_cancelled_cancelled_at_ix", CANCELLED, ["cancelled_at"])


def downgrade() -> None:
    op.drop_table(CANCELLED)
    op.drop_column("paceline_slot", "moved_at")
