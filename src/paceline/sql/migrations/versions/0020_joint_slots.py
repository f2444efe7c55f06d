"""Slots under several configs, and configs that are made from a template."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020_joint_slots"
down_revision = "0019_slot_records"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("paceline_slot", sa.Column("other_windows", sa.Text))
    op.add_column("paceline_slot_config", sa.Column("template", sa.String(128)))


def downgrade() -> None:
    op.drop_column("paceline_slot_config", "template")
    op.drop_column("paceline_slot", "other_windows")
