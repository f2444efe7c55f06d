"""The tables of access: tokens, sessions, and the audit of administration."""

from __future__ import annotations

import sqlalchemy as sa

from headgate.sql.schema import Instant, metadata

token = sa.Table(
    "headgate_token",
    metadata,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("scopes", sa.String(64), nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.Column("created_at", Instant, nullable=False),
    sa.Column("revoked_at", Instant),
    info={"about": "Tokens by name. digest is the SHA-256 of the secret; the secret is kept nowhere."},
)

session = sa.Table(
    "headgate_session",
    metadata,
    sa.Column("digest", sa.String(64), primary_key=True),
    sa.Column("token_name", sa.String(64), nullable=False),
    sa.Column("seal", sa.String(64), nullable=False),
    sa.Column("expires_at", Instant, nullable=False),
    sa.Index("headgate_session_expires_at_ix", "expires_at"),
    info={"about": "Who is logged in to the console. Neither the session's secret nor its token is kept."},
)

admin_audit = sa.Table(
    "headgate_admin_audit",
    metadata,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), sa.Identity(), primary_key=True),
    sa.Column("at", Instant, nullable=False),
    sa.Column("caller", sa.String(64), nullable=False),
    sa.Column("method", sa.String(8), nullable=False),
    sa.Column("path", sa.String(512), nullable=False),
    sa.Column("request_id", sa.String(64), nullable=False),
    sa.Column("status", sa.Integer),
    sa.Column("detail", sa.String(1000)),
    info={"about": "Every change asked for under /admin, by whom, what exactly, and the status it was answered with."},
)
