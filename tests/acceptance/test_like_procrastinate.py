"""What Procrastinate's acceptance tests show of Procrastinate, shown of tasks here. What does not apply is listed in
docs/howto/coming-from.md."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from paceline import BlockingDispatchQueue, Discard, NotFound, Snooze, Task, Tasks, current_task
from paceline.dispatch.status import Status
from paceline.testing import eventually
from tests.acceptance.peer_tasks import STORES, becomes, for_ever, idle, item_of, url_of, working


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


@pytest.fixture
async def tasks(url: str) -> AsyncIterator[Tasks]:
    async with Tasks(url, grace=0.3) as tasks:
        yield tasks
        tasks.blocking.close()


# -- queueing ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocking", [False, True], ids=["awaited", "blocking"])
async def test_calls_run_in_the_order_in_which_they_were_queued_also_by_name(tasks: Tasks, blocking: bool) -> None:
    sums: list[int] = []
    products: list[int] = []

    @tasks.task
    def add(a: int, b: int) -> None:
        sums.append(a + b)

    @tasks.task
    async def multiply(a: int, b: int) -> None:
        products.append(a * b)

    def in_a_thread() -> None:
        add.blocking.enqueue(a=1, b=2)
        add.options(priority=5).blocking.enqueue(a=3, b=4)
        with BlockingDispatchQueue(tasks.url) as queue:
            queue.enqueue("ADD", "by-name", context={"a": 5, "b": 6})
        multiply.blocking.enqueue_many([{"a": 3, "b": 4}, (5, 6)])

    if blocking:
        await asyncio.to_thread(in_a_thread)
    else:
        await add.enqueue(a=1, b=2)
        await add.options(priority=5).enqueue(a=3, b=4)
        await (await tasks.queue()).enqueue("ADD", "by-name", context={"a": 5, "b": 6})
        await multiply.enqueue_many([{"a": 3, "b": 4}, (5, 6)])
    async with working(tasks, concurrency=1):
        await idle(add)
        await idle(multiply)
    assert (sums, products) == ([3, 7, 11], [12, 30])


async def test_many_calls_are_queued_at_once_with_options_and_by_name(tasks: Tasks) -> None:
    seen: list[tuple[int, int]] = []

    @tasks.task
    async def note(number: int) -> None:
        seen.append((number, current_task().priority))

    await note.enqueue_many([1, 2])
    await note.options(priority=1).enqueue_many([{"number": 3}, {"number": 4}])
    await (await tasks.queue()).enqueue_many("NOTE", [(f"n{n}", {"number": n}, None) for n in (5, 6)])
    async with working(tasks, concurrency=1):
        await idle(note)
    assert seen == [(3, 1), (4, 1), (1, 5), (2, 5), (5, 5), (6, 5)]


@dataclass
class Param:
    value: int


async def test_arguments_of_a_type_of_ones_own_arrive_as_such(tasks: Tasks) -> None:
    @tasks.task
    def add(first: Param, second: Param) -> int:
        return first.value + second.value

    queued = await add.enqueue(Param(3), second=Param(4))
    async with working(tasks):
        assert await add.result(queued.item_id, timeout=30) == 7


async def test_a_worker_runs_the_tasks_of_its_queues_only(tasks: Tasks) -> None:
    ran: list[str] = []

    @tasks.task
    async def add() -> None:
        ran.append("add")

    @tasks.task(queue="products")
    async def multiply() -> None:
        ran.append("multiply")

    product = await multiply.enqueue()
    await add.enqueue()
    async with working(tasks, queues=["default"]):
        await idle(add)
        assert (await item_of(multiply, product.item_id)).status is Status.READY
    async with working(tasks, queues=["products"]):
        await becomes(multiply, product.item_id, Status.COMPLETED)
    assert ran == ["add", "multiply"]


async def test_the_higher_priority_runs_first_and_a_task_has_its_own(tasks: Tasks) -> None:
    ran: list[str] = []

    @tasks.task(priority=4)
    async def note(name: str) -> None:
        ran.append(name)

    await note.options(priority=7).enqueue("last")
    await note.enqueue("its own")
    await note.options(priority=1).enqueue("first")
    async with working(tasks, concurrency=1):
        await idle(note)
    assert ran == ["first", "its own", "last"]


async def test_one_runs_at_a_time_of_what_shares_a_lane_whoever_works(url: str) -> None:
    lock, running, most, ran = threading.Lock(), 0, 0, []

    def program() -> tuple[Tasks, Task[[str], Any]]:
        tasks = Tasks(url)

        @tasks.task(lane_concurrency=1)
        async def write(name: str) -> None:
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            await asyncio.sleep(0.1)
            ran.append(name)
            with lock:
                running -= 1

        return tasks, write

    (first, write), (second, _) = program(), program()
    async with first, second, working(first), working(second):
        for number, priority in enumerate([9, 1, 5, 2]):
            await write.options(lane="a", priority=priority).enqueue(f"w{number}")
        await idle(write)
    assert (most, len(ran)) == (1, 4)


async def test_a_call_that_waits_already_is_not_queued_a_second_time(tasks: Tasks) -> None:
    @tasks.task
    async def sync() -> None: ...

    def queued(key: str) -> Callable[[], bool]:
        options = sync.options(key=key, unique="while_waiting")
        return lambda: options.blocking.enqueue().existing

    found = [await asyncio.to_thread(queued(key)) for key in ("a", "b", "a", "c", "a")]
    assert found == [False, False, True, False, True]
    async with working(tasks):
        await idle(sync)
        assert not await asyncio.to_thread(queued("a"))


# -- running -----------------------------------------------------------------------------------------------------


async def test_a_plain_function_may_run_an_event_loop_that_calls_threads_of_its_own(tasks: Tasks) -> None:
    @tasks.task
    def nested(a: int, b: int) -> int:
        async def inner() -> int:
            return int(await sync_to_async(lambda: a + b)())

        return asyncio.run(inner())

    queued = await nested.enqueue(1, 2)
    async with working(tasks):
        assert await nested.result(queued.item_id, timeout=30) == 3


async def test_plain_functions_of_two_tasks_run_at_the_same_time(tasks: Tasks) -> None:
    both = threading.Barrier(2, timeout=30)

    @tasks.task
    def first() -> None:
        both.wait()

    @tasks.task
    def second() -> None:
        both.wait()

    one, two = await first.enqueue(), await second.enqueue()
    async with working(tasks, concurrency=2):
        await becomes(first, one.item_id, Status.COMPLETED)
        await becomes(second, two.item_id, Status.COMPLETED)


async def test_as_many_run_at_once_as_the_worker_may(tasks: Tasks) -> None:
    running = most = 0

    @tasks.task
    async def rest() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.1)
        running -= 1

    await rest.enqueue_many([()] * 100)
    async with working(tasks, concurrency=20):
        await idle(rest)
    assert most == 20


async def test_a_task_that_fails_twice_succeeds_and_another_gives_up_at_an_error_that_no_retry_helps(
    tasks: Tasks,
) -> None:
    @tasks.task(retries=10, backoff=[0])
    def two_fails() -> str:
        if current_task().attempt < 3:
            raise RuntimeError("this should fail")
        return "done"

    @tasks.task(retries=10, backoff=[0])
    def chosen() -> None:
        errors = [ValueError("a value"), KeyError("a key"), AttributeError("a bug")]
        error = errors[current_task().attempt - 1]
        if isinstance(error, AttributeError):
            raise Discard(f"no retry helps: {error}") from error
        raise error

    twice, given_up = await two_fails.enqueue(), await chosen.enqueue()
    async with working(tasks):
        await becomes(two_fails, twice.item_id, Status.COMPLETED)
        await becomes(chosen, given_up.item_id, Status.DEAD_LETTER)
    attempts = (await two_fails.show(twice.item_id)).attempts
    assert [attempt.error for attempt in attempts] == ["RuntimeError: this should fail"] * 2
    tracebacks = [attempt.traceback or "" for attempt in (await chosen.show(given_up.item_id)).attempts]
    assert len(tracebacks) == 3
    assert all("Traceback (most recent call last)" in text for text in tracebacks)


async def test_a_periodic_task_runs_at_each_tick_with_its_priority(tasks: Tasks) -> None:
    ticks: list[tuple[int, int]] = []

    @tasks.periodic(every="1s")
    @tasks.task(priority=7)
    async def tick() -> None:
        ticks.append((int(time.time()), current_task().priority))

    async with working(tasks):
        await eventually(lambda: len(ticks) >= 3)
    seconds = [second for second, _ in ticks]
    assert seconds == sorted(set(seconds)), "each tick once"
    assert {priority for _, priority in ticks} == {7}


# -- cancelling --------------------------------------------------------------------------------------------------


async def test_what_is_cancelled_while_it_waits_does_not_run_and_stays_listed(tasks: Tasks) -> None:
    ran: list[int] = []

    @tasks.task
    async def note(number: int) -> None:
        ran.append(number)

    await note.options(key="cancelled").enqueue(1)
    await note.options(key="kept").enqueue(2)
    queue = await tasks.queue()
    assert await queue.cancel("NOTE", ["cancelled"]) == 1
    assert {item.item_id: item.status for item in await queue.list("NOTE")} == {
        "cancelled": Status.CANCELLED,
        "kept": Status.READY,
    }
    async with working(tasks):
        await idle(note)
    assert ran == [2]


async def test_cancelling_what_is_not_there_says_so_and_changes_nothing(tasks: Tasks) -> None:
    @tasks.task
    async def note() -> None: ...

    await note.options(key="one").enqueue()
    queue = await tasks.queue()
    with pytest.raises(NotFound, match="another"):
        await queue.cancel("NOTE", ["another"])
    assert [item.status for item in await queue.list("NOTE")] == [Status.READY]


async def test_a_running_coroutine_that_is_cancelled_ends(tasks: Tasks) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    @tasks.task
    async def long() -> None:
        began.set()
        try:
            await for_ever()
        finally:
            ended.set()

    await long.options(key="one").enqueue()
    async with working(tasks):
        await asyncio.wait_for(began.wait(), 30)
        assert await (await tasks.queue()).cancel("LONG", ["one"]) == 1
        await asyncio.wait_for(ended.wait(), 5)
    assert (await item_of(long, "one")).status is Status.CANCELLED


async def test_a_running_plain_function_learns_that_it_is_cancelled(tasks: Tasks) -> None:
    began, ended = threading.Event(), threading.Event()

    @tasks.task
    def long() -> None:
        began.set()
        while not current_task().cancelled:
            time.sleep(0.02)
        ended.set()

    await long.options(key="one").enqueue()
    async with working(tasks):
        await asyncio.to_thread(began.wait, 30)
        await (await tasks.queue()).cancel("LONG", ["one"])
        assert await asyncio.to_thread(ended.wait, 5)
    assert (await item_of(long, "one")).status is Status.CANCELLED


async def test_what_fails_after_it_was_cancelled_is_not_retried(tasks: Tasks) -> None:
    attempts = 0

    @tasks.task(retries=5, backoff=[0])
    async def cancels_itself() -> None:
        nonlocal attempts
        attempts += 1
        await (await tasks.queue()).cancel("CANCELS_ITSELF", [current_task().item_id])
        raise ValueError("broken")

    await cancels_itself.options(key="one").enqueue()
    async with working(tasks):
        await becomes(cancels_itself, "one", Status.CANCELLED)
        await idle(cancels_itself)
    assert attempts == 1


# -- stopping a worker -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("retries", [0, 1])
async def test_a_coroutine_that_outlasts_the_grace_is_cancelled_and_goes_back_uncounted(
    tasks: Tasks, retries: int
) -> None:
    began, cancelled = asyncio.Event(), False

    @tasks.task
    async def fast() -> None: ...

    @tasks.task(retries=retries)
    async def slow() -> None:
        nonlocal cancelled
        began.set()
        try:
            await for_ever()
        except asyncio.CancelledError:
            cancelled = True
            raise

    await fast.options(key="one").enqueue()
    await slow.options(key="one").enqueue()
    async with working(tasks):
        await asyncio.wait_for(began.wait(), 30)
        await becomes(fast, "one", Status.COMPLETED)
    item = await item_of(slow, "one")
    assert (cancelled, item.status, item.retry_count) == (True, Status.READY, 0)


async def test_what_ends_within_the_grace_is_done(tasks: Tasks) -> None:
    began, go = asyncio.Event(), asyncio.Event()

    @tasks.task
    async def short() -> None:
        began.set()
        await go.wait()

    await short.options(key="one").enqueue()
    async with working(tasks):
        await asyncio.wait_for(began.wait(), 30)
        asyncio.get_running_loop().call_later(0.1, go.set)
    assert (await item_of(short, "one")).status is Status.COMPLETED


async def test_a_plain_function_learns_that_its_worker_stops_and_goes_on_elsewhere(tasks: Tasks) -> None:
    began = threading.Event()

    @tasks.task
    def slow() -> None:
        began.set()
        while not current_task().stopping:
            time.sleep(0.02)
        raise Snooze(0)

    await slow.options(key="one").enqueue()
    async with working(tasks):
        await asyncio.to_thread(began.wait, 30)
    item = await item_of(slow, "one")
    assert (item.status, item.retry_count) == (Status.READY, 0)
