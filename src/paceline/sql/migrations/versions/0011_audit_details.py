"""The audit of administration: what a change asked for."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011_audit_details"
down_revision = "0010_hold_marks"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("paceline_admin_audit", sa.Column("detail", sa.String(1000)))


def downgrade() -> None:
    op.drop_column("paceline_admin_audit", "detail")
