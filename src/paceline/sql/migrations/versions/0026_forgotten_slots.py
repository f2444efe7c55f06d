"""Slots: until when slots and counters of a config may be missing."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from paceline.sql.schema import Instant

revision = "0026_forgotten_slots"
down_revision = "0025_last_attempt"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "paceline_slot_forgotten",
        sa.Column("config_name", sa.String(128), nullable=False),
        sa.Column("slots_until", Instant, nullable=False),
        sa.Column("counters_until", Instant, nullable=False),
        sa.PrimaryKeyConstraint("config_name", name="paceline_slot_forgotten_pk"),
    )


def downgrade() -> None:
    op.drop_table("paceline_slot_forgotten")
