"""Dispatch: what executions report, progress and result."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from paceline.sql.schema import Instant

revision = "0016_task_reports"
down_revision = "0015_sms_messages"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "paceline_dispatch_report",
        sa.Column("item_type", sa.String(64), nullable=False),
        sa.Column("item_id", sa.String(255), nullable=False),
        sa.Column("claim_epoch", sa.Integer, nullable=False),
        sa.Column("fraction", sa.Double),
        sa.Column("progress_text", sa.String(2000)),
        sa.Column("result_json", sa.Text),
        sa.Column("updated_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("item_type", "item_id", name="paceline_dispatch_report_pk"),
    )


def downgrade() -> None:
    op.drop_table("paceline_dispatch_report")
