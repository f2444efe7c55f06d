"""What the tests of River's client show of River, shown of tasks here. What does not apply is listed in
docs/howto/coming-from.md."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from paceline import (
    ConfigurationError,
    Conflict,
    CurrentTask,
    Discard,
    DispatchQueue,
    InvalidInput,
    NotFound,
    Retry,
    Snooze,
    TaskEvent,
    Tasks,
    current_task,
)
from paceline.dispatch.status import Status
from paceline.sql.url import database_url
from paceline.testing import eventually
from tests.acceptance.peer_tasks import STORES, becomes, for_ever, idle, item_of, url_of, working

SECOND = timedelta(seconds=1)


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


@pytest.fixture
async def tasks(url: str) -> AsyncIterator[Tasks]:
    async with Tasks(url, grace=0.3) as tasks:
        yield tasks
        tasks.blocking.close()


# -- inserting ---------------------------------------------------------------------------------------------------


async def test_a_transaction_decides_whether_a_call_is_queued_and_when_workers_see_it(tasks: Tasks) -> None:
    @tasks.task
    async def note(number: int) -> None: ...

    await tasks.define()
    queue = await tasks.queue()
    engine = sa.create_engine(database_url(tasks.url))

    def within() -> None:
        with Session(engine) as session:
            note.options(key="one", connection=session).blocking.enqueue(1)
            note.options(connection=session).blocking.enqueue_many([2, 3])
            assert note.tasks.blocking._run(lambda _: queue_count()) == 0, "nobody else sees it yet"
            session.commit()
        with Session(engine) as session:
            note.options(key="gone", connection=session).blocking.enqueue(4)
            session.rollback()

    async def queue_count() -> int:
        async with DispatchQueue.open(tasks.url) as other:
            return len(await other.list("NOTE"))

    await asyncio.to_thread(within)
    engine.dispose()
    assert len(await queue.list("NOTE")) == 3
    async with working(tasks):
        await idle(note)


async def test_many_calls_with_options_of_their_own(tasks: Tasks) -> None:
    @tasks.task
    async def note(number: int) -> None: ...

    later = datetime.now(UTC) + timedelta(hours=1)
    queued = await note.enqueue_many(
        [note.options(key="a", priority=2).call(1), note.options(key="b", at=later).call(2)]
    )
    assert [one.item_id for one in queued] == ["a", "b"]
    first, second = await item_of(note, "a"), await item_of(note, "b")
    assert (first.priority, first.execute_at <= datetime.now(UTC) + SECOND) == (2, True)
    assert abs(second.execute_at - later) < SECOND
    assert await note.enqueue_many([]) == []


async def test_what_no_queue_is_called_or_no_task_is_known_by_is_refused_by_name(tasks: Tasks) -> None:
    with pytest.raises(ConfigurationError, match="queue"):
        tasks.task(queue="mail,default")(for_ever)

    @tasks.task
    async def note(number: int) -> None: ...

    await tasks.define()
    queue = await tasks.queue()
    with pytest.raises(NotFound, match="UNHEARD_OF"):
        await queue.enqueue("UNHEARD_OF", "one")
    with pytest.raises(NotFound, match="UNHEARD_OF"):
        await queue.enqueue_many("UNHEARD_OF", [("one", {}, None)])
    for options in ({"priority": 10}, {"lane": ""}, {"key": ""}, {"at": "soon"}):
        with pytest.raises(InvalidInput, match=next(iter(options))):
            await note.options(**options).enqueue(1)
    assert await queue.list("NOTE") == []


async def test_a_call_is_unique_by_its_arguments_and_period_until_it_has_run(tasks: Tasks) -> None:
    @tasks.task(unique="arguments")
    async def render(page: int, *, draft: bool = False) -> None: ...

    @tasks.task(unique="while_waiting")
    async def refresh(page: int) -> None: ...

    @tasks.task(unique="arguments", unique_period=3600)
    async def report(day: str) -> None: ...

    found = [(await call).existing for call in (render.enqueue(1), render.enqueue(1), render.enqueue(1, draft=True))]
    assert found == [False, True, False]
    at = datetime(2031, 3, 1, 12, 10, tzinfo=UTC)
    times = [at, at + timedelta(minutes=49), at + timedelta(minutes=51)]
    assert [(await report.options(at=time).enqueue("mon")).existing for time in times] == [False, True, False]
    assert [(await refresh.enqueue(1)).existing for _ in range(2)] == [False, True]
    async with working(tasks):
        await idle(refresh)
    assert not (await refresh.enqueue(1)).existing


# -- what a job returns and raises -------------------------------------------------------------------------------


async def test_what_an_execution_says_decides_what_becomes_of_it(tasks: Tasks) -> None:
    at = datetime.now(UTC) + timedelta(hours=2)
    ends: dict[str, Exception | None] = {
        "done": None,
        "discarded": Discard("the customer is gone"),
        "snoozed": Snooze("PT1H"),
        "retried-at": Retry("closed", at=at),
        "failed": RuntimeError("broken"),
    }

    @tasks.task(retries=3, backoff=[60])
    async def end(how: str) -> str:
        if (error := ends[how]) is not None:
            raise error
        return "output"

    for how in ends:
        await end.options(key=how).enqueue(how)
    async with working(tasks):
        await becomes(end, "done", Status.COMPLETED)
        await becomes(end, "discarded", Status.DEAD_LETTER)

        async def put_off() -> bool:
            items = [await item_of(end, how) for how in ("snoozed", "retried-at", "failed")]
            return all(item.status is Status.READY and item.due_at > datetime.now(UTC) + 30 * SECOND for item in items)

        await eventually(put_off)
    assert await end.result("done") == "output"
    assert (await item_of(end, "discarded")).last_error == "the customer is gone"
    snoozed, retried, failed = [await item_of(end, how) for how in ("snoozed", "retried-at", "failed")]
    assert (snoozed.retry_count, retried.retry_count, failed.retry_count) == (0, 1, 1), "a snooze is no attempt"
    assert abs(retried.due_at - at) < 10 * SECOND
    assert (retried.last_error, failed.last_error) == ("closed", "RuntimeError: broken")


async def test_a_snooze_of_no_time_runs_again_at_once(tasks: Tasks) -> None:
    attempts: list[int] = []

    @tasks.task(retries=0)
    async def patient() -> None:
        attempts.append(current_task().attempt)
        if len(attempts) < 3:
            raise Snooze(0)

    await patient.options(key="one").enqueue()
    async with working(tasks):
        await becomes(patient, "one", Status.COMPLETED)
    assert attempts == [1, 1, 1]


async def test_it_is_retried_by_its_policy_until_it_is_discarded(tasks: Tasks) -> None:
    pauses: list[int] = []

    def backoff(attempt: int) -> float:
        pauses.append(attempt)
        return 0

    @tasks.task(retries=3, backoff=backoff)
    async def broken() -> None:
        raise RuntimeError(f"attempt {current_task().attempt}")

    await broken.options(key="one").enqueue()
    async with working(tasks):
        await becomes(broken, "one", Status.DEAD_LETTER)
    detail = await broken.show("one")
    assert [attempt.error for attempt in detail.attempts] == [f"RuntimeError: attempt {n}" for n in (1, 2, 3, 4)]
    assert all(attempt.worker for attempt in detail.attempts)
    assert pauses[:3] == [1, 2, 3]


async def test_a_job_over_its_time_is_cancelled_and_retried(tasks: Tasks) -> None:
    @tasks.task(retries=1, backoff=[0], timeout=0.1)
    async def slow() -> str:
        if current_task().attempt == 1:
            await for_ever()
        return "in time"

    await slow.options(key="one").enqueue()
    async with working(tasks):
        assert await slow.result("one", timeout=30) == "in time"
    (attempt,) = (await slow.show("one")).attempts
    assert "ran longer than 0.1 s" in (attempt.error or "")


async def test_a_late_end_changes_nothing_of_what_an_operator_decided(tasks: Tasks) -> None:
    began = asyncio.Event()

    @tasks.task
    async def stubborn() -> None:
        began.set()
        try:
            await for_ever()
        except asyncio.CancelledError:
            return  # as if it had ended well

    await stubborn.options(key="one").enqueue()
    async with working(tasks):
        await asyncio.wait_for(began.wait(), 30)
        await (await tasks.queue()).cancel("STUBBORN", ["one"])
    assert (await item_of(stubborn, "one")).status is Status.CANCELLED


# -- around executions -------------------------------------------------------------------------------------------


async def test_middleware_goes_around_each_execution_and_events_tell_of_it(url: str) -> None:
    steps: list[str] = []

    def named(name: str) -> Callable[[CurrentTask, Callable[[], Awaitable[Any]]], Awaitable[Any]]:
        async def around(task: CurrentTask, run: Callable[[], Awaitable[Any]]) -> Any:
            steps.append(f"{name} before {task.item_id}")
            result = await run()
            steps.append(f"{name} after")
            return f"{result} by {name}"

        return around

    def listen(event: TaskEvent) -> None:
        steps.append(event.kind.value)
        raise RuntimeError("a listener that fails stops nothing")

    tasks = Tasks(url, middleware=[named("outer"), named("inner")], on_event=listen)

    @tasks.task
    async def work() -> str:
        steps.append("works")
        return "done"

    async with tasks:
        await work.options(key="one").enqueue()
        async with working(tasks):
            assert await work.result("one", timeout=30) == "done by inner by outer"
    assert steps == [
        "STARTED", "outer before one", "inner before one", "works", "inner after", "outer after", "SUCCEEDED",
    ]  # fmt: skip


# -- operating ---------------------------------------------------------------------------------------------------


async def test_a_paused_task_begins_nothing_until_it_is_resumed_others_go_on(tasks: Tasks) -> None:
    ran: list[str] = []

    @tasks.task
    async def held(number: int) -> None:
        ran.append("held")

    @tasks.task
    async def other() -> None:
        ran.append("other")

    await tasks.define()
    queue = await tasks.queue()
    await queue.pause("HELD")
    await held.options(key="one").enqueue(1)
    await other.options(key="one").enqueue()
    async with working(tasks):
        await becomes(other, "one", Status.COMPLETED)
        assert ran == ["other"], "paused before the worker began"
        await queue.resume("HELD")
        await becomes(held, "one", Status.COMPLETED)
        await queue.pause("HELD")
    async with working(tasks):
        await held.options(key="two").enqueue(2)
        await other.options(key="two").enqueue()
        await becomes(other, "two", Status.COMPLETED)
        assert ran == ["other", "held", "other"]


async def test_jobs_of_a_queue_that_nobody_works_wait_until_somebody_does(tasks: Tasks) -> None:
    @tasks.task(queue="mail")
    async def send() -> None: ...

    @tasks.task
    async def other() -> None: ...

    await send.options(key="one").enqueue()
    await other.options(key="one").enqueue()
    async with working(tasks, queues=["default"]):
        await becomes(other, "one", Status.COMPLETED)
        assert (await (await tasks.queue()).unserved(["OTHER"])) == {"SEND": 1}
        with pytest.raises(ConfigurationError, match="no task is in the queue 'post'"):
            async with tasks.running(queues=["post"]):
                pass
    async with working(tasks, queues=["mail"]):
        await becomes(send, "one", Status.COMPLETED)


async def test_what_is_scheduled_can_be_brought_forward_cancelled_and_deleted(tasks: Tasks) -> None:
    @tasks.task
    async def note() -> None: ...

    later = datetime.now(UTC) + timedelta(days=1)
    for key in ("now", "never"):
        await note.options(key=key, at=later).enqueue()
    queue = await tasks.queue()
    await queue.reschedule("NOTE", ["now"], execute_at=datetime.now(UTC))
    await queue.cancel("NOTE", ["never"])
    with pytest.raises(NotFound):
        await queue.reschedule("NOTE", ["unheard-of"], execute_at=later)
    with pytest.raises(Conflict):
        await queue.reschedule("NOTE", ["never"], execute_at=later)
    async with working(tasks):
        await becomes(note, "now", Status.COMPLETED)
    pruned = await queue.prune(datetime.now(UTC) + timedelta(minutes=1))
    assert pruned.items == 2
    assert await queue.list("NOTE") == []


async def test_a_running_job_is_not_deleted_and_a_dead_one_is_kept_until_somebody_decides(tasks: Tasks) -> None:
    began = asyncio.Event()

    @tasks.task(retries=0)
    async def long() -> None:
        began.set()
        await for_ever()

    @tasks.task(retries=0)
    async def broken() -> None:
        raise RuntimeError("broken")

    await long.options(key="one").enqueue()
    await broken.options(key="one").enqueue()
    queue = await tasks.queue()
    async with working(tasks):
        await asyncio.wait_for(began.wait(), 30)
        await becomes(broken, "one", Status.DEAD_LETTER)
        assert (await queue.prune(datetime.now(UTC) + timedelta(minutes=1))).items == 0
        with pytest.raises(Conflict):
            await queue.discard("LONG", ["one"])
    assert await queue.discard("BROKEN", ["one"]) == 1
    assert (await item_of(broken, "one")).status is Status.CANCELLED


async def test_lists_are_filtered_ordered_and_paged(tasks: Tasks) -> None:
    @tasks.task
    async def note() -> None: ...

    start = datetime(2031, 3, 1, tzinfo=UTC)
    for number in range(7):
        lane = "even" if number % 2 == 0 else "odd"
        await note.options(key=f"n{number}", at=start + number * SECOND, lane=lane, priority=number).enqueue()
    queue = await tasks.queue()
    await queue.cancel("NOTE", ["n6"])
    assert [item.item_id for item in await queue.list("NOTE", "CANCELLED")] == ["n6"]
    assert [item.item_id for item in await queue.list("NOTE", lane="odd")] == ["n1", "n3", "n5"]
    since = await queue.list("NOTE", since=start + 5 * SECOND)
    assert [item.item_id for item in since] == ["n5", "n6"]
    pages: list[str] = []
    while page := await queue.list("NOTE", limit=3, after=pages[-1] if pages else None):
        pages += [item.item_id for item in page]
    assert pages == [f"n{number}" for number in range(7)]
    with pytest.raises(NotFound):
        await queue.show("NOTE", "unheard-of")


# -- stopping ----------------------------------------------------------------------------------------------------


async def test_a_worker_that_stops_under_a_flood_leaves_nothing_running(tasks: Tasks) -> None:
    @tasks.task
    async def note(number: int) -> None:
        await asyncio.sleep(0.01)

    flood = asyncio.Event()

    async def insert() -> None:
        number = 0
        while not flood.is_set():
            await note.enqueue_many(range(number, number + 20))
            number += 20

    async with working(tasks):
        inserting = asyncio.create_task(insert())
        queue = await tasks.queue()

        async def some_ran() -> bool:
            return (await queue.stats("NOTE")).depth.get(Status.COMPLETED, 0) > 20

        await eventually(some_ran)
    flood.set()
    await inserting
    depth = (await queue.stats("NOTE")).depth
    assert not depth.get(Status.CLAIMED)
    assert not depth.get(Status.DISPATCHED)


async def test_a_worker_may_start_and_stop_again_and_again(tasks: Tasks) -> None:
    @tasks.task
    async def note(number: int) -> None: ...

    for number in range(5):
        queued = await note.enqueue(number)
        async with working(tasks):
            await becomes(note, queued.item_id, Status.COMPLETED)


async def test_a_worker_without_tasks_does_not_start(url: str) -> None:
    with pytest.raises(ConfigurationError, match="there is no task"):
        async with Tasks(url).running():
            pass
