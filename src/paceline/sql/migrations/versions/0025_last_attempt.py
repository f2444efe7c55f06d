"""Dispatch: the number of the execution that ended an item without counting a retry."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025_last_attempt"
down_revision = "0024_item_slots"
branch_labels = None
depends_on = None

QUEUE = "paceline_dispatch_queue"


def upgrade() -> None:
    op.add_column(QUEUE, sa.Column("last_attempt", sa.Integer))


def downgrade() -> None:
    op.drop_column(QUEUE, "last_attempt")
