"""Every table of version 1."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from paceline.sql.schema import Instant

revision = "0001_initial"
down_revision = None
branch_labels = None
depends_on = None

IDENTITY = sa.BigInteger().with_variant(sa.Integer, "sqlite")
"""SQLite autoincrements only a column of exactly that type."""

TABLES = (
    "outbox",
    "outbox_reader",
    "write_check",
    "slot_config",
    "slot_policy",
    "slot",
    "slot_cancelled",
    "slot_window",
    "slot_run",
    "slot_forgotten",
    "dispatch_queue",
    "dispatch_context",
    "dispatch_report",
    "dispatch_attempt",
    "dispatch_config",
    "dispatch_audit",
    "dispatch_worker",
    "dispatch_lock",
    "dispatch_batch",
    "dispatch_periodic",
    "limit_state",
    "limit_hold",
    "limit_plan",
    "permit_gate",
    "downstream",
    "token",
    "session",
    "key",
    "admin_audit",
    "audit_chain",
    "rollup",
)


def upgrade() -> None:
    _outbox()
    _write_check()
    _slots()
    _dispatch()
    _limits()
    _downstreams()
    _access()
    _rollups()


def downgrade() -> None:
    for table in TABLES:
        op.drop_table(f"paceline_{table}")


def _partial_index(name: str, table: str, columns: list[str], rows: str) -> None:
    """An index over some of the rows."""
    if op.get_context().dialect.name == "oracle":
        # Oracle indexes no row whose expressions are all NULL: this is its partial index.
        kept = ", ".join(f"CASE WHEN {rows} THEN {column} END" for column in columns)
        op.execute(f"CREATE INDEX {name} ON {table} ({kept})")
    else:
        op.create_index(name, table, columns, postgresql_where=sa.text(rows), sqlite_where=sa.text(rows))


def _outbox() -> None:
    op.create_table(
        "paceline_outbox",
        sa.Column("id", IDENTITY, sa.Identity(), nullable=False),
        sa.Column("topic", sa.String(128), nullable=False),
        sa.Column("message_key", sa.String(128), nullable=False),
        sa.Column("message_value", sa.Text, nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("traceparent", sa.String(55)),
        sa.Column("available_at", Instant),
        sa.PrimaryKeyConstraint("id", name="paceline_outbox_pk"),
        sqlite_autoincrement=True,
    )
    op.create_index("paceline_outbox_topic_id_ix", "paceline_outbox", ["topic", "id"])
    op.create_table(
        "paceline_outbox_reader",
        sa.Column("topic", sa.String(128), nullable=False),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("leased_until", Instant, nullable=False),
        sa.PrimaryKeyConstraint("topic", name="paceline_outbox_reader_pk"),
    )


def _write_check() -> None:
    op.create_table(
        "paceline_write_check",
        sa.Column("id", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("written_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("id", name="paceline_write_check_pk"),
    )


def _slots() -> None:
    op.create_table(
        "paceline_slot_config",
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("template", sa.String(128)),
        sa.PrimaryKeyConstraint("name", name="paceline_slot_config_pk"),
    )
    op.create_table(
        "paceline_slot_policy",
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("version", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("policy", sa.Text, nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("name", "version", name="paceline_slot_policy_pk"),
    )
    op.create_table(
        "paceline_slot",
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
        sa.PrimaryKeyConstraint("event_id", name="paceline_slot_pk"),
    )
    op.create_index("paceline_slot_scheduled_at_ix", "paceline_slot", ["scheduled_at"])
    op.create_table(
        "paceline_slot_cancelled",
        sa.Column("id", IDENTITY, sa.Identity(), nullable=False),
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
        sa.PrimaryKeyConstraint("id", name="paceline_slot_cancelled_pk"),
        sqlite_autoincrement=True,
    )
    op.create_index("paceline_slot_cancelled_cancelled_at_ix", "paceline_slot_cancelled", ["cancelled_at"])
    op.create_index("paceline_slot_cancelled_scheduled_at_ix", "paceline_slot_cancelled", ["scheduled_at"])
    op.create_table(
        "paceline_slot_window",
        sa.Column("config_name", sa.String(128), nullable=False),
        sa.Column("window_start", Instant, nullable=False),
        sa.Column("taken", sa.Integer, nullable=False),
        sa.Column("placed", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("config_name", "window_start", name="paceline_slot_window_pk"),
    )
    op.create_table(
        "paceline_slot_run",
        sa.Column("config_name", sa.String(128), nullable=False),
        sa.Column("window_start", Instant, nullable=False),
        sa.Column("resume_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("config_name", "window_start", name="paceline_slot_run_pk"),
    )
    op.create_table(
        "paceline_slot_forgotten",
        sa.Column("config_name", sa.String(128), nullable=False),
        sa.Column("slots_until", Instant, nullable=False),
        sa.Column("counters_until", Instant, nullable=False),
        sa.PrimaryKeyConstraint("config_name", name="paceline_slot_forgotten_pk"),
    )


def _dispatch() -> None:
    op.create_table(
        "paceline_dispatch_queue",
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
        sa.Column("traceparent", sa.String(55)),
        sa.Column("lane", sa.String(64), nullable=False, server_default="default"),
        sa.Column("priority", sa.SmallInteger, nullable=False, server_default="5"),
        sa.Column("slot_id", sa.String(255)),
        sa.Column("last_attempt", sa.Integer),
        sa.Column("begun_at", Instant),
        sa.Column("worker", sa.String(300)),
        sa.Column("code_version", sa.String(64)),
        sa.Column("unknown_since", Instant),
        sa.Column("lock_name", sa.String(255)),
        sa.PrimaryKeyConstraint("item_type", "item_id", name="paceline_dispatch_queue_pk"),
    )
    _partial_index(
        "paceline_dispatch_queue_arrived_ix",
        "paceline_dispatch_queue",
        ["item_type", "created_at"],
        "queue_status = 'READY'",
    )
    _partial_index(
        "paceline_dispatch_queue_dead_ix",
        "paceline_dispatch_queue",
        ["item_type", "item_id"],
        "queue_status = 'DEAD_LETTER'",
    )
    _partial_index(
        "paceline_dispatch_queue_done_ix",
        "paceline_dispatch_queue",
        ["completed_at"],
        "queue_status IN ('COMPLETED', 'CANCELLED')",
    )
    _partial_index(
        "paceline_dispatch_queue_due_ix",
        "paceline_dispatch_queue",
        ["item_type", "due_at"],
        "queue_status = 'READY'",
    )
    _partial_index(
        "paceline_dispatch_queue_unknown_ix",
        "paceline_dispatch_queue",
        ["item_type", "due_at"],
        "queue_status = 'UNKNOWN'",
    )
    _partial_index(
        "paceline_dispatch_queue_lock_ix",
        "paceline_dispatch_queue",
        ["lock_name", "priority", "scheduled_exec_time", "item_id"],
        "queue_status = 'READY' AND lock_name IS NOT NULL",
    )
    _partial_index(
        "paceline_dispatch_queue_flight_ix",
        "paceline_dispatch_queue",
        ["item_type", "seen_at"],
        "queue_status IN ('CLAIMED', 'DISPATCHED')",
    )
    some = sa.text("slot_id IS NOT NULL")  # Oracle's indexes leave out NULL by themselves
    op.create_index(
        "paceline_dispatch_queue_slot_ix",
        "paceline_dispatch_queue",
        ["slot_id"],
        postgresql_where=some,
        sqlite_where=some,
    )
    _partial_index(
        "paceline_dispatch_queue_turn_ix",
        "paceline_dispatch_queue",
        ["item_type", "lane", "priority", "due_at", "item_id"],
        "queue_status = 'READY'",
    )
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
        "paceline_dispatch_report",
        sa.Column("item_type", sa.String(64), nullable=False),
        sa.Column("item_id", sa.String(255), nullable=False),
        sa.Column("claim_epoch", sa.Integer, nullable=False),
        sa.Column("fraction", sa.Double),
        sa.Column("progress_text", sa.String(2000)),
        sa.Column("result_json", sa.Text),
        sa.Column("updated_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("item_type", "item_id", name="paceline_dispatch_report_pk"),
    )
    op.create_table(
        "paceline_dispatch_attempt",
        sa.Column("item_type", sa.String(64), nullable=False),
        sa.Column("item_id", sa.String(255), nullable=False),
        sa.Column("claim_epoch", sa.Integer, nullable=False),
        sa.Column("attempt_number", sa.Integer, nullable=False),
        sa.Column("begun_at", Instant),
        sa.Column("ended_at", Instant, nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("error", sa.String(2000)),
        sa.Column("traceback", sa.Text),
        sa.Column("worker", sa.String(300)),
        sa.Column("code_version", sa.String(64)),
        sa.PrimaryKeyConstraint("item_type", "item_id", "claim_epoch", name="paceline_dispatch_attempt_pk"),
    )
    op.create_index("paceline_dispatch_attempt_ended_at_ix", "paceline_dispatch_attempt", ["item_type", "ended_at"])
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
        sa.Column("concurrency", sa.Integer),
        sa.Column("lane_concurrency", sa.Integer),
        sa.Column("queue", sa.String(64), nullable=False, server_default="default"),
        sa.Column("rate", sa.String(255)),
        sa.Column("on_unknown", sa.String(8), nullable=False, server_default="retry"),
        sa.Column("hold_for_secs", sa.Double, nullable=False, server_default="86400"),
        sa.Column("stated_json", sa.Text),
        sa.PrimaryKeyConstraint("item_type", name="paceline_dispatch_config_pk"),
    )
    op.create_table(
        "paceline_dispatch_audit",
        sa.Column("audit_id", IDENTITY, sa.Identity(), nullable=False),
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
    op.create_table(
        "paceline_dispatch_worker",
        sa.Column("worker_id", sa.String(32), nullable=False),
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
        sa.PrimaryKeyConstraint("worker_id", name="paceline_dispatch_worker_pk"),
    )
    op.create_table(
        "paceline_dispatch_lock",
        sa.Column("lock_name", sa.String(255), nullable=False),
        sa.Column("item_type", sa.String(64), nullable=False),
        sa.Column("item_id", sa.String(255), nullable=False),
        sa.PrimaryKeyConstraint("lock_name", name="paceline_dispatch_lock_pk"),
    )
    op.create_index("paceline_dispatch_lock_item_ix", "paceline_dispatch_lock", ["item_type", "item_id"])
    op.create_table(
        "paceline_dispatch_batch",
        sa.Column("item_type", sa.String(64), nullable=False),
        sa.Column("item_id", sa.String(255), nullable=False),
        sa.Column("total", sa.Integer, nullable=False),
        sa.Column("succeeded", sa.Integer, nullable=False),
        sa.Column("failed", sa.Integer, nullable=False),
        sa.Column("cancelled", sa.Integer, nullable=False),
        sa.Column("released", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("item_type", "item_id", name="paceline_dispatch_batch_pk"),
    )
    op.create_table(
        "paceline_dispatch_periodic",
        sa.Column("name", sa.String(100), nullable=False),
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
        sa.Column("lane", sa.String(64), nullable=False, server_default="default"),
        sa.Column("priority", sa.SmallInteger, nullable=False, server_default="5"),
        sa.Column("said_json", sa.Text),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("updated_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("name", name="paceline_dispatch_periodic_pk"),
    )


def _limits() -> None:
    op.create_table(
        "paceline_limit_state",
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("plan", sa.String(128), nullable=False),
        sa.Column("state", sa.Text),
        sa.Column("expires_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("key", "plan", name="paceline_limit_state_pk"),
    )
    op.create_index("paceline_limit_state_expires_at_ix", "paceline_limit_state", ["expires_at"])
    op.create_table(
        "paceline_limit_hold",
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("id", sa.String(128), nullable=False),
        sa.Column("settled", sa.Boolean, nullable=False),
        sa.Column("marks", sa.Text),
        sa.Column("expires_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("key", "id", name="paceline_limit_hold_pk"),
    )
    op.create_index("paceline_limit_hold_expires_at_ix", "paceline_limit_hold", ["expires_at"])
    op.create_table(
        "paceline_limit_plan",
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("revision", sa.Integer, nullable=False),
        sa.Column("plan", sa.Text),
        sa.Column("changed_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("name", name="paceline_limit_plan_pk"),
    )


def _downstreams() -> None:
    op.create_table(
        "paceline_permit_gate",
        sa.Column("name", sa.String(80), nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("updated_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("name", name="paceline_permit_gate_pk"),
    )
    op.create_table(
        "paceline_downstream",
        sa.Column("name", sa.String(80), nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("updated_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("name", name="paceline_downstream_pk"),
    )


def _access() -> None:
    op.create_table(
        "paceline_token",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("scopes", sa.String(64), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("revoked_at", Instant),
        sa.Column("expires_at", Instant),
        sa.Column("earlier_digest", sa.String(64)),
        sa.Column("earlier_until", Instant),
        sa.Column("names", sa.String(1000)),
        sa.Column("rate", sa.String(256)),
        sa.PrimaryKeyConstraint("name", name="paceline_token_pk"),
    )
    op.create_table(
        "paceline_session",
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("caller", sa.String(64), nullable=False),
        sa.Column("seal", sa.String(64), nullable=False),
        sa.Column("opened_at", Instant, nullable=False),
        sa.Column("expires_at", Instant, nullable=False),
        sa.Column("checked_at", Instant, nullable=False),
        sa.Column("address", sa.String(64)),
        sa.Column("member_of", sa.Text),
        sa.Column("renewal", sa.Text),
        sa.PrimaryKeyConstraint("digest", name="paceline_session_pk"),
    )
    op.create_index("paceline_session_expires_at_ix", "paceline_session", ["expires_at"])
    op.create_table(
        "paceline_key",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("value", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("name", name="paceline_key_pk"),
    )
    op.create_table(
        "paceline_admin_audit",
        sa.Column("id", IDENTITY, sa.Identity(), nullable=False),
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
        sa.PrimaryKeyConstraint("id", name="paceline_admin_audit_pk"),
    )
    op.create_table(
        "paceline_audit_chain",
        sa.Column("name", sa.String(16), nullable=False),
        sa.Column("link", sa.BigInteger, nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("name", name="paceline_audit_chain_pk"),
    )


def _rollups() -> None:
    op.create_table(
        "paceline_rollup",
        sa.Column("step_seconds", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("period_start", Instant, nullable=False),
        sa.Column("process", sa.String(32), nullable=False),
        sa.Column("series", sa.String(32), nullable=False),
        sa.Column("label", sa.String(255), nullable=False),
        sa.Column("bucket", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("value", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint(
            "step_seconds", "period_start", "process", "series", "label", "bucket", name="paceline_rollup_pk"
        ),
    )
