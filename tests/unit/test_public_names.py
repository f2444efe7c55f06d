"""What `import headgate` gives, and what it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import headgate
from headgate import bootstrap

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


def test_importing_bootstrap_imports_no_driver_until_a_name_is_asked_for() -> None:
    script = f"import sys; from headgate.bootstrap import limit_store; print(*sorted({DRIVERS!r} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert loaded == []


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, names in bootstrap.MODULES.items() for name in names]
)
def test_bootstrap_finds_each_name_in_its_module(module: str, name: str) -> None:
    assert getattr(bootstrap, name).__module__ == f"headgate.bootstrap.{module}"
    assert name not in bootstrap.MODULES, "importing the module of that name would hide it"


def test_bootstrap_knows_no_other_name() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'unheard_of'"):
        getattr(bootstrap, "unheard_of")  # noqa: B009
