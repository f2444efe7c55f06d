"""Traces: which trace a published record belongs to."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009_outbox_traces"
down_revision = "0008_traces"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("paceline_outbox", sa.Column("traceparent", sa.String(55)))


def downgrade() -> None:
    op.drop_column("paceline_outbox", "traceparent")
