"""`DispatchQueue`: what callers see, whatever the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.decisions import unrunnable
from paceline.dispatch.queue import DispatchQueue
from paceline.dispatch.status import Status
from paceline.dispatch.stores import admin_queries
from paceline.dispatch.stores.rows import write_audit
from paceline.errors import Conflict, InvalidInput, NotFound
from paceline.server.shapes.dispatch import ItemDetailShown
from paceline.slots.model import AssignedSlot

T = datetime(2027, 3, 1, 16, 0, 0, tzinfo=UTC)


@pytest.fixture(params=["memory", "sqlite"])
async def queue(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[DispatchQueue]:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'queue.db'}"
    async with DispatchQueue.open(url) as queue:
        await queue.configure("PAYMENT", batch_size=10)
        yield queue


async def test_the_contract_example(queue: DispatchQueue) -> None:
    queued = await queue.enqueue("PAYMENT", "pay-123", context={"amount": "12.34"}, execute_at=T)
    assert queued == ("PAYMENT", "pay-123", False)
    assert (await queue.enqueue("PAYMENT", "pay-123", context={"amount": "other"})).existing
    detail = await queue.show("PAYMENT", "pay-123")
    assert (detail.item.execute_at, detail.context, detail.audit) == (T, {"amount": "12.34"}, [])
    assert ItemDetailShown.of_detail(detail).dump()["status"] == "READY"


async def test_a_slot_gives_the_time_and_spares_the_jitter(queue: DispatchQueue) -> None:
    slot = AssignedSlot("a", "default", 1, 0, 0, 1_800_000_000_123)
    await queue.enqueue("PAYMENT", "a", slot=slot)
    item = (await queue.show("PAYMENT", "a")).item
    assert (item.execute_at, item.slotted) == (slot.scheduled_time, True)


async def test_concurrent_single_enqueues_share_transactions(queue: DispatchQueue) -> None:
    results = await asyncio.gather(*(queue.enqueue("PAYMENT", f"p{n % 50}", context=n) for n in range(100)))
    assert sum(not result.existing for result in results) == 50
    assert (await queue.stats("PAYMENT")).depth == {Status.READY: 50}


async def test_many_at_once_with_mixed_times(queue: DispatchQueue) -> None:
    many = [(f"m{n:05}", {"n": n}, T if n % 2 else None) for n in range(5001)]
    results = await queue.enqueue_many("PAYMENT", many, slotted=True)
    assert len(results) == 5001
    assert not any(result.existing for result in results)
    assert (await queue.show("PAYMENT", "m00001")).item.slotted
    assert all(result.existing for result in await queue.enqueue_many("PAYMENT", many[:10]))


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"item_id": ""}, "item_id"),
        ({"item_id": "x" * 256}, "item_id"),
        ({"item_id": "a\x00b"}, "item_id"),
        ({"item_id": 7}, "item_id"),
        ({"item_type": "no such/type"}, "item_type"),
        ({"context": {"a": object()}}, "context"),
        ({"context": {"a": float("nan")}}, "context"),
        ({"context": "\ud800"}, "context"),
        ({"context": "x" * (2 * 1024 * 1024)}, "context"),
        ({"context": "é" * (1024 * 1024)}, "context"),
        ({"execute_at": "yesterday"}, "execute_at"),
        ({"execute_at": datetime(2027, 1, 1)}, "execute_at"),
        ({"execute_at": datetime(9999, 1, 1, tzinfo=UTC)}, "execute_at"),
        ({"execute_at": "1969-12-31T23:59:59Z"}, "execute_at"),
        ({"execute_at": 5}, "execute_at"),
        ({"init_workflow_id": "x" * 401}, "init_workflow_id"),
    ],
)
async def test_bad_input_names_its_field_and_writes_nothing(
    queue: DispatchQueue, arguments: dict[str, Any], field: str
) -> None:
    given = {"item_type": "PAYMENT", "item_id": "a", **arguments}
    with pytest.raises(InvalidInput) as refused:
        await queue.enqueue(given.pop("item_type"), given.pop("item_id"), **given)
    assert refused.value.field == field
    assert (await queue.stats("PAYMENT")).depth == {}


async def test_deep_and_circular_contexts_are_refused(queue: DispatchQueue) -> None:
    circular: list[Any] = []
    circular.append(circular)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for context in (circular, deep):
        with pytest.raises(InvalidInput, match="context"):
            await queue.enqueue("PAYMENT", "a", context=context)


async def test_one_bad_item_of_many_writes_none(queue: DispatchQueue) -> None:
    with pytest.raises(InvalidInput, match="execute_at"):
        await queue.enqueue_many("PAYMENT", [("a", 1, None), ("b", 2, "soon")])
    assert (await queue.stats("PAYMENT")).depth == {}


@pytest.mark.parametrize(
    ("items", "field"),
    [
        ([("a",)], "items[0]"),
        ([("a", {}, None), 5], "items[1]"),
        ([None], "items[0]"),
        (["abc"], "items[0]"),
        (5, "items"),
        (None, "items"),
        ("abc", "items[0]"),
    ],
)
async def test_what_is_no_item_of_many_is_named(queue: DispatchQueue, items: Any, field: str) -> None:
    with pytest.raises(InvalidInput) as error:
        await queue.enqueue_many("PAYMENT", items)
    assert error.value.field == field
    assert await queue.list("PAYMENT") == []


async def test_a_context_just_within_the_limit_passes(queue: DispatchQueue) -> None:
    await queue.enqueue("PAYMENT", "big", context="x" * (2 * 1024 * 1024 - 2))
    assert len((await queue.show("PAYMENT", "big")).context) == 2 * 1024 * 1024 - 2


async def test_an_unknown_item_type_is_not_found_everywhere(queue: DispatchQueue) -> None:
    calls = [
        queue.enqueue("NOPE", "a"),
        queue.enqueue_many("NOPE", [("a", None, None)]),
        queue.config("NOPE"),
        queue.pause("NOPE"),
        queue.resume("NOPE"),
        queue.stats("NOPE"),
        queue.list("NOPE"),
        queue.show("NOPE", "a"),
        queue.audit("NOPE"),
        queue.requeue("NOPE"),
        queue.discard("NOPE", ["a"]),
    ]
    for call in calls:
        with pytest.raises(NotFound):
            await call
    assert [config.item_type for config in await queue.configs()] == ["PAYMENT"]


async def test_a_path_like_past_time_is_due_now(queue: DispatchQueue) -> None:
    await queue.enqueue("PAYMENT", "past", execute_at="1970-01-01T00:00:00Z")
    assert len((await queue.store.claim("PAYMENT", 1, timedelta(0))).items) == 1


async def test_settings_change_one_by_one_and_first_settings_do_not_overwrite(queue: DispatchQueue) -> None:
    assert (await queue.configure("PAYMENT", jitterWindowMs=5)).batch_size == 10
    assert (await queue.define(DispatchConfig(item_type="PAYMENT", batch_size=99))).batch_size == 10
    assert (await queue.define(DispatchConfig(item_type="NEW", batch_size=99))).batch_size == 99
    assert not (await queue.pause("PAYMENT")).enabled
    assert (await queue.resume("PAYMENT")).enabled
    assert [config.item_type for config in await queue.configs()] == ["NEW", "PAYMENT"]


async def test_dead_letters_are_listed_requeued_and_discarded(queue: DispatchQueue) -> None:
    await queue.enqueue_many("PAYMENT", [(name, {}, None) for name in "abc"])
    batch = await queue.store.claim("PAYMENT", 3, timedelta(0))
    await queue.store.settle([unrunnable(item.claim, "broken") for item in batch.items])
    assert [item.item_id for item in await queue.list("PAYMENT", "dead_letter")] == ["a", "b", "c"]
    assert await queue.requeue("PAYMENT", ["a"]) == 1
    with pytest.raises(Conflict, match="READY and can't be requeued"):
        await queue.requeue("PAYMENT", ["a"])
    assert await queue.discard("PAYMENT", ["b"]) == 1
    assert await queue.requeue("PAYMENT") == 1
    assert {item.item_id: item.status for item in await queue.list("PAYMENT")} == {
        "a": Status.READY,
        "b": Status.CANCELLED,
        "c": Status.READY,
    }
    assert (await queue.prune(datetime.now(UTC) + timedelta(days=1))).items == 1


@pytest.mark.parametrize("text", ["{bad", "[" * 100_000])
async def test_a_poisoned_context_can_be_looked_at(tmp_path: Path, text: str) -> None:
    url = f"sqlite:///{tmp_path / 'queue.db'}"
    async with DispatchQueue.open(url) as queue:
        await queue.configure("PAYMENT")
        await queue.enqueue("PAYMENT", "p1", context={})
        engine = sa.create_engine(url)
        with engine.begin() as connection:
            connection.execute(sa.text("UPDATE paceline_dispatch_context SET context_json = :text"), {"text": text})
        engine.dispose()
        assert (await queue.show("PAYMENT", "p1")).context == text


async def test_requeueing_all_ends_even_if_they_die_again_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = write_audit

    def die_again(connection: sa.Connection, entries: Sequence[dict[str, Any]]) -> None:
        written(connection, entries)
        connection.execute(sa.text("UPDATE paceline_dispatch_queue SET queue_status = 'DEAD_LETTER'"))

    async with DispatchQueue.open(f"sqlite:///{tmp_path / 'queue.db'}") as queue:
        await queue.configure("PAYMENT")
        await queue.enqueue_many("PAYMENT", [(f"p{n:03}", {}, None) for n in range(5)])
        monkeypatch.setattr(admin_queries, "CHUNK", 2)
        monkeypatch.setattr(admin_queries, "write_audit", die_again)
        await queue.discard("PAYMENT", ["p004"])
        assert await asyncio.wait_for(queue.requeue("PAYMENT"), 30) == 5


async def test_lists_check_what_they_are_asked_for(queue: DispatchQueue) -> None:
    for call in (
        queue.list("PAYMENT", "SLEEPING"),
        queue.list("PAYMENT", limit=0),
        queue.list("PAYMENT", after="a\x9b"),
        queue.audit("PAYMENT", item_id="\x00"),
        queue.audit("PAYMENT", limit=100_000),
        queue.audit("PAYMENT", before=2**70),
        queue.requeue("PAYMENT", "abc"),
        queue.requeue("PAYMENT", [""]),
        queue.prune("long ago"),
    ):
        with pytest.raises(InvalidInput):
            await call


async def test_enqueue_in_the_callers_own_transaction(tmp_path: Path) -> None:
    """The item is queued if and when the caller commits, with the caller's own rows."""
    url = f"sqlite:///{tmp_path / 'app.db'}"
    async with DispatchQueue.open(url) as queue:
        await queue.configure("PAYMENT")
        engine = sa.create_engine(url)
        with engine.connect() as connection:
            await queue.enqueue("PAYMENT", "rolled-back", connection=connection)
            connection.rollback()
            await queue.enqueue_many("PAYMENT", [("kept", {}, None)], connection=connection)
            connection.commit()
        engine.dispose()
        assert [item.item_id for item in await queue.list("PAYMENT")] == ["kept"]
        with pytest.raises(InvalidInput, match="connection"):
            await queue.enqueue("PAYMENT", "x", connection=object())


