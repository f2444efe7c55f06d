"""Tasks with lanes, priorities, places that workers share, and calls that are one."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from paceline import ConfigurationError, DispatchQueue, InvalidInput, Tasks, current_task
from paceline.dispatch.status import Status
from paceline.testing import eventually
from tests.contracts.task_engines import EngineTasks, ended, without_worker, working


@without_worker
async def test_a_call_says_its_lane_and_priority_or_else_the_decorator_does(tasks: Tasks) -> None:
    @tasks.task(priority=7, lane="everybody")
    async def work(number: int) -> None: ...

    await work.options(key="by-decorator").enqueue(1)
    await work.options(key="by-call", priority=0, lane="acme").enqueue(1)
    await work.options(key="by-options", lane="acme").enqueue(1)
    shown = {key: (await work.show(key)).item for key in ("by-decorator", "by-call", "by-options")}
    assert {key: (item.lane, item.priority) for key, item in shown.items()} == {
        "by-decorator": ("everybody", 7),
        "by-call": ("acme", 0),
        "by-options": ("acme", 7),
    }
    with pytest.raises(InvalidInput, match="priority"):
        await work.options(priority=10).enqueue(1)
    with pytest.raises(InvalidInput, match="lane"):
        await work.options(lane="").enqueue(1)


async def test_two_workers_together_run_no_more_than_the_concurrency(tasks: EngineTasks) -> None:
    gate = asyncio.Event()
    running: set[str] = set()
    most = 0

    async def hold() -> None:
        nonlocal most
        running.add(current_task().item_id)
        most = max(most, len(running))
        await gate.wait()
        running.discard(current_task().item_id)

    limited = tasks.task(concurrency=3, lane_concurrency=2)(hold)
    async with EngineTasks(tasks.url, tasks.temporal) as other:
        other.task(concurrency=3, lane_concurrency=2)(hold)
        for number in range(12):
            await limited.options(key=f"{number:02}", lane="ab"[number % 2]).enqueue()
        async with working(tasks), working(other):
            await eventually(lambda: len(running) == 3)
            gate.set()
            for number in range(12):
                assert (await ended(limited, f"{number:02}")).item.status is Status.COMPLETED
    assert most == 3
    config = await (await tasks.queue()).config("HOLD")
    assert (config.concurrency, config.lane_concurrency) == (3, 2)


@without_worker
async def test_calls_with_the_same_arguments_are_one(tasks: Tasks) -> None:
    @tasks.task(unique="arguments")
    async def index(document: str, version: int = 1) -> None: ...

    first = await index.enqueue("a", version=2)
    again = await index.enqueue(document="a", version=2)
    other = await index.enqueue("b")
    assert (first.existing, again.existing, other.existing) == (False, True, False)
    assert first.item_id == again.item_id != other.item_id
    assert not (await index.options(key="mine").enqueue("a", version=2)).existing, "a key says which call it is"


@without_worker
async def test_calls_in_one_period_are_one(tasks: Tasks) -> None:
    @tasks.task(unique="arguments", unique_period="PT1H")
    async def report(name: str) -> None: ...

    @tasks.task(unique_period="P1D")
    async def sync() -> None: ...

    times: list[datetime | str] = [
        "2030-03-01T16:00:00Z",
        datetime(2030, 3, 1, 16, 59, 59, tzinfo=UTC),
        "2030-03-01T17:00:00Z",
    ]
    assert [(await report.options(at=at).enqueue("a")).existing for at in times] == [False, True, False]
    assert [(await report.options(key="k", at=at).enqueue("a")).existing for at in times] == [False, True, False]
    assert (await report.options(key="k", at=times[0]).enqueue("a")).item_id == "k@20300301T160000Z"
    assert [(await sync.options(at=at).enqueue()).existing for at in times] == [False, True, True]


async def test_a_running_task_is_cancelled_by_whoever_has_the_database(tasks: Tasks) -> None:
    began, cleaned_up = asyncio.Event(), asyncio.Event()

    @tasks.task
    async def long() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned_up.set()

    @tasks.task(concurrency=1)
    async def short() -> None: ...

    await long.options(key="one").enqueue()
    async with working(tasks), DispatchQueue.open(tasks.url) as elsewhere:
        await began.wait()
        assert await elsewhere.cancel("LONG", ["one"]) == 1
        async with asyncio.timeout(30):
            await cleaned_up.wait()
        await short.options(key="next").enqueue()
        assert (await ended(short, "next")).item.status is Status.COMPLETED
    detail = await long.show("one")
    assert (detail.item.status, detail.audit[-1].action, detail.audit[-1].detail) == (
        Status.CANCELLED,
        "CANCELLED",
        "while in flight",
    )


@without_worker
async def test_what_to_change_is_named_by_ids_or_by_a_filter(tasks: Tasks) -> None:
    @tasks.task
    async def work() -> None: ...

    for name in ("a1", "a2", "b1"):
        await work.options(key=name, at="2030-03-01T16:00:00Z", lane="acme").enqueue()
    queue = await tasks.queue()
    with pytest.raises(InvalidInput, match="ids"):
        await queue.cancel("WORK")
    with pytest.raises(InvalidInput, match="ids"):
        await queue.cancel("WORK", ["a1"], prefix="a")
    with pytest.raises(InvalidInput, match="status"):
        await queue.cancel("WORK", status="ASLEEP")
    with pytest.raises(InvalidInput, match="execute_at"):
        await queue.reschedule("WORK", ["a1"])
    assert await queue.reschedule("WORK", lane="acme", prefix="b", priority=0, new_lane="other") == 1
    assert await queue.reschedule("WORK", ["a1"], execute_at="2031-01-01T00:00:00Z") == 1
    assert await queue.cancel("WORK", lane="acme", status="READY") == 2
    shown = {item.item_id: (item.status, item.lane, item.priority) for item in await queue.list("WORK")}
    assert shown == {"a1": ("CANCELLED", "acme", 5), "a2": ("CANCELLED", "acme", 5), "b1": ("READY", "other", 0)}


async def test_options_that_can_not_be_are_refused_where_they_are_written() -> None:
    tasks = Tasks("memory://")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"unique": "colour"}, "unique"),
        ({"unique_period": "soon"}, "unique_period"),
        ({"unique_period": 0.5}, "unique_period"),
        ({"priority": 10}, "priority"),
        ({"lane": ""}, "lane"),
        ({"concurrency": 0}, "concurrency"),
        ({"lane_concurrency": True}, "lane_concurrency"),
    ]
    for options, field in wrong:
        with pytest.raises(ConfigurationError, match=field):
            tasks.task(**options)(nothing)


async def nothing() -> None: ...
