"""Access: tokens, and the audit of administration."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from paceline.sql.schema import Instant

revision = "0006_access"
down_revision = "0005_payments"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "paceline_token",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("scopes", sa.String(64), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("revoked_at", Instant),
        sa.PrimaryKeyConstraint("name", name="paceline_token_pk"),
    )
    op.create_table(
        "paceline_admin_audit",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), sa.Identity(), nullable=False),
        sa.Column("at", Instant, nullable=False),
        sa.Column("caller", sa.String(64), nullable=False),
        sa.Column("method", sa.String(8), nullable=False),
        sa.Column("path", sa.String(512), nullable=False),
        sa.Column("request_id", sa.String(64), nullable=False),
        sa.Column("status", sa.Integer),
        sa.PrimaryKeyConstraint("id", name="paceline_admin_audit_pk"),
    )


def downgrade() -> None:
    op.drop_table("paceline_admin_audit")
    op.drop_table("paceline_token")
