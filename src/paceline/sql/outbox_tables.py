"""The tables of the outbox."""

from __future__ import annotations

import sqlalchemy as sa

from paceline.sql.schema import Instant, metadata

outbox = sa.Table(
    "paceline_outbox",
    metadata,
    # SQLite counts up by itself only in a column of exactly this type.
    sa.Column(
        "id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), sa.Identity(), primary_key=True, autoincrement=True
    ),
    sa.Column("topic", sa.String(128), nullable=False),
    sa.Column("message_key", sa.String(128), nullable=False),
    sa.Column("message_value", sa.Text, nullable=False),
    sa.Column("created_at", Instant, nullable=False),
    sa.Column("traceparent", sa.String(55)),
    sa.Column("available_at", Instant),
    sa.Index("paceline_outbox_topic_id_ix", "topic", "id"),
    sqlite_autoincrement=True,
    info={
        "about": "Published and not yet consumed records. A consumed one is deleted. One with available_at waits until "
        "then."
    },
)

outbox_reader = sa.Table(
    "paceline_outbox_reader",
    metadata,
    sa.Column("topic", sa.String(128), primary_key=True),
    sa.Column("owner", sa.String(64), nullable=False),
    sa.Column("leased_until", Instant, nullable=False),
    info={"about": "The reader of a topic. One at a time keeps the order; its lease expires if it dies."},
)
