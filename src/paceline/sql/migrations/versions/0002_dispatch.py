"""Dispatch: queue, contexts, config, audit."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from paceline.sql.schema import Instant

revision = "0002_dispatch"
down_revision = "0001_slots"
branch_labels = None
depends_on = None

QUEUE = "paceline_dispatch_queue"
INDEXES = {
    f"{QUEUE}_ready_ix": ("queue_status = 'READY'", ["item_type", "due_at", "item_id"]),
    f"{QUEUE}_flight_ix": ("queue_status IN ('CLAIMED', 'DISPATCHED')", ["item_type", "seen_at"]),
    f"{QUEUE}_dead_ix": ("queue_status = 'DEAD_LETTER'", ["item_type", "item_id"]),
    f"{QUEUE}_done_ix": ("queue_status IN ('COMPLETED', 'CANCELLED')", ["completed_at"]),
}


def upgrade() -> None:
    op.create_table(
        QUEUE,
        sa.Column("item_type", sa.String(64), nullable=False),
        sa.Column("item_id", sa.String(255), nullable=False),
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
        sa.PrimaryKeyConstraint("item_type", "item_id", name=f"{QUEUE}_pk"),
    )
    for name, (rows, columns) in INDEXES.items():
        if op.get_context().dialect.name == "oracle":
            # Oracle indexes no row whose expressions are all NULL: this is its partial index.
            kept = ", ".join(f"CASE WHEN {rows} THEN {column} END" for column in columns)
            op.execute(f"CREATE INDEX {name} ON {QUEUE} ({kept})")
        else:
            op.create_index(name, QUEUE, columns, postgresql_where=sa.text(rows), sqlite_where=sa.text(rows))
    op.create_table(
        "paceline_dispatch_context",
        sa.Column("item_type", sa.String(64), nullable=False),
        sa.Column("item_id", sa.String(255), nullable=False),
        sa.Column("context_json", sa.Text, nullable=False),
        sa.Column("context_version", sa.Integer, nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("item_type", "item_id", name="paceline_dispatch_context_pk"),
    )
    op.create_table(
        "paceline_dispatch_config",
        sa.Column("item_type", sa.String(64), nullable=False),
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
        sa.PrimaryKeyConstraint("item_type", name="paceline_dispatch_config_pk"),
    )
    op.create_table(
        "paceline_dispatch_audit",
        sa.Column("audit_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), sa.Identity(), nullable=False),
        sa.Column("item_type", sa.String(64), nullable=False),
        sa.Column("item_id", sa.String(255)),
        sa.Column("batch_id", sa.String(32)),
        sa.Column("action", sa.String(32), nullable=False),
        sa.Column("status_before", sa.String(16)),
        sa.Column("status_after", sa.String(16)),
        sa.Column("detail", sa.String(2000)),
        sa.Column("created_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("audit_id", name="paceline_dispatch_audit_pk"),
    )
    op.create_index("paceline_dispatch_audit_item_ix", "paceline_dispatch_audit", ["item_type", "item_id"])


def downgrade() -> None:
    for table in ("audit", "config", "context", "queue"):
        op.drop_table(f"paceline_dispatch_{table}")
