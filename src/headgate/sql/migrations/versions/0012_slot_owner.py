"""Slots have an owner: none, or the application they belong to."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012_slot_owner"
down_revision = "0011_audit_details"
branch_labels = None
depends_on = None

SLOT = "headgate_slot"


def upgrade() -> None:
    op.add_column(SLOT, sa.Column("owner", sa.String(64)))
    # By the payments that are there, not by the prefix of the id: anybody may have booked under such an id.
    op.execute(
        "UPDATE headgate_slot SET owner = 'payments' WHERE EXISTS "
        "(SELECT 1 FROM headgate_payment WHERE 'payment:' || headgate_payment.payment_id = headgate_slot.event_id)"
    )


def downgrade() -> None:
    op.drop_column(SLOT, "owner")
