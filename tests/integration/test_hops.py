"""The way from `POST /api/v1/slots` to the commit stays short."""

from __future__ import annotations

import sys

import pytest
from benchmarks import hops

from paceline import tracing
from paceline.server.http.app import create_app
from paceline.server.settings import Settings

MOST_FILES, MOST_FUNCTIONS = 29, 120
"""The second of the two flushes, and the writer of all configs, have their price."""


async def test_a_slot_runs_through_few_files_and_functions(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # As in a service that traces nothing: a test before this one may have.
    monkeypatch.delitem(sys.modules, tracing.API, raising=False)
    # Nor do messages wait: their readers would be at work meanwhile.
    app = create_app(Settings.load(database_url=postgres_url, sms={"sender": "worker"}))
    async with app.router.lifespan_context(app):
        walk = await hops.walk(lambda number: hops.book_slot(app, number))
    files = {file for file, _ in walk.to_commit}
    assert {"server/http/slots.py", "slots/booking/packing.py", "sql/pipeline.py"} <= files
    assert len(files) <= MOST_FILES, sorted(files)
    assert len(walk.to_commit) <= MOST_FUNCTIONS, walk.to_commit
