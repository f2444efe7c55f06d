"""Whatever a task raises, it fails with that error, and the worker goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from paceline import CurrentTask, TaskEvent, Tasks
from paceline.dispatch.model import Item
from paceline.dispatch.status import Status
from paceline.testing import eventually
from tests.unit.dispatch.local_bench import Bench


class Panic(BaseException):
    """Such as PyO3's `PanicException`."""


class Unprintable(Exception):
    def __str__(self) -> str:
        raise AttributeError("no text")


RAISED = [SystemExit("no config"), Panic("rust panicked"), asyncio.CancelledError("a part of it")]
BEYOND_ASYNCIO = [*RAISED, GeneratorExit("odd"), Unprintable()]
named = pytest.mark.parametrize("raised", BEYOND_ASYNCIO, ids=lambda raised: type(raised).__name__)


@pytest.fixture
def tasks() -> Tasks:
    return Tasks("memory://")


async def only_item(tasks: Tasks, function: Callable[[], Any], **options: Any) -> Item:
    """The item of a task after it has run, with one retry."""
    task = tasks.task(retries=1, backoff=[0], **options)(function)
    async with tasks.in_memory():
        await task.options(key="one").enqueue()
        return (await task.show("one")).item


def assert_failed_twice(item: Item, raised: BaseException) -> None:
    assert (item.status, item.attempt) == (Status.DEAD_LETTER, 2)
    assert type(raised).__name__ in str(item.last_error)


@pytest.mark.parametrize("timeout", [None, 30])
@pytest.mark.parametrize(
    "raised", [*BEYOND_ASYNCIO, StopIteration("empty"), KeyboardInterrupt()], ids=lambda raised: type(raised).__name__
)
async def test_a_plain_function_fails_with_whatever_it_raises(
    tasks: Tasks, raised: BaseException, timeout: float | None
) -> None:
    def fails() -> None:
        raise raised

    assert_failed_twice(await only_item(tasks, fails, timeout=timeout), raised)


@pytest.mark.parametrize("timeout", [None, 30])
@named
async def test_a_coroutine_fails_with_whatever_it_raises(
    tasks: Tasks, raised: BaseException, timeout: float | None
) -> None:
    async def fails() -> None:
        raise raised

    assert_failed_twice(await only_item(tasks, fails, timeout=timeout), raised)


async def test_a_coroutine_that_exits_fails_also_below_a_middleware_with_tasks_of_its_own() -> None:
    async def in_its_own_task(task: CurrentTask, run: Callable[[], Awaitable[Any]]) -> Any:
        return await asyncio.ensure_future(run())

    async def leave() -> None:
        raise SystemExit("no config")

    tasks = Tasks("memory://", middleware=[in_its_own_task])
    assert_failed_twice(await only_item(tasks, leave), SystemExit())


@named
async def test_a_middleware_fails_its_task_with_whatever_it_raises(raised: BaseException) -> None:
    async def breaks(task: CurrentTask, run: Callable[[], Awaitable[Any]]) -> None:
        raise raised

    async def unreached() -> None: ...

    assert_failed_twice(await only_item(Tasks("memory://", middleware=[breaks]), unreached), raised)


@pytest.mark.parametrize("raised", RAISED, ids=lambda raised: type(raised).__name__)
async def test_listeners_see_the_failure_and_the_backoff_is_the_tasks(raised: BaseException) -> None:
    seen: list[str] = []
    retries: list[int] = []

    def listen(event: TaskEvent) -> None:
        seen.append(f"{event.kind} {event.attempt}")

    def backoff(retry: int) -> float:
        retries.append(retry)
        return 0

    async def fails() -> None:
        raise raised

    tasks = Tasks("memory://", on_event=listen)
    task = tasks.task(retries=1, backoff=backoff)(fails)
    async with tasks.in_memory():
        await task.options(key="one").enqueue()
    assert seen == ["STARTED 1", "FAILED 1", "STARTED 2", "FAILED 2"]
    assert retries == [1, 2]


@pytest.mark.parametrize("raised", RAISED, ids=lambda raised: type(raised).__name__)
async def test_a_listener_or_backoff_that_raises_anything_changes_no_outcome(raised: BaseException) -> None:
    def breaks(_: Any) -> Any:
        raise raised

    tasks = Tasks("memory://", on_event=breaks)

    @tasks.task
    async def works() -> int:
        return 1

    @tasks.task(retries=0, backoff=breaks)
    async def fails() -> None:
        raise ValueError("boom")

    async with tasks.in_memory():
        await works.options(key="one").enqueue()
        await fails.options(key="one").enqueue()
        assert (await works.show("one")).result == 1
        assert (await fails.show("one")).item.last_error == "ValueError: boom"


# -- handlers that are no tasks ----------------------------------------------------------------------------------


async def failed_item(bench: Bench) -> Item:
    await bench.start("a")

    async def failed() -> Item | None:
        item = await bench.item("a")
        return item if item.retry_count else None

    item = await eventually(failed)
    assert item is not None
    await bench.engine.close()
    return item


@named
async def test_a_handler_fails_with_whatever_it_raises(raised: BaseException) -> None:
    bench = Bench()

    async def fails(item_id: str, context: Any) -> None:
        raise raised

    bench.behave = fails
    item = await failed_item(bench)
    assert (item.status, item.retry_count) == (Status.READY, 1)
    assert type(raised).__name__ in str(item.last_error)


async def test_a_handler_that_cancels_its_own_task_fails() -> None:
    bench = Bench()

    async def cancels_itself(item_id: str, context: Any) -> None:
        this = asyncio.current_task()
        assert this is not None
        this.cancel()
        await asyncio.Event().wait()

    bench.behave = cancels_itself
    item = await failed_item(bench)
    assert (item.status, str(item.last_error).partition(":")[0]) == (Status.READY, "CancelledError")


# -- what still ends a worker ------------------------------------------------------------------------------------


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop that a test may break."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def test_ctrl_c_during_a_task_ends_the_loop(loop: asyncio.AbstractEventLoop) -> None:
    async def interrupted() -> None:
        bench = Bench()

        async def interrupt(item_id: str, context: Any) -> None:
            raise KeyboardInterrupt

        bench.behave = interrupt
        await bench.start("a")
        await asyncio.Event().wait()

    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(interrupted())


async def begun() -> tuple[Bench, asyncio.Task[Any]]:
    """An execution that runs, and its asyncio task."""
    bench = Bench()
    (claim,) = await bench.start("a")
    await eventually(lambda: bench.began == ["a"])
    (run,) = [task for task in asyncio.all_tasks() if task.get_name() == claim.execution_id]
    return bench, run


def test_the_end_of_the_loop_is_no_failure_of_what_runs(loop: asyncio.AbstractEventLoop) -> None:
    bench, run = loop.run_until_complete(begun())
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.wait({run}))
    assert run.cancelled()
    assert loop.run_until_complete(bench.item("a")).retry_count == 0


def test_the_close_of_a_coroutine_is_no_failure_of_what_runs(loop: asyncio.AbstractEventLoop) -> None:
    """As the garbage collector closes those of a loop that has ended."""
    bench, run = loop.run_until_complete(begun())
    coroutine: Any = run.get_coro()
    coroutine.close()  # raises if it awaits
    assert loop.run_until_complete(bench.item("a")).retry_count == 0
