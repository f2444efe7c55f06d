"""Access: keys of the service, tokens that expire, sessions of people, the audit as a chain of hashes."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from paceline.sql.schema import Instant

revision = "0021_access"
down_revision = "0020_joint_slots"
branch_labels = None
depends_on = None

ADDED: dict[str, list[tuple[str, Any]]] = {
    "paceline_token": [("expires_at", Instant), ("earlier_digest", sa.String(64)), ("earlier_until", Instant)],
    "paceline_session": [("scopes", sa.String(64))],
    "paceline_admin_audit": [
        ("address", sa.String(64)),
        ("begin_link", sa.BigInteger),
        ("begin_hash", sa.String(64)),
        ("end_link", sa.BigInteger),
        ("end_hash", sa.String(64)),
    ],
}


def upgrade() -> None:
    op.create_table(
        "paceline_key",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("value", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("name", name="paceline_key_pk"),
    )
    op.create_table(
        "paceline_audit_chain",
        sa.Column("name", sa.String(16), nullable=False),
        sa.Column("link", sa.BigInteger, nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("name", name="paceline_audit_chain_pk"),
    )
    for table, columns in ADDED.items():
        for name, kind in columns:
            op.add_column(table, sa.Column(name, kind))


def downgrade() -> None:
    for table, columns in ADDED.items():
        for name, _ in columns:
            op.drop_column(table, name)
    op.drop_table("paceline_audit_chain")
    op.drop_table("paceline_key")