async def test_a_connection_to_another_kind_of_database_is_refused(postgres_url: str) -> None:
    elsewhere = sa.create_engine("sqlite://")
    async with DispatchQueue.open(postgres_url) as queue:
        await queue.configure("PAYMENT")
        with elsewhere.connect() as connection, pytest.raises(InvalidInput, match="the queue is in postgresql"):
            await queue.enqueue("PAYMENT", "x", connection=connection)
    elsewhere.dispose()


async def test_enqueue_in_the_callers_own_transaction_on_postgresql(postgres_url: str) -> None:
    async with DispatchQueue.open(postgres_url) as queue:
        await queue.configure("PAYMENT")
        engine = create_async_engine(postgres_url.replace("postgresql://", "postgresql+psycopg://"))
        async with engine.connect() as connection:
            await connection.execute(sa.text("CREATE TABLE orders (id text)"))
            await queue.enqueue("PAYMENT", "rolled-back", connection=connection)
            await connection.rollback()
            await connection.execute(sa.text("CREATE TABLE orders (id text)"))
            await queue.enqueue("PAYMENT", "kept", context={"a": 1}, connection=connection)
            await connection.commit()
        await engine.dispose()
        assert [item.item_id for item in await queue.list("PAYMENT")] == ["kept"]
        assert (await queue.show("PAYMENT", "kept")).context == {"a": 1}


async def test_a_store_in_memory_cannot_join_a_transaction() -> None:
    async with DispatchQueue.open("memory://") as queue:
        await queue.configure("PAYMENT")
        with pytest.raises(InvalidInput, match="connection"):
            await queue.enqueue("PAYMENT", "a", connection=object())
