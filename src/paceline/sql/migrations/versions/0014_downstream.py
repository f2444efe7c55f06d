"""The downstream of payments: its permits and its circuit breaker, shared by all processes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from paceline.sql.schema import Instant

revision = "0014_downstream"
down_revision = "0013_payment_lifecycle"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "paceline_permit_gate",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("updated_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("name", name="paceline_permit_gate_pk"),
    )
    op.create_table(
        "paceline_downstream_breaker",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reason", sa.String(2000)),
        sa.Column("pause_ms", sa.BigInteger, nullable=False),
        sa.Column("probe_at", Instant, nullable=False),
        sa.Column("since", Instant, nullable=False),
        sa.PrimaryKeyConstraint("name", name="paceline_downstream_breaker_pk"),
    )


def downgrade() -> None:
    op.drop_table("paceline_downstream_breaker")
    op.drop_table("paceline_permit_gate")
