"""Batches with a callback and chains of tasks, run by real workers, on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from paceline import BatchOutcome, InvalidInput, Task, TaskCall, Tasks
from paceline.dispatch.status import Status
from paceline.sql.url import database_url
from paceline.testing import eventually
from tests.contracts.task_engines import EngineTasks, ended, without_worker, working


async def test_the_callback_runs_once_when_all_are_done_whatever_became_of_them(tasks: Tasks) -> None:
    outcomes: list[BatchOutcome] = []

    @tasks.task(retries=0)
    async def part(number: int) -> None:
        if number == 2:
            raise ValueError("broken")

    @tasks.task
    async def other() -> None: ...

    @tasks.task
    async def done(outcome: BatchOutcome) -> None:
        outcomes.append(outcome)

    calls = [part.call(1), part.call(2), other.call(), part.call(3)]
    assert await tasks.batch(calls, then=done, key="b") == "b"
    assert await (await tasks.queue()).cancel("PART", ["b:3"]) == 1
    assert await tasks.batch(calls, then=done, key="b") == "b", "asked for twice, it is one"
    async with working(tasks):
        detail = await ended(done, "b:done")
    assert detail.item.status is Status.COMPLETED
    assert outcomes == [BatchOutcome("b", total=4, succeeded=2, failed=1, cancelled=1)]
    assert detail.item.retry_count == 0, "looking counts no retry"


async def test_the_callback_waits_for_the_last_one(tasks: Tasks) -> None:
    ran: list[str] = []

    @tasks.task
    async def part() -> None: ...

    @tasks.task
    async def done(outcome: BatchOutcome) -> None:
        ran.append(outcome.key)

    await tasks.batch([part.call(), part.call(), part.call()], then=done, key="b")
    queue = await tasks.queue()
    await queue.reschedule("PART", ["b:1"], execute_at="2030-01-01T00:00:00Z")
    async with working(tasks):
        await ended(part, "b:0")
        await ended(part, "b:2")
        # What has ended is counted for good, also when nothing else remembers it.
        assert (await queue.prune(datetime.now(UTC) + timedelta(days=1))).items == 2
        assert ran == []
        assert (await done.show("b:done")).item.status is Status.READY
        await queue.reschedule("PART", ["b:1"], execute_at="2020-01-01T00:00:00Z")
        detail = await ended(done, "b:done")
    assert ran == ["b"]
    assert detail.item.claim_epoch == 1, "it was never looked at before"
    assert detail.item.execute_at < datetime.now(UTC)
    assert (await queue.prune(datetime.now(UTC) + timedelta(days=1))).items == 2
    assert await queue.store.batch("DONE", "b:done") is None


async def test_a_dead_letter_that_is_requeued_has_not_ended(tasks: Tasks) -> None:
    outcomes: list[BatchOutcome] = []
    is_broken = True

    @tasks.task(retries=0)
    async def part(number: int) -> None:
        if is_broken:
            raise ValueError("broken")

    @tasks.task
    async def done(outcome: BatchOutcome) -> None:
        outcomes.append(outcome)

    queue = await tasks.queue()
    await tasks.batch([part.call(number) for number in range(4)], then=done, key="b")
    await queue.reschedule("PART", ["b:3"], execute_at="2030-01-01T00:00:00Z")
    async with working(tasks):
        for number in range(3):
            await ended(part, f"b:{number}")
        is_broken = False
        await queue.requeue("PART", ["b:0"])
        await queue.discard("PART", ["b:1"])
        await eventually(lambda: _is_completed(part, "b:0"))
        await queue.cancel("PART", ["b:3"])
        await ended(done, "b:done")
        await queue.requeue("PART", ["b:2"])
        await eventually(lambda: _is_completed(part, "b:2"))
    assert outcomes == [BatchOutcome("b", total=4, succeeded=1, failed=1, cancelled=2)]


async def _is_completed(task: Task[..., Any], item_id: str) -> bool:
    return (await task.show(item_id)).item.status is Status.COMPLETED


@without_worker
async def test_an_item_with_the_id_of_a_call_is_no_call_of_the_batch(tasks: Tasks) -> None:
    @tasks.task
    async def part() -> None: ...

    @tasks.task
    async def done(outcome: BatchOutcome) -> None: ...

    await part.options(key="b:0").enqueue()
    with pytest.raises(InvalidInput, match=r"key: is taken: there is an item 'b:0' of PART already"):
        await tasks.batch([part.call(), part.call()], then=done, key="b")
    queue = await tasks.queue()
    assert [item.item_id for item in await queue.list("PART")] == ["b:0"]
    assert await queue.list("DONE") == []


async def test_each_call_of_a_chain_gets_the_result_of_the_one_before(tasks: Tasks) -> None:
    runs: list[str] = []

    @tasks.task(backoff=[0])
    async def fetch(name: str) -> dict[str, str]:
        runs.append("fetch")
        return {"name": name}

    @tasks.task(backoff=[0], lane="slow", priority=8)
    async def resize(picture: dict[str, str], width: int) -> str:
        runs.append("resize")
        if runs.count("resize") == 1:
            raise ValueError("once")
        return f"{picture['name']} {width}"

    @tasks.task
    async def publish(text: str) -> str:
        runs.append("publish")
        return f"published {text}"

    await tasks.chain(fetch.call("cat"), resize.call_with_result(width=800), publish, key="c")
    await tasks.chain(fetch.call("cat"), resize.call_with_result(width=800), publish, key="c")
    async with working(tasks):
        await eventually(lambda: "publish" in runs)
        assert (await ended(publish, "c:3")).result == "published cat 800"
        item = (await ended(resize, "c:2")).item
    assert (item.lane, item.priority) == ("slow", 8)
    assert runs == ["fetch", "resize", "resize", "publish"]


async def test_a_broken_chain_goes_on_when_its_dead_letter_is_requeued(tasks: Tasks) -> None:
    is_broken = True

    @tasks.task(retries=0)
    async def first() -> int:
        if is_broken:
            raise ValueError("broken")
        return 1

    @tasks.task
    async def second(number: int) -> int:
        return number + 1

    await tasks.chain(first.call(), second, key="c")
    queue = await tasks.queue()
    async with working(tasks):
        assert (await ended(first, "c")).item.status is Status.DEAD_LETTER
        assert await queue.list("SECOND") == []
        is_broken = False
        await queue.requeue("FIRST", ["c"])

        async def queued() -> bool:
            return bool(await queue.list("SECOND"))

        await eventually(queued)
        assert (await ended(second, "c:2")).result == 2


@without_worker
async def test_a_batch_comes_and_goes_with_my_transaction(tasks: Tasks) -> None:
    @tasks.task
    async def part() -> None: ...

    @tasks.task
    async def done(outcome: BatchOutcome) -> None: ...

    await tasks.define()
    engine = sa.create_engine(database_url(tasks.url))
    with engine.connect() as connection:
        await tasks.batch([part.call()], then=done, key="gone", connection=connection)
        connection.rollback()
        await tasks.batch([part.call()], then=done, key="kept", connection=connection)
        await tasks.chain(part.call(), key="chain", connection=connection)
        connection.commit()
    engine.dispose()
    queue = await tasks.queue()
    assert [item.item_id for item in await queue.list("PART")] == ["chain", "kept:0"]
    assert [item.item_id for item in await queue.list("DONE")] == ["kept:done"]


@without_worker
async def test_what_can_not_be_is_refused_and_nothing_is_queued(tasks: Tasks) -> None:
    @tasks.task
    async def part(number: int) -> None: ...

    @tasks.task
    async def alone() -> None: ...

    @tasks.task
    async def two(outcome: BatchOutcome, more: int) -> None: ...

    elsewhere = Tasks("memory://")

    @elsewhere.task
    async def stranger(number: int) -> None: ...

    await tasks.define()
    with pytest.raises(InvalidInput, match="calls"):
        await tasks.batch([], then=part)
    with pytest.raises(InvalidInput, match=r"^then: .*no parameter"):
        await tasks.batch([part.call(1)], then=alone)
    with pytest.raises(InvalidInput, match=r"^then: .*'more'"):
        await tasks.batch([part.call(1)], then=two)
    with pytest.raises(InvalidInput, match="number"):
        await tasks.batch([part.call(1), part.call("x")], then=part)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="STRANGER"):
        await tasks.chain(part.call(1), stranger)
    with pytest.raises(InvalidInput, match="arguments"):
        await tasks.chain(part.call(1), part.call_with_result(2))
    with pytest.raises(InvalidInput, match="key"):
        await tasks.chain(part.call(1), key="")
    for item_type in ("PART", "TWO"):
        assert await (await tasks.queue()).list(item_type) == []


@without_worker
async def test_a_key_is_used_for_one_batch_only(tasks: Tasks) -> None:
    @tasks.task
    async def part(number: int) -> None: ...

    @tasks.task
    async def done(outcome: BatchOutcome) -> None: ...

    @tasks.task
    async def other_done(outcome: BatchOutcome) -> None: ...

    await tasks.batch([part.call(1), part.call(2)], then=done, key="b")
    queue = await tasks.queue()
    others: list[tuple[list[TaskCall], Any]] = [
        ([part.call(1), part.call(2), part.call(3)], done),
        ([part.call(1)], done),
        ([part.call(1), part.call(7)], done),
        ([part.call(1), part.call(2)], other_done),
    ]
    for _ in ("while it waits", "when it is over"):
        for calls, then in others:
            with pytest.raises(InvalidInput, match="key: was used before, for other calls"):
                await tasks.batch(calls, then=then, key="b")
        assert await tasks.batch([part.call(1), part.call(2)], then=done, key="b") == "b"
        assert [item.item_id for item in await queue.list("PART")] == ["b:0", "b:1"]
        assert [item.item_id for item in await queue.list("DONE")] == ["b:done"]
        assert await queue.list("OTHER_DONE") == []
        await queue.cancel("PART", prefix="b")
        if (await done.show("b:done")).item.status is Status.READY:
            await queue.cancel("DONE", ["b:done"])


@without_worker
async def test_of_two_batches_with_one_key_at_once_one_is_refused(tasks: Tasks) -> None:
    @tasks.task
    async def part(number: int) -> None: ...

    @tasks.task
    async def done(outcome: BatchOutcome) -> None: ...

    await tasks.define()
    results = await asyncio.gather(
        *(tasks.batch([part.call(n) for n in range(size)], then=done, key="b") for size in (1, 2, 3, 4)),
        return_exceptions=True,
    )
    assert results.count("b") == 1
    assert sum(isinstance(result, InvalidInput) for result in results) == 3
    assert len(await (await tasks.queue()).list("PART")) == results.index("b") + 1


@without_worker
async def test_a_key_is_used_for_one_chain_only(tasks: Tasks) -> None:
    @tasks.task
    async def fetch(name: str) -> str:
        return name

    @tasks.task
    async def publish(name: str) -> str:
        return name

    assert await tasks.chain(fetch.call("a"), publish, key="c") == "c"
    assert await tasks.chain(fetch.call("a"), publish, key="c") == "c"
    for calls in ([fetch.call("b"), publish], [fetch.call("a")], [publish.call("a"), fetch]):
        with pytest.raises(InvalidInput, match="key: was used before, for other calls"):
            await tasks.chain(*calls, key="c")
    await fetch.options(key="plain").enqueue("a")
    with pytest.raises(InvalidInput, match="key: was used before"):
        await tasks.chain(fetch.call("a"), publish, key="plain")
    queue = await tasks.queue()
    assert [item.item_id for item in await queue.list("FETCH")] == ["c", "plain"]
    assert await queue.list("PUBLISH") == []


async def test_a_wrong_group_names_its_field_and_queues_nothing() -> None:
    tasks = Tasks("memory://")

    @tasks.task
    async def part(number: int) -> int:
        return number

    @tasks.task(unique_period="PT1H")
    async def hourly() -> None: ...

    @tasks.task
    async def done(outcome: BatchOutcome) -> None: ...

    wrong: Any = 5
    async with tasks.in_memory():
        with pytest.raises(InvalidInput, match=r"^calls: number 2 is of type int, and no call; make one by task\.call"):
            await tasks.batch([part.call(1), wrong], then=done)
        with pytest.raises(InvalidInput, match=r"^calls: must be a list of calls"):
            await tasks.batch(wrong, then=done)
        with pytest.raises(InvalidInput, match=r"^then: must be a task"):
            await tasks.batch([part.call(1)], then=wrong)
        with pytest.raises(InvalidInput, match=r"^calls: number 1 is of type Task, and no call"):
            await tasks.chain(part, part)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match=r"^calls: number 2 is of type int"):
            await tasks.chain(part.call(1), wrong)
        with pytest.raises(InvalidInput, match=r"^key: has 254 characters; here at most 253 are allowed"):
            await tasks.chain(part.call(1), part, key="k" * 254)
        with pytest.raises(InvalidInput, match=r"^key: has 251 characters; here at most 250 are allowed"):
            await tasks.batch([part.call(1)], then=done, key="k" * 251)
        with pytest.raises(InvalidInput, match=r"^key: has 250 characters; here at most 238 are allowed"):
            await hourly.options(key="k" * 250).enqueue()
        for make in (
            lambda: part.options(key="").enqueue(1),
            lambda: tasks.chain(part.call(1), key=""),
            lambda: tasks.batch([part.call(1)], then=done, key=""),
        ):
            with pytest.raises(InvalidInput, match=r"^key: must be a text of 1 to 255 characters"):
                await make()
        await tasks.chain(part.call(1), part, key="k" * 253)
        assert (await part.show("k" * 253 + ":2")).result == 1


async def test_a_chain_goes_on_to_a_task_that_only_a_newer_version_knows(tasks: EngineTasks) -> None:
    """A rolling deploy: the old worker runs the first call, and queues the second for a new one."""
    newer = EngineTasks(tasks.url, tasks.temporal)

    async def fetch() -> int:
        return 1

    older_fetch, newer_fetch = tasks.task(fetch), newer.task(fetch)

    @newer.task
    async def added(number: int) -> int:
        return number + 1

    async with newer:
        await newer.chain(newer_fetch.call(), added, key="c")
        async with working(tasks):
            assert (await ended(older_fetch, "c")).item.attempt == 1
            assert (await added.show("c:2")).item.status is Status.READY
        async with working(newer):
            assert (await ended(added, "c:2")).result == 2
