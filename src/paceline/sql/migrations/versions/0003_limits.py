"""Limits: states, holds, plans."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from paceline.sql.schema import Instant

revision = "0003_limits"
down_revision = "0002_dispatch"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "paceline_limit_state",
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("plan", sa.String(128), nullable=False),
        sa.Column("state", sa.Text),
        sa.Column("expires_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("key", "plan", name="paceline_limit_state_pk"),
    )
    op.create_index("paceline_limit_state_expires_at_ix", "paceline_limit_state", ["expires_at"])
    op.create_table(
        "paceline_limit_hold",
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("id", sa.String(128), nullable=False),
        sa.Column("held", sa.BigInteger, nullable=False),
        sa.Column("settled", sa.Boolean, nullable=False),
        sa.Column("expires_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("key", "id", name="paceline_limit_hold_pk"),
    )
    op.create_index("paceline_limit_hold_expires_at_ix", "paceline_limit_hold", ["expires_at"])
    op.create_table(
        "paceline_limit_plan",
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("revision", sa.Integer, nullable=False),
        sa.Column("plan", sa.Text),
        sa.Column("changed_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("name", name="paceline_limit_plan_pk"),
    )


def downgrade() -> None:
    for table in ("limit_plan", "limit_hold", "limit_state"):
        op.drop_table(f"paceline_{table}")
