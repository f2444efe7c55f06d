"""Access: who is logged in to the console."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from paceline.sql.schema import Instant

revision = "0007_sessions"
down_revision = "0006_access"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "paceline_session",
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("token_name", sa.String(64), nullable=False),
        sa.Column("seal", sa.String(64), nullable=False),
        sa.Column("expires_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("digest", name="paceline_session_pk"),
    )
    op.create_index("paceline_session_expires_at_ix", "paceline_session", ["expires_at"])


def downgrade() -> None:
    op.drop_table("paceline_session")
