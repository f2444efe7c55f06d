"""What tests of workers share: a database, and a recorder outside of the workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.recorder import Recorder, recording


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An SQLite file or a PostgreSQL database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'work.db'}"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    """A recorder that answers at once."""
    with recording(0) as recorder:
        yield recorder
