"""Limits: where each plan keeps its part of a hold."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010_hold_marks"
down_revision = "0009_outbox_traces"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("paceline_limit_hold", sa.Column("marks", sa.Text))


def downgrade() -> None:
    op.drop_column("paceline_limit_hold", "marks")
