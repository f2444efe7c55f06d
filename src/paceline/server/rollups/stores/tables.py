"""The table of rollups."""

from __future__ import annotations

import sqlalchemy as sa

from paceline.sql.schema import Instant, metadata

rollup = sa.Table(
    "paceline_rollup",
    metadata,
    sa.Column("step_seconds", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("period_start", Instant, primary_key=True),
    sa.Column("process", sa.String(32), primary_key=True),
    sa.Column("series", sa.String(32), primary_key=True),
    sa.Column("label", sa.String(255), primary_key=True),
    sa.Column("bucket", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("value", sa.BigInteger, nullable=False),
    info={
        "about": "The counts of each process per period of step_seconds, for the console. Periods of a minute are kept "
        "for seven hours, those of flows for 25, those of ten minutes for eight days. bucket numbers the buckets of "
        "durations."
    },
)
