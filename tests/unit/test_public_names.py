"""What `import headgate` gives, and what it costs."""

from __future__ import annotations

import subprocess
import sys

import headgate

DRIVERS = {
    "sqlalchemy", "alembic", "psycopg", "oracledb", "redis", "confluent_kafka", "temporalio", "fastapi", "starlette",
    "uvicorn", "pydantic", "httpx", "prometheus_client", "structlog", "typer", "rich", "holidays", "matplotlib",
}  # fmt: skip


def test_every_public_name_is_there_and_sorted() -> None:
    assert sorted(headgate.__all__) == headgate.__all__
    assert all(hasattr(headgate, name) for name in headgate.__all__)


def test_importing_headgate_imports_no_driver() -> None:
    script = f"import sys, headgate; print(*sorted({DRIVERS!r} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert loaded == []
