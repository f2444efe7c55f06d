"""A later version of paceline: this one with one more migration, which adds a table and a column."""

from __future__ import annotations

import shutil
from pathlib import Path

from paceline.sql.migrate import STEPS, Steps

ADDED = f"{len(STEPS.names) + 1:04d}_added"
TABLE = "paceline_added"
COLUMN = "added"
"""In the table `paceline_outbox_reader`."""

_STEP = f'''
import sqlalchemy as sa
from alembic import op

revision = "{ADDED}"
down_revision = "{STEPS.names[-1]}"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table("{TABLE}", sa.Column("name", sa.String(32)))
    op.add_column("paceline_outbox_reader", sa.Column("{COLUMN}", sa.String(32)))


def downgrade() -> None:
    op.drop_column("paceline_outbox_reader", "{COLUMN}")
    op.drop_table("{TABLE}")
'''


def steps(folder: Path, oldest_runnable: str = STEPS.oldest_runnable) -> Steps:
    """The steps of the later version, written to a folder that does not exist yet."""
    shutil.copytree(STEPS.folder, folder)
    (folder / f"{ADDED}.py").write_text(_STEP)
    return Steps(folder, oldest_runnable)


def modules(folder: Path) -> str:
    """Writes the modules of the later version to a folder, and returns what `PYTHONPATH` is to be."""
    package = STEPS.folder.parents[2]
    versions = STEPS.folder.relative_to(package)
    shutil.copytree(package, folder / package.name)
    (folder / package.name / versions / f"{ADDED}.py").write_text(_STEP)
    return str(folder)
