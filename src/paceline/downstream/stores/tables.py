"""The tables of calls to other systems."""

from __future__ import annotations

import sqlalchemy as sa

from paceline.sql.schema import Instant, metadata

permit_gate = sa.Table(
    "paceline_permit_gate",
    metadata,
    sa.Column("name", sa.String(80), primary_key=True),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("updated_at", Instant, nullable=False),
    info={"about": "The permits of calls to the downstream: life, opening, pace, then each holder with its end (µs)."},
)

downstream = sa.Table(
    "paceline_downstream",
    metadata,
    sa.Column("name", sa.String(80), primary_key=True),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("updated_at", Instant, nullable=False),
    info={"about": "What all processes know of a downstream: its switch, the pauses it asked for, its breaker (JSON)."},
)
