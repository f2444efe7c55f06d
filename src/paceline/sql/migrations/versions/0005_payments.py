"""Payments and their audit."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from paceline.sql.schema import Instant

revision = "0005_payments"
down_revision = "0004_notifications"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "paceline_payment",
        sa.Column("payment_id", sa.String(128), nullable=False),
        sa.Column("amount_minor", sa.BigInteger, nullable=False),
        sa.Column("currency", sa.String(3), nullable=False),
        sa.Column("payer_name", sa.String(140), nullable=False),
        sa.Column("payer_iban", sa.String(34), nullable=False),
        sa.Column("payee_name", sa.String(140), nullable=False),
        sa.Column("payee_iban", sa.String(34), nullable=False),
        sa.Column("execute_at", Instant, nullable=False),
        sa.Column("config_name", sa.String(128)),
        sa.Column("fee_minor", sa.BigInteger, nullable=False),
        sa.Column("value_date", sa.String(10), nullable=False),
        sa.Column("fingerprint", sa.BigInteger, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("scheduled_at", Instant, nullable=False),
        sa.Column("reference", sa.String(255)),
        sa.Column("reason", sa.String(2000)),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("updated_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("payment_id", name="paceline_payment_pk"),
    )
    op.create_index("paceline_payment_fingerprint_ix", "paceline_payment", ["fingerprint"])
    op.create_table(
        "paceline_payment_audit",
        sa.Column("audit_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), sa.Identity(), nullable=False),
        sa.Column("payment_id", sa.String(128), nullable=False),
        sa.Column("status_before", sa.String(16)),
        sa.Column("status_after", sa.String(16), nullable=False),
        sa.Column("detail", sa.String(2000)),
        sa.Column("created_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("audit_id", name="paceline_payment_audit_pk"),
    )
    op.create_index("paceline_payment_audit_payment_id_ix", "paceline_payment_audit", ["payment_id"])


def downgrade() -> None:
    for table in ("payment_audit", "payment"):
        op.drop_table(f"paceline_{table}")
