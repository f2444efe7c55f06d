"""The tables of access: tokens, sessions, and the audit of administration."""

from __future__ import annotations

import sqlalchemy as sa

from paceline.sql.schema import Instant, metadata

token = sa.Table(
    "paceline_token",
    metadata,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("scopes", sa.String(64), nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.Column("created_at", Instant, nullable=False),
    sa.Column("revoked_at", Instant),
    sa.Column("expires_at", Instant),
    sa.Column("earlier_digest", sa.String(64)),
    sa.Column("earlier_until", Instant),
    sa.Column("names", sa.String(1000)),
    sa.Column("rate", sa.String(256)),
    info={
        "about": "Tokens by name. digest is the SHA-256 of the secret; the secret is kept nowhere. earlier_digest is "
        "that of the secret before a rotation, valid until earlier_until. names are the patterns that it is bound to, "
        "apart by spaces, and rate is how often it may be used; null for all names, and as often as any caller."
    },
)

session = sa.Table(
    "paceline_session",
    metadata,
    sa.Column("digest", sa.String(64), primary_key=True),
    sa.Column("caller", sa.String(64), nullable=False),
    sa.Column("seal", sa.String(64), nullable=False),
    sa.Column("opened_at", Instant, nullable=False),
    sa.Column("expires_at", Instant, nullable=False),
    sa.Column("checked_at", Instant, nullable=False),
    sa.Column("address", sa.String(64)),
    sa.Column("member_of", sa.Text),
    sa.Column("renewal", sa.Text),
    sa.Index("paceline_session_expires_at_ix", "expires_at"),
    info={
        "about": "The logins to the console. Neither the session's secret nor its token is "
        "kept. member_of are the groups of a person who has no token (OpenID Connect); renewal, with which the "
        "provider is asked for them again, is encrypted with the session's secret."
    },
)

key = sa.Table(
    "paceline_key",
    metadata,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("value", sa.String(64), nullable=False),
    info={"about": "Random keys that the processes of the service share."},
)

admin_audit = sa.Table(
    "paceline_admin_audit",
    metadata,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), sa.Identity(), primary_key=True),
    sa.Column("at", Instant, nullable=False),
    sa.Column("caller", sa.String(64), nullable=False),
    sa.Column("method", sa.String(8), nullable=False),
    sa.Column("path", sa.String(512), nullable=False),
    sa.Column("request_id", sa.String(64), nullable=False),
    sa.Column("status", sa.Integer),
    sa.Column("detail", sa.String(1000)),
    sa.Column("address", sa.String(64)),
    sa.Column("begin_link", sa.BigInteger),
    sa.Column("begin_hash", sa.String(64)),
    sa.Column("end_link", sa.BigInteger),
    sa.Column("end_hash", sa.String(64)),
    info={
        "about": "Every change requested under /admin: caller, address, content and response status. "
        "Its begin and its end are two links of one chain of hashes: paceline audit verify."
    },
)

audit_chain = sa.Table(
    "paceline_audit_chain",
    metadata,
    sa.Column("name", sa.String(16), primary_key=True),
    sa.Column("link", sa.BigInteger, nullable=False),
    sa.Column("hash", sa.String(64), nullable=False),
    info={"about": "The last link of the audit's chain. Locked while a link is added."},
)
