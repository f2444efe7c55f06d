"""Changes on the command line are in the same audit as changes over HTTP."""

from __future__ import annotations

import asyncio
import os
import pwd
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from paceline import DispatchQueue
from paceline.dispatch.config import DispatchConfig
from paceline.server.access.ports import AuditEntry
from paceline.server.cli import app
from paceline.server.settings import Settings
from paceline.server.wiring.access import open_access_store

ME = f"cli:{pwd.getpwuid(os.getuid()).pw_name}"


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    found = f"sqlite:///{tmp_path / 'audit.db'}"
    monkeypatch.setenv("PACELINE_DATABASE_URL", found)
    # The environment's user name is ignored.
    monkeypatch.setenv("USER", "somebody-else")
    monkeypatch.setenv("LOGNAME", "somebody-else")
    return found


def entries(url: str) -> list[AuditEntry]:
    """Oldest first."""

    async def read() -> list[AuditEntry]:
        async with open_access_store(Settings(database_url=url)) as store:
            return [entry for _, entry in reversed(await store.recent(100))]

    return asyncio.run(read())


CHANGES = [
    ("config set bulk --max 10 --window PT1S", "config set bulk", 200),
    ("config set bulk --max 0", "config set bulk", 400),
    ("plans set gold --capacity 5 --per-second 1", "plans set gold", 200),
    ("plans delete gold", "plans delete gold", 200),
    ("plans delete gold", "plans delete gold", 404),
    ("tokens create ci --scope read", "tokens create ci", 200),
    ("tokens create ci --scope read", "tokens create ci", 409),
    ("tokens revoke ci", "tokens revoke ci", 200),
    ("queue pause PAYMENT", "queue pause PAYMENT", 404),
    ("queue set PAYMENT --rate 5/second", "queue set PAYMENT", 404),
    ("queue resume PAYMENT", "queue resume PAYMENT", 404),
    ("queue requeue PAYMENT a b", "queue requeue PAYMENT a b", 404),
    ("queue discard PAYMENT --all", "queue discard PAYMENT --all", 404),
    ("prune --before P30D", "prune --before P30D", 200),
]


def test_every_changing_command_is_recorded_with_its_user(url: str) -> None:
    for words, _, _ in CHANGES:
        CliRunner().invoke(app, words.split())
    found = entries(url)
    assert [(entry.path, entry.status) for entry in found] == [(path, status) for _, path, status in CHANGES]
    assert {(entry.caller, entry.method) for entry in found} == {(ME, "CLI")}
    assert all(entry.request_id for entry in found)


def test_operating_a_real_queue_is_recorded_with_its_ids(url: str) -> None:
    async def dead_letters() -> None:
        async with DispatchQueue.open(url) as queue:
            await queue.define(DispatchConfig(item_type="INVOICE"))
            for item_id in ("dead-1", "dead-2"):
                await queue.enqueue("INVOICE", item_id, context={}, execute_at=datetime.now(UTC) + timedelta(days=1))

    asyncio.run(dead_letters())
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
        connection.execute("UPDATE paceline_dispatch_queue SET queue_status = 'DEAD_LETTER'")
    done = {
        "queue pause INVOICE": "INVOICE is paused",
        "queue requeue INVOICE dead-1": "requeued 1 items",
        "queue discard INVOICE dead-1 dead-2": "discarded 2 items",
        "queue resume INVOICE": "INVOICE is enabled",
    }
    for words, output in done.items():
        ended = CliRunner().invoke(app, words.split())
        assert (ended.exit_code, ended.output.strip()) == (0, output), words
    assert [(entry.path, entry.status, entry.caller) for entry in entries(url)] == [(path, 200, ME) for path in done]
    ended = CliRunner().invoke(app, ["queue", "set", "INVOICE", "--rate", "5/second", "--concurrency", "none"])
    assert (ended.exit_code, ended.output) == (0, "INVOICE rate: 5/second\nINVOICE concurrency: none\n")
    ended = CliRunner().invoke(app, ["queue", "set", "INVOICE", "--concurrency", "few"])
    assert (ended.exit_code, "--concurrency: must be a whole number, or none" in str(ended.exception)) == (1, True)
    ended = CliRunner().invoke(app, ["plans", "set", "task:INVOICE", "5/second"])
    assert (ended.exit_code, "paceline queue set TYPE --rate" in str(ended.exception)) == (1, True)


def test_words_that_are_no_text_are_recorded_all_the_same(url: str) -> None:
    """What the shell passes on need not be UTF-8."""
    CliRunner().invoke(app, ["queue", "discard", "PAYMENT", "half-\udc80"])
    assert [(entry.path, entry.status) for entry in entries(url)] == [("queue discard PAYMENT half-\\udc80", 404)]


def test_looking_is_not_recorded(url: str) -> None:
    for words in ("config get", "config history", "plans list", "tokens list", "queue stats", "doctor", "migrate up"):
        assert CliRunner().invoke(app, words.split()).exit_code == 0, words
    assert entries(url) == []


def test_a_change_that_cannot_be_recorded_is_not_made(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entries(url)
    with monkeypatch.context() as broken:

        async def refuse(*_: object) -> int:
            raise RuntimeError("the audit can't be written")

        broken.setattr("paceline.server.access.stores.sql.SqlAccessStore.begin", refuse)
        assert CliRunner().invoke(app, ["config", "set", "bulk", "--max", "10", "--window", "PT1S"]).exit_code == 1
    assert CliRunner().invoke(app, ["config", "get", "bulk"]).exit_code == 1
