"""Payments know when their execution began, and the feed that brought them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from headgate.sql.schema import Instant

revision = "0013_payment_lifecycle"
down_revision = "0012_slot_owner"
branch_labels = None
depends_on = None

PAYMENT = "headgate_payment"


def upgrade() -> None:
    op.add_column(PAYMENT, sa.Column("begun_at", Instant))
    op.add_column(PAYMENT, sa.Column("feed_id", sa.String(64)))


def downgrade() -> None:
    op.drop_column(PAYMENT, "feed_id")
    op.drop_column(PAYMENT, "begun_at")
