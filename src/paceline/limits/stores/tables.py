"""The tables of limits: states, holds, plans."""

from __future__ import annotations

import sqlalchemy as sa

from paceline.sql.schema import Instant, metadata

limit_state = sa.Table(
    "paceline_limit_state",
    metadata,
    sa.Column("key", sa.String(255), primary_key=True),
    sa.Column("plan", sa.String(128), primary_key=True),
    sa.Column("state", sa.Text),
    sa.Column("expires_at", Instant, nullable=False),
    sa.Index("paceline_limit_state_expires_at_ix", "expires_at"),
    info={"about": "What is spent of a plan by a key: tag and numbers of its algorithm; NULL is as new."},
)

limit_hold = sa.Table(
    "paceline_limit_hold",
    metadata,
    sa.Column("key", sa.String(255), primary_key=True),
    sa.Column("id", sa.String(128), primary_key=True),
    sa.Column("settled", sa.Boolean, nullable=False),
    sa.Column("marks", sa.Text),
    sa.Column("expires_at", Instant, nullable=False),
    sa.Index("paceline_limit_hold_expires_at_ix", "expires_at"),
    info={"about": "Reservations: each plan's part (tag, time, end, cost), none if cancelled; whether it was settled."},
)

limit_plan = sa.Table(
    "paceline_limit_plan",
    metadata,
    sa.Column("name", sa.String(128), primary_key=True),
    sa.Column("revision", sa.Integer, nullable=False),
    sa.Column("plan", sa.Text),
    sa.Column("changed_at", Instant, nullable=False),
    info={"about": "Plans as documents. Every change gets the next revision; a deleted plan stays, without document."},
)
