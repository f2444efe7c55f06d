"""The tables of payments. Money is kept in the currency's smallest unit; no foreign keys, as everywhere."""

from __future__ import annotations

import sqlalchemy as sa

from paceline.sql.schema import Instant, metadata

_Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

payment = sa.Table(
    "paceline_payment",
    metadata,
    sa.Column("payment_id", sa.String(128), primary_key=True),
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
    sa.Index("paceline_payment_fingerprint_ix", "fingerprint"),
    sa.Index("paceline_payment_feed_ix", "feed_id", "payment_id"),
    sa.Index("paceline_payment_payer_ix", "payer_key", "value_date"),
    info={
        "about": "One row per payment. fingerprint is equal for equal payments, payer_key for equal payers. With "
        "encryption keys both are keyed, and parties and instruction are one text in instruction."
    },
)

payment_audit = sa.Table(
    "paceline_payment_audit",
    metadata,
    sa.Column("audit_id", _Id, sa.Identity(), primary_key=True),
    sa.Column("payment_id", sa.String(128), nullable=False),
    sa.Column("status_before", sa.String(16)),
    sa.Column("status_after", sa.String(16), nullable=False),
    sa.Column("detail", sa.String(2000)),
    sa.Column("actor", sa.String(255)),
    sa.Column("feed_id", sa.String(64)),
    sa.Column("line", sa.Integer),
    sa.Column("seal", sa.String(64), nullable=False),
    sa.Column("created_at", Instant, nullable=False),
    sa.Index("paceline_payment_audit_payment_id_ix", "payment_id"),
    info={"about": "Every event of a payment, as a chain: seal covers the row and the one before. Only ever inserted."},
)

feed = sa.Table(
    "paceline_feed",
    metadata,
    sa.Column("feed_id", sa.String(64), primary_key=True),
    sa.Column("format", sa.String(16), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("name", sa.String(255)),
    sa.Column("config_name", sa.String(128)),
    sa.Column("digest", sa.String(64), unique=True),
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
    info={"about": "One row per feed. digest is of its bytes: the same feed is the same row."},
)

feed_chunk = sa.Table(
    "paceline_feed_chunk",
    metadata,
    sa.Column("feed_id", sa.String(64), primary_key=True),
    sa.Column("chunk", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("payload", sa.LargeBinary, nullable=False),
    info={"about": "Records that wait to be accepted, checked and packed; deleted when they are."},
)

feed_reject = sa.Table(
    "paceline_feed_reject",
    metadata,
    sa.Column("feed_id", sa.String(64), primary_key=True),
    sa.Column("line", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("payment_id", sa.String(255)),
    sa.Column("raw", sa.Text, nullable=False),
    info={"about": "Rejected records, as received, and the reason."},
)
