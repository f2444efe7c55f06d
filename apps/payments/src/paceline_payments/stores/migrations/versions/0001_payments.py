"""Every table of version 1."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from paceline.sql.schema import Instant

revision = "0001_payments"
down_revision = None
branch_labels = None
depends_on = None

IDENTITY = sa.BigInteger().with_variant(sa.Integer, "sqlite")
"""SQLite autoincrements only a column of exactly that type."""

TABLES = (
    "payment",
    "payment_audit",
    "feed",
    "feed_chunk",
    "feed_reject",
)


def upgrade() -> None:
    op.create_table(
        "paceline_payment",
        sa.Column("payment_id", sa.String(128), nullable=False),
        sa.Column("amount_minor", sa.BigInteger, nullable=False),
        sa.Column("currency", sa.String(3), nullable=False),
        sa.Column("payer_name", sa.String(140)),
        sa.Column("payer_iban", sa.String(34)),
        sa.Column("payer_account", sa.String(34)),
        sa.Column("payee_name", sa.String(140)),
        sa.Column("payee_iban", sa.String(34)),
        sa.Column("payee_account", sa.String(34)),
        sa.Column("execute_at", Instant, nullable=False),
        sa.Column("config_name", sa.String(128)),
        sa.Column("instruction", sa.Text),
        sa.Column("fee_minor", sa.BigInteger, nullable=False),
        sa.Column("value_date", sa.String(10), nullable=False),
        sa.Column("fingerprint", sa.BigInteger, nullable=False),
        sa.Column("payer_key", sa.BigInteger, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("scheduled_at", Instant, nullable=False),
        sa.Column("reference", sa.String(255)),
        sa.Column("reason", sa.String(2000)),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("updated_at", Instant, nullable=False),
        sa.Column("begun_at", Instant),
        sa.Column("sent_at", Instant),
        sa.Column("feed_id", sa.String(64)),
        sa.Column("seal", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("payment_id", name="paceline_payment_pk"),
    )
    op.create_index("paceline_payment_feed_ix", "paceline_payment", ["feed_id", "payment_id"])
    op.create_index("paceline_payment_fingerprint_ix", "paceline_payment", ["fingerprint"])
    op.create_index("paceline_payment_payer_ix", "paceline_payment", ["payer_key", "value_date"])
    op.create_table(
        "paceline_payment_audit",
        sa.Column("audit_id", IDENTITY, sa.Identity(), nullable=False),
        sa.Column("payment_id", sa.String(128), nullable=False),
        sa.Column("status_before", sa.String(16)),
        sa.Column("status_after", sa.String(16), nullable=False),
        sa.Column("detail", sa.String(2000)),
        sa.Column("actor", sa.String(255)),
        sa.Column("feed_id", sa.String(64)),
        sa.Column("line", sa.Integer),
        sa.Column("seal", sa.String(64), nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("audit_id", name="paceline_payment_audit_pk"),
    )
    op.create_index("paceline_payment_audit_payment_id_ix", "paceline_payment_audit", ["payment_id"])
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
        sa.Column("document", sa.Text),
        sa.Column("reason", sa.Text),
        sa.Column("submitted_by", sa.String(255)),
        sa.Column("released_by", sa.String(255)),
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
        sa.Column("chunk", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("payload", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("feed_id", "chunk", name="paceline_feed_chunk_pk"),
    )
    op.create_table(
        "paceline_feed_reject",
        sa.Column("feed_id", sa.String(64), nullable=False),
        sa.Column("line", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("payment_id", sa.String(255)),
        sa.Column("raw", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("feed_id", "line", name="paceline_feed_reject_pk"),
    )


def downgrade() -> None:
    for table in TABLES:
        op.drop_table(f"paceline_{table}")
