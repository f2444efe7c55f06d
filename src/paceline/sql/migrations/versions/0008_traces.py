"""Traces: which trace a queued item belongs to."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008_traces"
down_revision = "0007_sessions"
branch_labels = None
depends_on = None

QUEUE = "paceline_dispatch_queue"


def upgrade() -> None:
    op.add_column(QUEUE, sa.Column("traceparent", sa.String(55)))


def downgrade() -> None:
    op.drop_column(QUEUE, "traceparent")
