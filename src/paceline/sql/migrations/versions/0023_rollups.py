"""The console's numbers over time: what each process counted, per minute."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from paceline.sql.schema import Instant

revision = "0023_rollups"
down_revision = "0022_periodic"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "paceline_rollup",
        sa.Column("step_seconds", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("period_start", Instant, nullable=False),
        sa.Column("process", sa.String(32), nullable=False),
        sa.Column("series", sa.String(32), nullable=False),
        sa.Column("label", sa.String(255), nullable=False),
        sa.Column("bucket", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("value", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint(
            "step_seconds", "period_start", "process", "series", "label", "bucket", name="paceline_rollup_pk"
        ),
    )


def downgrade() -> None:
    op.drop_table("paceline_rollup")
