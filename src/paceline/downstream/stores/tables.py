"""The tables of calls to other systems."""

from __future__ import annotations

import sqlalchemy as sa

from paceline.sql.schema import Instant, metadata

permit_gate = sa.Table(
    "paceline_permit_gate",
    metadata,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("updated_at", Instant, nullable=False),
    info={"about": "The permits of calls to the downstream: life, opening, pace, then each holder with its end (µs)."},
)

downstream_breaker = sa.Table(
    "paceline_downstream_breaker",
    metadata,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("reason", sa.String(2000)),
    sa.Column("pause_ms", sa.BigInteger, nullable=False),
    sa.Column("probe_at", Instant, nullable=False),
    sa.Column("since", Instant, nullable=False),
    info={"about": "The circuit breaker of calls to the downstream, shared by all processes; no row means closed."},
)
