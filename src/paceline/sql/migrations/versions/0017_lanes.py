"""Dispatch: priorities, lanes with fair turns, and concurrency limits across processes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017_lanes"
down_revision = "0016_task_reports"
branch_labels = None
depends_on = None

QUEUE = "paceline_dispatch_queue"
CONFIG = "paceline_dispatch_config"
READY = "queue_status = 'READY'"


def upgrade() -> None:
    op.add_column(QUEUE, sa.Column("lane", sa.String(64), nullable=False, server_default="default"))
    op.add_column(QUEUE, sa.Column("priority", sa.SmallInteger, nullable=False, server_default="5"))
    op.add_column(CONFIG, sa.Column("concurrency", sa.Integer))
    op.add_column(CONFIG, sa.Column("lane_concurrency", sa.Integer))
    _index(f"{QUEUE}_turn_ix", ["item_type", "lane", "priority", "due_at", "item_id"])
    op.drop_index(f"{QUEUE}_ready_ix", QUEUE)


def downgrade() -> None:
    _index(f"{QUEUE}_ready_ix", ["item_type", "due_at", "item_id"])
    op.drop_index(f"{QUEUE}_turn_ix", QUEUE)
    for name in ("lane_concurrency", "concurrency"):
        op.drop_column(CONFIG, name)
    for name in ("priority", "lane"):
        op.drop_column(QUEUE, name)


def _index(name: str, columns: list[str]) -> None:
    if op.get_context().dialect.name == "oracle":
        # Oracle indexes no row whose expressions are all NULL: this is its partial index.
        kept = ", ".join(f"CASE WHEN {READY} THEN {column} END" for column in columns)
        op.execute(f"CREATE INDEX {name} ON {QUEUE} ({kept})")
    else:
        op.create_index(name, QUEUE, columns, postgresql_where=sa.text(READY), sqlite_where=sa.text(READY))
