"""Slots: configs, policies, slots, window counters, full runs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from paceline.sql.schema import Instant

revision = "0001_slots"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "paceline_slot_config",
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("name", name="paceline_slot_config_pk"),
    )
    op.create_table(
        "paceline_slot_policy",
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("version", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("policy", sa.Text, nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("name", "version", name="paceline_slot_policy_pk"),
    )
    op.create_table(
        "paceline_slot",
        sa.Column("event_id", sa.String(255), nullable=False),
        sa.Column("config_name", sa.String(128), nullable=False),
        sa.Column("config_version", sa.Integer, nullable=False),
        sa.Column("requested_at", Instant, nullable=False),
        sa.Column("window_start", Instant, nullable=False),
        sa.Column("scheduled_at", Instant, nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("event_id", name="paceline_slot_pk"),
    )
    op.create_index("paceline_slot_scheduled_at_ix", "paceline_slot", ["scheduled_at"])
    op.create_table(
        "paceline_slot_window",
        sa.Column("config_name", sa.String(128), nullable=False),
        sa.Column("window_start", Instant, nullable=False),
        sa.Column("taken", sa.Integer, nullable=False),
        sa.Column("placed", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("config_name", "window_start", name="paceline_slot_window_pk"),
    )
    op.create_table(
        "paceline_slot_run",
        sa.Column("config_name", sa.String(128), nullable=False),
        sa.Column("window_start", Instant, nullable=False),
        sa.Column("resume_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("config_name", "window_start", name="paceline_slot_run_pk"),
    )


def downgrade() -> None:
    for table in ("slot_run", "slot_window", "slot", "slot_policy", "slot_config"):
        op.drop_table(f"paceline_{table}")
