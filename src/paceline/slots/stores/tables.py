"""The tables of slots. Times are real UTC timestamps; no foreign keys, so that bulk writes take no extra locks."""

from __future__ import annotations

import sqlalchemy as sa

from paceline.sql.schema import Instant, metadata

slot_config = sa.Table(
    "paceline_slot_config",
    metadata,
    sa.Column("name", sa.String(128), primary_key=True),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("template", sa.String(128)),
    info={
        "about": "One row per config: its active version. This row is the lock for booking its slots. template"
        " is the config that it was made from and follows, such as merchant-*."
    },
)

slot_policy = sa.Table(
    "paceline_slot_policy",
    metadata,
    sa.Column("name", sa.String(128), primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("policy", sa.Text, nullable=False),
    sa.Column("created_at", Instant, nullable=False),
    info={"about": "Every version of every policy; never updated, never deleted."},
)

slot = sa.Table(
    "paceline_slot",
    metadata,
    sa.Column("event_id", sa.String(255), primary_key=True),
    sa.Column("config_name", sa.String(128), nullable=False),
    sa.Column("config_version", sa.Integer, nullable=False),
    sa.Column("requested_at", Instant, nullable=False),
    sa.Column("window_start", Instant, nullable=False),
    sa.Column("scheduled_at", Instant, nullable=False),
    sa.Column("created_at", Instant, nullable=False),
    sa.Column("owner", sa.String(64)),
    sa.Column("other_windows", sa.Text),
    sa.Column("moved_at", Instant),
    sa.Index("paceline_slot_scheduled_at_ix", "scheduled_at"),
    info={
        "about": "One row per event, and the application it belongs to. window_start is the window it was booked into,"
        " other_windows the windows of its further configs: name, version, start. moved_at is when a re-plan moved it."
    },
)

slot_cancelled = sa.Table(
    "paceline_slot_cancelled",
    metadata,
    # SQLite autoincrements only a column of exactly this type.
    sa.Column(
        "id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), sa.Identity(), primary_key=True, autoincrement=True
    ),
    sa.Column("event_id", sa.String(255), nullable=False),
    sa.Column("config_name", sa.String(128), nullable=False),
    sa.Column("config_version", sa.Integer, nullable=False),
    sa.Column("requested_at", Instant, nullable=False),
    sa.Column("window_start", Instant, nullable=False),
    sa.Column("scheduled_at", Instant, nullable=False),
    sa.Column("created_at", Instant, nullable=False),
    sa.Column("owner", sa.String(64)),
    sa.Column("other_windows", sa.Text),
    sa.Column("moved_at", Instant),
    sa.Column("cancelled_at", Instant, nullable=False),
    sa.Column("reason", sa.String(500)),
    sa.Column("actor", sa.String(64)),
    sa.Index("paceline_slot_cancelled_scheduled_at_ix", "scheduled_at"),
    sa.Index("paceline_slot_cancelled_cancelled_at_ix", "cancelled_at"),
    sqlite_autoincrement=True,
    info={"about": "One row per cancellation: the slot, the reason and the actor. Pruned by age."},
)

slot_window = sa.Table(
    "paceline_slot_window",
    metadata,
    sa.Column("config_name", sa.String(128), primary_key=True),
    sa.Column("window_start", Instant, primary_key=True),
    sa.Column("taken", sa.Integer, nullable=False),
    sa.Column("placed", sa.Integer, nullable=False),
    info={"about": "The number of slots per window now, and of all that were ever placed there."},
)

slot_run = sa.Table(
    "paceline_slot_run",
    metadata,
    sa.Column("config_name", sa.String(128), primary_key=True),
    sa.Column("window_start", Instant, primary_key=True),
    sa.Column("resume_at", Instant, nullable=False),
    info={"about": "Full runs: every open window in [window_start, resume_at) is full, resume_at is not."},
)

slot_forgotten = sa.Table(
    "paceline_slot_forgotten",
    metadata,
    sa.Column("config_name", sa.String(128), primary_key=True),
    sa.Column("slots_until", Instant, nullable=False),
    sa.Column("counters_until", Instant, nullable=False),
    info={
        "about": "The times before which slots of a config may be missing, as they were pruned, and counters, as the"
        " idle config was deleted. Kept as long as a window can be."
    },
)
