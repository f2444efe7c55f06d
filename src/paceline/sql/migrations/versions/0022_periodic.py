"""Dispatch: periodic tasks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from paceline.sql.schema import Instant

revision = "0022_periodic"
down_revision = "0021_access"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "paceline_dispatch_periodic",
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("item_type", sa.String(64), nullable=False),
        sa.Column("cron", sa.String(255)),
        sa.Column("every_ms", sa.BigInteger),
        sa.Column("zone", sa.String(64), nullable=False),
        sa.Column("calendar_json", sa.Text),
        sa.Column("catch_up", sa.String(8), nullable=False),
        sa.Column("context_json", sa.Text, nullable=False),
        sa.Column("enabled", sa.Boolean, nullable=False),
        sa.Column("ticked_until", Instant, nullable=False),
        sa.Column("last_tick", Instant),
        sa.Column("revision", sa.Integer, nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("updated_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("name", name="paceline_dispatch_periodic_pk"),
    )


def downgrade() -> None:
    op.drop_table("paceline_dispatch_periodic")
