"""Slots have an owner: none, or the application they belong to."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012_slot_owner"
down_revision = "0011_audit_details"
branch_labels = None
depends_on = None

SLOT = "paceline_slot"


def upgrade() -> None:
    op.add_column(SLOT, sa.Column("owner", sa.String(64)))
    # By the payments that are there, not by the prefix of the id: anybody may have booked under such an id.
    # The payment's id is cut out of the event's, so that its key finds it: SQLite would read all payments per slot.
    op.execute(
        "UPDATE paceline_slot SET owner = 'payments' WHERE substr(event_id, 1, 8) = 'payment:' AND EXISTS "
        "(SELECT 1 FROM paceline_payment WHERE paceline_payment.payment_id = substr(paceline_slot.event_id, 9))"
    )


def downgrade() -> None:
    op.drop_column(SLOT, "owner")
