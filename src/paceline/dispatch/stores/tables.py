"""The tables of dispatch. Times are real UTC timestamps; no foreign keys, so that bulk writes take no extra locks.

Indexes hold only the rows that their statements need, so that the cost of a claim depends neither on the backlog of
other types nor on finished items and dead letters. PostgreSQL and SQLite have partial indexes for this; on Oracle the
same is an index on expressions that are NULL for every other row, and statements must use exactly these expressions.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from paceline.dispatch.config import DEFAULT_QUEUE, OnUnknown
from paceline.dispatch.turns import DEFAULT_LANE, DEFAULT_PRIORITY
from paceline.sql.schema import Instant, metadata

_Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

queue = sa.Table(
    "paceline_dispatch_queue",
    metadata,
    sa.Column("item_type", sa.String(64), primary_key=True),
    sa.Column("item_id", sa.String(255), primary_key=True),
    sa.Column("queue_status", sa.String(16), nullable=False),
    sa.Column("scheduled_exec_time", Instant, nullable=False),
    sa.Column("due_at", Instant, nullable=False),
    sa.Column("slotted", sa.Boolean, nullable=False),
    sa.Column("init_workflow_id", sa.String(400)),
    sa.Column("dispatch_batch_id", sa.String(32)),
    sa.Column("exec_workflow_id", sa.String(400)),
    sa.Column("claim_epoch", sa.Integer, nullable=False),
    sa.Column("claimed_at", Instant),
    sa.Column("seen_at", Instant),
    sa.Column("dispatched_at", Instant),
    sa.Column("completed_at", Instant),
    sa.Column("retry_count", sa.Integer, nullable=False),
    sa.Column("last_error", sa.String(2000)),
    sa.Column("created_at", Instant, nullable=False),
    sa.Column("updated_at", Instant, nullable=False),
    sa.Column("traceparent", sa.String(55)),
    # With defaults, for rows that are inserted by hand.
    sa.Column("lane", sa.String(64), nullable=False, server_default=DEFAULT_LANE),
    sa.Column("priority", sa.SmallInteger, nullable=False, server_default=str(DEFAULT_PRIORITY)),
    sa.Column("slot_id", sa.String(255)),
    sa.Column("last_attempt", sa.Integer),
    sa.Column("begun_at", Instant),
    sa.Column("worker", sa.String(300)),
    sa.Column("code_version", sa.String(64)),
    sa.Column("unknown_since", Instant),
    sa.Column("lock_name", sa.String(255)),
    sa.Index(
        "paceline_dispatch_queue_slot_ix",
        "slot_id",
        postgresql_where=sa.text("slot_id IS NOT NULL"),
        sqlite_where=sa.text("slot_id IS NOT NULL"),
    ),
    info={"about": "One row per item. claim_epoch is the fencing token of its claim; seen_at is the last heartbeat."},
)

context = sa.Table(
    "paceline_dispatch_context",
    metadata,
    sa.Column("item_type", sa.String(64), primary_key=True),
    sa.Column("item_id", sa.String(255), primary_key=True),
    sa.Column("context_json", sa.Text, nullable=False),
    sa.Column("context_version", sa.Integer, nullable=False),
    sa.Column("created_at", Instant, nullable=False),
    info={"about": "The input of an item's execution. Never updated; deleted when the item is finished."},
)

report = sa.Table(
    "paceline_dispatch_report",
    metadata,
    sa.Column("item_type", sa.String(64), primary_key=True),
    sa.Column("item_id", sa.String(255), primary_key=True),
    sa.Column("claim_epoch", sa.Integer, nullable=False),
    sa.Column("fraction", sa.Double),
    sa.Column("progress_text", sa.String(2000)),
    sa.Column("result_json", sa.Text),
    sa.Column("updated_at", Instant, nullable=False),
    info={"about": "The reports of an item's execution: progress under the claim claim_epoch, and its result."},
)

attempt = sa.Table(
    "paceline_dispatch_attempt",
    metadata,
    sa.Column("item_type", sa.String(64), primary_key=True),
    sa.Column("item_id", sa.String(255), primary_key=True),
    sa.Column("claim_epoch", sa.Integer, primary_key=True),
    sa.Column("attempt_number", sa.Integer, nullable=False),
    sa.Column("begun_at", Instant),
    sa.Column("ended_at", Instant, nullable=False),
    sa.Column("outcome", sa.String(16), nullable=False),
    sa.Column("error", sa.String(2000)),
    sa.Column("traceback", sa.Text),
    sa.Column("worker", sa.String(300)),
    sa.Column("code_version", sa.String(64)),
    sa.Index("paceline_dispatch_attempt_ended_at_ix", "item_type", "ended_at"),
    info={"about": "Attempts that ended in no success, each with its error and traceback. Only inserted, and pruned."},
)

config = sa.Table(
    "paceline_dispatch_config",
    metadata,
    sa.Column("item_type", sa.String(64), primary_key=True),
    sa.Column("enabled", sa.Boolean, nullable=False),
    sa.Column("batch_size", sa.Integer, nullable=False),
    sa.Column("dispatch_interval_secs", sa.Double, nullable=False),
    sa.Column("jitter_window_ms", sa.Integer, nullable=False),
    sa.Column("pre_start_buffer_mins", sa.Double, nullable=False),
    sa.Column("max_dispatch_retries", sa.Integer, nullable=False),
    sa.Column("stale_claim_threshold_mins", sa.Double, nullable=False),
    sa.Column("max_stale_recovery_per_cycle", sa.Integer, nullable=False),
    sa.Column("exec_workflow_type", sa.String(255), nullable=False),
    sa.Column("exec_task_queue", sa.String(255), nullable=False),
    sa.Column("admission_plan", sa.String(255)),
    sa.Column("retry_backoff_secs", sa.Double, nullable=False),
    sa.Column("created_at", Instant, nullable=False),
    sa.Column("updated_at", Instant, nullable=False),
    sa.Column("concurrency", sa.Integer),
    sa.Column("lane_concurrency", sa.Integer),
    sa.Column("queue", sa.String(64), nullable=False, server_default=DEFAULT_QUEUE),
    sa.Column("rate", sa.String(255)),
    sa.Column("on_unknown", sa.String(8), nullable=False, server_default=OnUnknown.RETRY.value),
    sa.Column("hold_for_secs", sa.Double, nullable=False, server_default="86400"),
    sa.Column("stated_json", sa.Text),
    info={"about": "One row per item type, read in every cycle; an operator may update it in place."},
)

audit = sa.Table(
    "paceline_dispatch_audit",
    metadata,
    sa.Column("audit_id", _Id, sa.Identity(), primary_key=True),
    sa.Column("item_type", sa.String(64), nullable=False),
    sa.Column("item_id", sa.String(255)),
    sa.Column("batch_id", sa.String(32)),
    sa.Column("action", sa.String(32), nullable=False),
    sa.Column("status_before", sa.String(16)),
    sa.Column("status_after", sa.String(16)),
    sa.Column("detail", sa.String(2000)),
    sa.Column("created_at", Instant, nullable=False),
    sa.Index("paceline_dispatch_audit_item_ix", "item_type", "item_id"),
    info={"about": "The audit: changes of items, with time and reason. Only inserted, and pruned."},
)

worker = sa.Table(
    "paceline_dispatch_worker",
    metadata,
    sa.Column("worker_id", sa.String(32), primary_key=True),
    sa.Column("host", sa.String(255), nullable=False),
    sa.Column("pid", sa.Integer, nullable=False),
    sa.Column("version", sa.String(64), nullable=False),
    sa.Column("engine", sa.String(16), nullable=False),
    sa.Column("roles", sa.String(255), nullable=False),
    sa.Column("item_types", sa.Text, nullable=False),
    sa.Column("concurrency", sa.Integer),
    sa.Column("running", sa.Integer),
    sa.Column("started_at", Instant, nullable=False),
    sa.Column("seen_at", Instant, nullable=False),
    sa.Column("process", sa.String(300)),
    sa.Column("machine", sa.String(128)),
    info={"about": "One row per worker that runs, or was killed. roles and item_types are JSON lists."},
)

periodic = sa.Table(
    "paceline_dispatch_periodic",
    metadata,
    sa.Column("name", sa.String(100), primary_key=True),
    sa.Column("item_type", sa.String(64), nullable=False),
    sa.Column("cron", sa.String(255)),
    sa.Column("every_ms", sa.BigInteger),
    sa.Column("zone", sa.String(64), nullable=False),
    sa.Column("calendar_json", sa.Text),
    sa.Column("catch_up", sa.String(8), nullable=False),
    sa.Column("context_json", sa.Text, nullable=False),
    sa.Column("enabled", sa.Boolean, nullable=False),
    sa.Column("ticked_until", Instant, nullable=False),
    sa.Column("last_tick", Instant),
    sa.Column("revision", sa.Integer, nullable=False),
    sa.Column("lane", sa.String(64), nullable=False, server_default=DEFAULT_LANE),
    sa.Column("priority", sa.SmallInteger, nullable=False, server_default=str(DEFAULT_PRIORITY)),
    sa.Column("said_json", sa.Text),
    sa.Column("created_at", Instant, nullable=False),
    sa.Column("updated_at", Instant, nullable=False),
    info={"about": "Periodic tasks. Ticks up to ticked_until are settled; revision guards each write."},
)

batch = sa.Table(
    "paceline_dispatch_batch",
    metadata,
    sa.Column("item_type", sa.String(64), primary_key=True),
    sa.Column("item_id", sa.String(255), primary_key=True),
    sa.Column("total", sa.Integer, nullable=False),
    sa.Column("succeeded", sa.Integer, nullable=False),
    sa.Column("failed", sa.Integer, nullable=False),
    sa.Column("cancelled", sa.Integer, nullable=False),
    sa.Column("released", sa.Boolean, nullable=False),
    info={"about": "One row per batch of calls, by its callback: how many have ended. Pruned with the callback."},
)

lock = sa.Table(
    "paceline_dispatch_lock",
    metadata,
    sa.Column("lock_name", sa.String(255), primary_key=True),
    sa.Column("item_type", sa.String(64), nullable=False),
    sa.Column("item_id", sa.String(255), nullable=False),
    sa.Index("paceline_dispatch_lock_item_ix", "item_type", "item_id"),
    info={"about": "One row per lock that an item holds, or is the next to hold."},
)

IN_FLIGHT = "queue_status IN ('CLAIMED', 'DISPATCHED')"
FINISHED = "queue_status IN ('COMPLETED', 'CANCELLED')"
READY = "queue_status = 'READY'"
LOCKED = "queue_status = 'READY' AND lock_name IS NOT NULL"
DEAD = "queue_status = 'DEAD_LETTER'"
UNKNOWN = "queue_status = 'UNKNOWN'"

INDEXES: dict[str, tuple[str, tuple[str, ...]]] = {
    "paceline_dispatch_queue_turn_ix": (READY, ("item_type", "lane", "priority", "due_at", "item_id")),
    "paceline_dispatch_queue_due_ix": (READY, ("item_type", "due_at")),
    "paceline_dispatch_queue_arrived_ix": (READY, ("item_type", "created_at")),
    "paceline_dispatch_queue_lock_ix": (LOCKED, ("lock_name", "priority", "scheduled_exec_time", "item_id")),
    "paceline_dispatch_queue_flight_ix": (IN_FLIGHT, ("item_type", "seen_at")),
    "paceline_dispatch_queue_unknown_ix": (UNKNOWN, ("item_type", "due_at")),
    "paceline_dispatch_queue_dead_ix": (DEAD, ("item_type", "item_id")),
    "paceline_dispatch_queue_done_ix": (FINISHED, ("completed_at",)),
}
"""Name -> the rows it holds, and its columns."""


def only(rows: str, column: str, dialect: str) -> sa.ColumnElement[Any]:
    """A column of the queue as in the index over `rows`; on Oracle, NULL for all other rows."""
    if dialect != "oracle":
        return queue.c[column]
    expression = sa.literal_column(f"CASE WHEN {rows} THEN {column} END", queue.c[column].type)
    # Names the parameter it is compared with; else that has the whole expression's name, with quotes and spaces.
    expression.key = column
    return expression


def among(rows: str, dialect: str) -> sa.ColumnElement[bool]:
    """The condition that lets the planner use the index over `rows`; on Oracle `only` does."""
    return sa.true() if dialect == "oracle" else sa.literal_column(f"({rows})", sa.Boolean)


for _name, (_rows, _columns) in INDEXES.items():
    # The migration writes Oracle's form.
    sa.Index(_name, *(queue.c[c] for c in _columns), postgresql_where=sa.text(_rows), sqlite_where=sa.text(_rows))
