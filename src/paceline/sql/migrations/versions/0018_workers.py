"""Dispatch: the heartbeats of workers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from paceline.sql.schema import Instant

revision = "0018_workers"
down_revision = "0017_lanes"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "paceline_dispatch_worker",
        sa.Column("worker_id", sa.String(32), nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("version", sa.String(64), nullable=False),
        sa.Column("engine", sa.String(16), nullable=False),
        sa.Column("roles", sa.String(255), nullable=False),
        sa.Column("item_types", sa.Text, nullable=False),
        sa.Column("concurrency", sa.Integer),
        sa.Column("running", sa.Integer),
        sa.Column("started_at", Instant, nullable=False),
        sa.Column("seen_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("worker_id", name="paceline_dispatch_worker_pk"),
    )


def downgrade() -> None:
    op.drop_table("paceline_dispatch_worker")
