"""Dispatch: the slot that an item carries, if the slot's event has another id than the item."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024_item_slots"
down_revision = "0023_rollups"
branch_labels = None
depends_on = None

QUEUE = "paceline_dispatch_queue"
LINKED = sa.text("slot_id IS NOT NULL")


def upgrade() -> None:
    op.add_column(QUEUE, sa.Column("slot_id", sa.String(255)))
    # Oracle's indexes leave out NULL by themselves.
    op.create_index(f"{QUEUE}_slot_ix", QUEUE, ["slot_id"], postgresql_where=LINKED, sqlite_where=LINKED)


def downgrade() -> None:
    op.drop_index(f"{QUEUE}_slot_ix", QUEUE)
    op.drop_column(QUEUE, "slot_id")
