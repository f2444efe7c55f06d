"""Payments know when their execution began, and the feed that brought them; feeds are kept."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from paceline.sql.schema import Instant

revision = "0013_payment_lifecycle"
down_revision = "0012_slot_owner"
branch_labels = None
depends_on = None

PAYMENT = "paceline_payment"


def upgrade() -> None:
    op.add_column(PAYMENT, sa.Column("begun_at", Instant))
    op.add_column(PAYMENT, sa.Column("feed_id", sa.String(64)))
    op.create_index("paceline_payment_feed_ix", PAYMENT, ["feed_id", "payment_id"])
    op.create_table(
        "paceline_feed",
        sa.Column("feed_id", sa.String(64), nullable=False),
        sa.Column("format", sa.String(16), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("name", sa.String(255)),
        sa.Column("config_name", sa.String(128)),
        sa.Column("digest", sa.String(64)),
        sa.Column("records", sa.Integer, nullable=False),
        sa.Column("chunks", sa.Integer, nullable=False),
        sa.Column("chunks_done", sa.Integer, nullable=False),
        sa.Column("rejected", sa.Integer, nullable=False),
        sa.Column("accepted", sa.Integer, nullable=False),
        sa.Column("planned", sa.Text),
        sa.Column("totals", sa.Text),
        sa.Column("reason", sa.String(2000)),
        sa.Column("runner", sa.String(32)),
        sa.Column("seen_at", Instant),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("updated_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("feed_id", name="paceline_feed_pk"),
        sa.UniqueConstraint("digest", name="paceline_feed_digest_uq"),
    )
    op.create_table(
        "paceline_feed_chunk",
        sa.Column("feed_id", sa.String(64), nullable=False),
        sa.Column("chunk", sa.Integer, nullable=False),
        sa.Column("payload", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("feed_id", "chunk", name="paceline_feed_chunk_pk"),
    )
    op.create_table(
        "paceline_feed_reject",
        sa.Column("feed_id", sa.String(64), nullable=False),
        sa.Column("line", sa.Integer, nullable=False),
        sa.Column("reason", sa.String(2000), nullable=False),
        sa.Column("payment_id", sa.String(255)),
        sa.Column("raw", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("feed_id", "line", name="paceline_feed_reject_pk"),
    )


def downgrade() -> None:
    for table in ("feed_reject", "feed_chunk", "feed"):
        op.drop_table(f"paceline_{table}")
    op.drop_index("paceline_payment_feed_ix", PAYMENT)
    op.drop_column(PAYMENT, "feed_id")
    op.drop_column(PAYMENT, "begun_at")
