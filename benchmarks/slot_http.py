"""`POST /api/v1/slots` beside a bare FastAPI endpoint that takes and returns the same bodies."""

from __future__ import annotations

from benchmarks.measure import Table


def endpoint(table: Table, url: str, quick: bool) -> None:
    """Adds the endpoint's row."""
