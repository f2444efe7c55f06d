"""Contexts and results at rest: nothing readable in the database, and every way to read them decrypts."""

from __future__ import annotations

import asyncio
import base64
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from paceline import Tasks
from paceline.dispatch.encryption import Encryption
from paceline.dispatch.model import EnqueueRequest
from paceline.dispatch.ports import QueueStore
from paceline.dispatch.queue import DispatchQueue
from paceline.dispatch.registry import Domain, Registry
from paceline.dispatch.status import Status
from paceline.dispatch.stores import queue_store
from paceline.dispatch.worker.cycle import DispatchCycle
from paceline.dispatch.worker.engine import LocalEngine
from paceline.dispatch.worker.outcome_reporter import OutcomeReporter
from paceline.testing import eventually
from tests.contracts.conftest import slot_store_url
from tests.contracts.queue.items import CONFIG, NOW, T

OLD, NEW, OTHER = (base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2, 3))
SECRET = "DE89370400440532013000"
FAST = replace(CONFIG, jitter_window_ms=0, max_dispatch_retries=1)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    return slot_store_url(request.param, request)


async def opened(url: str, *keys: str) -> QueueStore:
    store = await queue_store(url, encryption=Encryption(keys) if keys else None)
    await store.configure(FAST, now=T)
    return store


async def texts(url: str) -> str:
    """All contexts and results, as they stand in the database."""
    statements = [
        "SELECT context_json, context_version FROM paceline_dispatch_context",
        "SELECT result_json FROM paceline_dispatch_report",
    ]
    if url.startswith("sqlite"):
        with sqlite3.connect(Path(url.removeprefix("sqlite:///"))) as connection:
            rows: list[Any] = [connection.execute(statement).fetchall() for statement in statements]
        connection.close()
    else:
        with psycopg.connect(url) as postgres:
            rows = [postgres.execute(statement).fetchall() for statement in statements]
    return str(rows)


async def run(store: QueueStore) -> list[Any]:
    """Runs what is due, and returns what executions were given."""
    given: list[Any] = []

    async def execute(_item_id: str, context: Any) -> None:
        given.append(context)

    outcomes = OutcomeReporter(store)
    engine = LocalEngine(Registry(Domain(FAST, execute)), outcomes)
    await DispatchCycle(store, engine).run("PAY", now=T)
    await engine.drained()
    await engine.close()
    await outcomes.close()
    return given


async def test_arguments_and_results_of_tasks_are_unreadable_in_the_database(url: str) -> None:
    async with Tasks(url, encryption_keys=[OLD]) as tasks:

        @tasks.task
        async def pay(iban: str) -> str:
            return f"paid {iban}"

        await pay.options(key="one").enqueue(SECRET)
        assert SECRET not in await texts(url)
        assert "enc1:" in await texts(url)
        assert (await pay.show("one")).context == {"iban": SECRET}

        async def result() -> Any:
            return (await pay.show("one")).result

        async with tasks.running():
            assert await eventually(result) == f"paid {SECRET}"
        stored = await texts(url)
        assert SECRET not in stored
        assert "enc1:" in stored
    async with DispatchQueue.open(url) as queue:
        key = Encryption([OLD]).key_id
        assert (await queue.show("PAY", "one")).result == f"encrypted with the key {key}"


async def test_keys_are_rotated_while_items_wait(url: str) -> None:
    plain, old, both = await opened(url), await opened(url, OLD), await opened(url, NEW, OLD)
    await plain.enqueue([EnqueueRequest.of("PAY", "a", "plain", T)], now=T)
    await old.enqueue([EnqueueRequest.of("PAY", "b", "old", T)], now=T)
    await both.enqueue([EnqueueRequest.of("PAY", "c", "new", T)], now=T)
    assert Encryption([NEW]).key_id in await texts(url)
    assert sorted(await run(both)) == ["new", "old", "plain"]
    for store in (plain, old, both):
        await store.close()


@pytest.mark.parametrize("keys", [(), (OTHER,)])
async def test_a_process_without_the_key_gives_the_item_back_and_counts_nothing(
    url: str, keys: tuple[str, ...]
) -> None:
    with_key, without = await opened(url, OLD), await opened(url, *keys)
    await with_key.enqueue([EnqueueRequest.of("PAY", "a", {"iban": SECRET}, T)], now=T)
    assert await run(without) == []
    row = await with_key.find("PAY", "a")
    assert row is not None
    assert (row[0].status, row[0].retry_count, row[0].last_error) == (Status.READY, 0, None)
    (entry, *_) = [entry for entry in await with_key.audit("PAY", "a", 10, None) if entry.action == "RELEASED"]
    assert entry.detail is not None
    assert Encryption([OLD]).key_id in entry.detail
    for store in (with_key, without):
        await store.close()


async def test_a_context_moved_from_another_item_is_a_dead_letter(url: str) -> None:
    store = await opened(url, OLD)
    await store.enqueue([EnqueueRequest.of("PAY", name, {"to": name}, T) for name in "ab"], now=T)
    swap = (
        "UPDATE paceline_dispatch_context SET context_json = "
        "(SELECT context_json FROM paceline_dispatch_context WHERE item_id = 'a') WHERE item_id = 'b'"
    )
    if url.startswith("sqlite"):
        with sqlite3.connect(Path(url.removeprefix("sqlite:///"))) as connection:
            connection.execute(swap)
        connection.close()
    else:
        with psycopg.connect(url) as postgres:
            postgres.execute(swap)
    assert await run(store) == [{"to": "a"}]
    row = await store.find("PAY", "b")
    assert row is not None
    assert (row[0].status, "can't be decrypted" in str(row[0].last_error)) == (Status.DEAD_LETTER, True)
    await store.close()


async def test_a_queue_in_the_callers_transaction_encrypts_too(url: str) -> None:
    if not url.startswith("postgresql"):
        pytest.skip("one driver will do")
    store = await opened(url, OLD)
    async with await psycopg.AsyncConnection.connect(url) as connection:
        await store.enqueue([EnqueueRequest.of("PAY", "a", {"iban": SECRET}, T)], within=connection, now=T)
    assert SECRET not in await texts(url)
    (item,) = (await asyncio.wait_for(store.claim("PAY", 1, NOW, now=T), 20)).items
    assert item.context_json == f'{{"iban":"{SECRET}"}}'
    await store.close()
