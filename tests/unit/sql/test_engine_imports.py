"""What a process that opens a database loads."""

from __future__ import annotations

import subprocess
import sys

OPENED = """
import sys
from paceline.sql.engine import Database
Database("postgresql://nobody@127.0.0.1/none")
print("sqlalchemy.orm" in sys.modules)
"""


def test_postgresql_is_opened_without_the_orm() -> None:
    """The ORM is seven megabytes of each process, and nothing here uses it."""
    done = subprocess.run([sys.executable, "-c", OPENED], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
