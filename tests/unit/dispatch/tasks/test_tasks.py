"""Tasks: what a decorator refuses, how arguments travel, policies, and the mode for users' tests."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import RFC_4122, UUID

import pytest
from pydantic import BaseModel, ConfigDict

from paceline import (
    BatchOutcome,
    BlockingDownstream,
    CurrentTask,
    Discard,
    Downstream,
    Exponential,
    Retry,
    Snooze,
    TaskEvent,
    Tasks,
    current_task,
)
from paceline.dispatch.status import Status
from paceline.dispatch.tasks import unique
from paceline.dispatch.tasks.policies import pause_before
from paceline.errors import ConfigurationError, InvalidInput, MissingExtra, NotFound, TaskFailed
from paceline.slots.model import WindowPolicy
from paceline.slots.scheduler import SlotScheduler

SECOND = timedelta(seconds=1)


class Customer(BaseModel):
    model_config = ConfigDict(strict=True)
    name: str
    since: datetime


@dataclass
class Line:
    text: str
    price: Decimal


@pytest.fixture
def tasks() -> Tasks:
    return Tasks("sqlite:///never-opened.db")


# -- arguments ---------------------------------------------------------------------------------------------------


async def test_arguments_arrive_as_they_were_given(tasks: Tasks) -> None:
    seen: list[Any] = []

    @tasks.task
    async def bill(customer: Customer, lines: list[Line], /, *, days: set[int], note: bytes = b"-") -> None:
        seen.extend([customer, lines, days, note])

    customer = Customer(name="Ada", since=datetime(2027, 1, 2, tzinfo=UTC))
    lines = [Line("a line", Decimal("1.10"))]
    async with tasks.in_memory():
        await bill.enqueue(customer, lines, days={1, 2})
    assert seen == [customer, lines, {1, 2}, b"-"]


@pytest.mark.parametrize(
    ("args", "kwargs", "field"),
    [
        ((), {}, "arguments"),
        (("seven",), {}, "number"),
        ((7,), {"colour": "red"}, "arguments"),
        ((7,), {"note": b"\xff"}, "note"),
        ((7,), {"text": "\ud800"}, "context"),
        ((7, b"", "a", 8), {}, "arguments"),
        ((7,), {"number": 8}, "arguments"),
    ],
)
async def test_a_wrong_call_names_the_argument_and_queues_nothing(
    tasks: Tasks, args: tuple[Any, ...], kwargs: dict[str, Any], field: str
) -> None:
    @tasks.task
    async def wrong(number: int, note: bytes = b"", text: str = "") -> None: ...

    async with tasks.in_memory() as memory:
        with pytest.raises(InvalidInput) as caught:
            await wrong.enqueue(*args, **kwargs)
        assert caught.value.field == field
        assert await memory.queue.list("WRONG") == []


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"key": ""}, "key"),
        ({"at": "tomorrow"}, "at"),
        ({"priority": 10}, "priority"),
        ({"lane": ""}, "lane"),
        ({"connection": object()}, "connection"),
        ({"unique": "always"}, "unique"),
    ],
)
async def test_a_wrong_option_names_itself_and_queues_nothing(
    tasks: Tasks, options: dict[str, Any], field: str
) -> None:
    @tasks.task
    async def wrong(number: int) -> None: ...

    async with tasks.in_memory() as memory:
        with pytest.raises(InvalidInput) as caught:
            await wrong.options(**options).enqueue(7)
        assert caught.value.field == field
        with pytest.raises(InvalidInput) as caught:
            await wrong.options(**options).enqueue_many([7])
        assert caught.value.field == field
        assert await memory.queue.list("WRONG") == []


async def test_parameters_may_have_the_names_of_options(tasks: Tasks) -> None:
    seen: list[Any] = []

    @tasks.task
    async def named(key: str, at: str, lane: str, priority: int, connection: str, unique: str = "-") -> None:
        seen.append((key, at, lane, priority, connection, unique, current_task().item_id, current_task().lane))

    async with tasks.in_memory():
        await named.enqueue("k", at="home", lane="left", priority=70, connection="wire")
        await named.options(key="own", lane="acme").enqueue("k", "home", "left", 70, "wire", unique="yes")
    (first, second) = seen
    assert first[:6] == ("k", "home", "left", 70, "wire", "-")
    assert second == ("k", "home", "left", 70, "wire", "yes", "own", "acme")


async def test_many_calls_are_checked_before_any_is_queued(tasks: Tasks) -> None:
    seen: list[Any] = []

    @tasks.task(lane="all")
    async def send(invoice: str, copies: int = 1) -> None:
        seen.append((invoice, copies, current_task().lane))

    @tasks.task
    async def other(invoice: str) -> None: ...

    async with tasks.in_memory() as memory:
        for calls, field in (
            (["a", ("b", "many")], "copies"),
            (["a", send.options(connection=object()).call("b")], "connection"),
            (["a", other.call("b")], "calls"),
            ("abc", "calls"),
            ({"invoice": "a"}, "calls"),
        ):
            with pytest.raises(InvalidInput) as caught:
                await send.enqueue_many(calls)
            assert caught.value.field == field
        with pytest.raises(InvalidInput, match="key"):
            await send.options(key="one").enqueue_many(["a"])
        assert await memory.queue.list("SEND") == []
        queued = await send.options(lane="few").enqueue_many(
            ["a", ("b", 2), {"invoice": "c", "copies": 3}, send.options(key="d", lane="own").call("d")]
        )
        assert [one.existing for one in queued] == [False] * 4
        assert queued[3].item_id == "d"
        assert (await send.enqueue_many([send.options(key="d").call("d")]))[0].existing
    assert sorted(seen) == [("a", 1, "few"), ("b", 2, "few"), ("c", 3, "few"), ("d", 1, "own")]


async def test_a_result_has_the_type_of_the_annotation(tasks: Tasks) -> None:
    @tasks.task(retries=0)
    async def double(amount: Decimal) -> dict[str, Decimal]:
        if amount < 0:
            raise ValueError("below zero")
        return {"doubled": amount * 2}

    @tasks.task
    async def large() -> str:
        return "x" * 70_000

    @tasks.task
    async def nothing() -> None: ...

    async with tasks.in_memory():
        await double.options(key="a").enqueue(Decimal("1.10"))
        assert await double.result("a", timeout=1) == {"doubled": Decimal("2.20")}
        await nothing.options(key="a").enqueue()
        assert await nothing.result("a") is None
        await double.options(key="b").enqueue(Decimal(-1))
        with pytest.raises(TaskFailed, match="DEAD_LETTER: ValueError: below zero") as caught:
            await double.result("b", timeout="PT1M")
        assert (caught.value.item_id, caught.value.status) == ("b", "DEAD_LETTER")
        await large.options(key="a").enqueue()
        for task, key in ((large, "a"), (double, "never-queued")):
            with pytest.raises(NotFound, match=key):
                await task.result(key)
        with pytest.raises(InvalidInput, match="timeout"):
            await double.result("a", timeout="soon")


def test_a_call_is_still_a_call(tasks: Tasks) -> None:
    @tasks.task
    def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    assert (add(1, 2), add.__doc__, add.item_type) == (3, "Adds.", "ADD")


def test_a_generator_is_refused(tasks: Tasks) -> None:
    """Called, it runs nothing: its item would be completed unrun."""

    async def stream() -> AsyncIterator[int]:
        yield 1

    with pytest.raises(ConfigurationError, match="'stream' is a generator"):
        tasks.task(stream)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"retries": -1}, "retries"),
        ({"retries": True}, "retries"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": "30 s"}, "timeout"),
        ({"rate": "fast"}, "rate"),
        ({"rate": "0/second"}, "rate"),
        ({"rate": "999999999/second"}, "rate"),
        ({"backoff": []}, "backoff"),
        ({"backoff": "PT1S"}, "backoff"),
        ({"backoff": [-1]}, "backoff"),
        ({"name": "9 lives"}, "name"),
        ({"downstream": "bank"}, "downstream"),
        ({"downstream": BlockingDownstream("bank", rate="5/second")}, "downstream"),
        ({"downstream": Downstream("bank", rate="5/second", call_timeout=5), "timeout": 6}, "timeout"),
    ],
)
def test_a_wrong_option_is_refused_by_its_name(tasks: Tasks, options: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        tasks.task(**options)(lambda: None)
    assert caught.value.field == field


def test_a_task_runs_no_longer_than_its_calls_count(tasks: Tasks) -> None:
    bank = Downstream("bank", rate="5/second", call_timeout=5)
    assert tasks.task(downstream=bank, name="whole")(lambda: None).definition.timeout == 5
    assert tasks.task(downstream=bank, name="shorter", timeout=2)(lambda: None).definition.timeout == 2


async def test_a_function_that_can_be_no_task_is_refused(tasks: Tasks) -> None:
    def many(*names: str) -> None: ...

    with pytest.raises(ConfigurationError) as caught:
        tasks.task(many)
    assert caught.value.field == "names"
    with pytest.raises(ConfigurationError, match="there is no task"):
        await tasks.run(asyncio.Event())

    @tasks.task
    async def strange(lock: asyncio.Lock) -> None: ...

    with pytest.raises(ConfigurationError, match="lock"):
        await tasks.run(asyncio.Event())
    with pytest.raises(ConfigurationError, match="two tasks"):
        tasks.task(name="strange")(many)


def test_nobody_is_inside_a_task_here() -> None:
    with pytest.raises(RuntimeError, match="inside a task"):
        current_task()


# -- policies ----------------------------------------------------------------------------------------------------


def test_an_exponential_backoff_grows_to_its_longest_and_is_spread() -> None:
    policy = Exponential(first=1, factor=3, longest="PT20S", jitter=0.5)
    assert [policy.pause(n, lambda: 0.5) for n in (1, 2, 3, 4, 5000)] == [s * SECOND for s in (1, 3, 9, 20, 20)]
    assert (policy.pause(2, lambda: 0.0), policy.pause(2, lambda: 1.0)) == (1.5 * SECOND, 4.5 * SECOND)


def test_a_list_and_a_function_are_policies_too() -> None:
    assert [pause_before([1, "PT2S"], n) for n in (1, 2, 9)] == [SECOND, 2 * SECOND, 2 * SECOND]
    assert pause_before(lambda retry: retry * 10, 3) == 30 * SECOND


@pytest.mark.parametrize("rate", ["10/minute burst 20", "10 per hour burst 1"])
def test_a_task_takes_one_rate_without_a_burst(tasks: Tasks, rate: str) -> None:
    with pytest.raises(ConfigurationError, match="a task takes one rate without a burst, for example 50/second"):
        tasks.task(name="MAIL", rate=rate)(lambda: None)


@pytest.mark.parametrize("duration", ["2 s", -1, float("nan"), float("inf"), 1e12])
def test_a_wrong_duration_is_refused(duration: Any) -> None:
    with pytest.raises(InvalidInput):
        Snooze(duration)
    with pytest.raises(InvalidInput):
        Retry(after=duration)


def test_a_retry_has_one_time() -> None:
    now = datetime(2027, 1, 1, tzinfo=UTC)
    assert Retry(at="2027-01-01T00:00:05Z").pause(now) == 5 * SECOND
    assert Retry(at="2020-01-01T00:00:00Z").pause(now) == 0 * SECOND
    assert (Retry(after=3).pause(now), Retry().pause(now)) == (3 * SECOND, None)
    with pytest.raises(InvalidInput):
        Retry(at=now, after=1)


# -- in memory ---------------------------------------------------------------------------------------------------


async def test_in_memory_everything_has_happened_when_enqueue_returns(tasks: Tasks) -> None:
    ran: list[str] = []

    @tasks.task(retries=2, rate="1/day")
    async def parent(name: str) -> str:
        ran.append(f"{name} {current_task().attempt}")
        if current_task().attempt < 3:
            raise ValueError("not yet")
        await child.options(key=name, at="2090-01-01T00:00:00Z").enqueue(name)
        return name.upper()

    @tasks.task
    def child(name: str) -> None:
        ran.append(f"child of {name}")
        if len(ran) < 6:
            raise Snooze("P1D")

    @tasks.task
    async def hopeless() -> None:
        raise Discard("no")

    @tasks.task
    async def tacit() -> None:
        raise Discard("")

    async with tasks.in_memory():
        await tacit.options(key="t").enqueue()
        assert (await tacit.show("t")).item.last_error == "discarded"
        await parent.options(key="a").enqueue("ada")
        assert ran == ["ada 1", "ada 2", "ada 3", "child of ada", "child of ada", "child of ada"]
        assert (await parent.show("a")).result == "ADA"
        assert (await child.show("ada")).item.status is Status.COMPLETED
        await hopeless.options(key="h").enqueue()
        assert (await hopeless.show("h")).item.last_error == "no"
        assert (await parent.options(key="a").enqueue("ada")).existing
    async with tasks.in_memory():
        with pytest.raises(NotFound):
            await parent.show("a")


async def test_in_memory_a_task_that_never_ends_ends_the_test(tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.dispatch.tasks.in_memory.MAX_EXECUTIONS", 5)

    @tasks.task
    async def sleepy() -> None:
        raise Snooze(1)

    async with tasks.in_memory():
        with pytest.raises(RuntimeError, match="has not come to an end"):
            await sleepy.enqueue()


async def test_in_memory_a_large_batch_runs_in_full(tasks: Tasks) -> None:
    """Ten thousand calls: more than a claim takes, and more than an item may have executions."""
    outcomes: list[BatchOutcome] = []

    @tasks.task
    async def part(number: int) -> None: ...

    @tasks.task
    def done(outcome: BatchOutcome) -> None:
        outcomes.append(outcome)

    async with tasks.in_memory():
        await tasks.batch([part.call(number) for number in range(10_000)], then=done, key="b")
    assert outcomes == [BatchOutcome("b", total=10_000, succeeded=10_000, failed=0)]


async def test_in_memory_nothing_runs_before_it_is_told(tasks: Tasks) -> None:
    ran: list[str] = []

    @tasks.task
    async def send(invoice: str, copies: int = 1) -> None:
        ran.append(invoice)

    @tasks.task
    async def other() -> None: ...

    async with tasks.in_memory(run=False) as queue:
        with pytest.raises(AssertionError, match=r"^no call of SEND was queued; queued were \[\]"):
            queue.assert_enqueued(send)
        await send.options(key="one", lane="acme", at="2090-01-01T00:00:00Z").enqueue("inv-1", copies=2)
        await send.enqueue_many(["inv-2"])
        assert ran == []
        queue.assert_enqueued(send)
        queue.assert_enqueued(send, "inv-1", 2)
        queue.assert_enqueued(send, invoice="inv-2")
        queue.assert_enqueued(send.options(key="one", lane="acme", at="2090-01-01T00:00:00Z").call("inv-1", 2))
        assert queue.enqueued(send) == [{"invoice": "inv-1", "copies": 2}, {"invoice": "inv-2"}]
        for wrong in (send.call("inv-1"), send.options(lane="zeta").call("inv-1", 2), other.call()):
            with pytest.raises(AssertionError, match="was queued; queued were"):
                queue.assert_enqueued(wrong)
        with pytest.raises(InvalidInput, match="copies"):
            queue.assert_enqueued(send, "inv-1", "many")
        await queue.run()
        assert sorted(ran) == ["inv-1", "inv-2"]
        queue.assert_enqueued(send, "inv-2")


async def test_a_result_that_cannot_be_kept_does_not_undo_the_work(tasks: Tasks) -> None:
    @tasks.task
    async def large() -> str:
        return "x" * 70_000

    @tasks.task
    async def odd() -> object:
        return object()

    async with tasks.in_memory():
        for task in (large, odd):
            await task.options(key="one").enqueue()
            detail = await task.show("one")
            assert (detail.item.status, detail.result) == (Status.COMPLETED, None)
            assert "its result was not kept" in str(detail.audit[-1].detail)


async def test_middleware_and_events_see_every_execution() -> None:
    lines: list[str] = []

    async def outer(task: CurrentTask, run: Callable[[], Awaitable[Any]]) -> Any:
        lines.append(f"in {task.item_id}")
        try:
            return await run()
        finally:
            lines.append("out")

    async def double(task: CurrentTask, run: Callable[[], Awaitable[Any]]) -> Any:
        return 2 * await run()

    def listen(event: TaskEvent) -> None:
        lines.append(f"{event.kind} {event.attempt} {event.error!r}")
        raise RuntimeError("a listener's own trouble")

    tasks = Tasks("memory://", middleware=[outer, double], on_event=listen)

    @tasks.task(retries=1)
    async def flaky() -> int:
        if current_task().attempt == 1:
            raise ValueError("boom")
        return 21

    async with tasks.in_memory():
        await flaky.options(key="one").enqueue()
        assert (await flaky.show("one")).result == 42
    failed = ["STARTED 1 None", "in one", "out", "FAILED 1 ValueError('boom')"]
    assert lines == [*failed, "STARTED 2 None", "in one", "out", "SUCCEEDED 2 None"]


async def test_a_backoff_that_fails_leaves_the_pause_to_the_item_type(tasks: Tasks) -> None:
    def broken(retry: int) -> float:
        return 1 / 0

    @tasks.task(retries=1, backoff=broken)
    async def fails() -> None:
        raise ValueError("boom")

    async with tasks.in_memory():
        await fails.options(key="one").enqueue()
        item = (await fails.show("one")).item
    assert (item.status, item.last_error) == (Status.DEAD_LETTER, "ValueError: boom")


async def test_a_task_that_exits_fails_and_the_worker_goes_on(tasks: Tasks) -> None:
    @tasks.task(retries=0)
    def leave() -> None:
        raise SystemExit(3)

    async with tasks.in_memory():
        await leave.options(key="one").enqueue()
        assert (await leave.show("one")).item.last_error == "RuntimeError: SystemExit: 3"


async def test_many_first_calls_at_once_define_the_task_once_and_share_transactions() -> None:
    async with Tasks("memory://") as tasks:

        @tasks.task
        async def crowd() -> None: ...

        store = (await tasks.queue()).store
        calls = Counter[str]()
        for name in ("declare", "enqueue"):
            original = getattr(store, name)

            async def counted(*args: Any, name: str = name, original: Any = original, **kwargs: Any) -> Any:
                calls[name] += 1
                return await original(*args, **kwargs)

            setattr(store, name, counted)
        await asyncio.gather(*(crowd.options(key=str(number)).enqueue() for number in range(500)))
        assert calls["declare"] == 1
        assert calls["enqueue"] < 20


def test_a_wrong_periodic_task_is_refused_when_it_is_defined() -> None:
    tasks = Tasks("memory://")
    with pytest.raises(ConfigurationError, match="cron"):
        tasks.periodic()
    with pytest.raises(ConfigurationError, match="catch_up"):
        tasks.periodic(every=2, catch_up="some")

    @tasks.task
    async def needy(number: int) -> None: ...

    with pytest.raises(ConfigurationError, match="number"):
        tasks.periodic(every=2)(needy)
    with pytest.raises(ConfigurationError, match="name"):

        @tasks.periodic(every=2, name="a b")
        async def spaced() -> None: ...

    @tasks.periodic(every=2, name="same")
    async def first() -> None: ...

    with pytest.raises(ConfigurationError, match="same"):

        @tasks.periodic(every=2, name="same")
        async def second() -> None: ...


async def test_the_driver_is_needed_when_the_database_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    tasks = Tasks("postgresql://somebody@127.0.0.1:1/work")

    @tasks.task
    async def greet(name: str) -> str:
        return f"hello {name}"

    async with tasks.in_memory():
        await greet.enqueue("you")
    with pytest.raises(MissingExtra, match=r"paceline\[postgres\]"):
        await greet.enqueue("you")


def test_ids_of_calls_without_a_key_sort_by_their_times(monkeypatch: pytest.MonkeyPatch) -> None:
    times = [1_800_000_000_000_000_000 + microseconds * 1000 for microseconds in (0, 1, 2, 999, 1000, 5_000_000)]
    ids = []
    for now in times:
        monkeypatch.setattr("time.time_ns", lambda now=now: now)
        ids += [unique.new_id(), unique.new_id()]
    assert len(set(ids)) == 12
    assert [one[:16] for one in ids] == sorted(one[:16] for one in ids)
    assert len({one[:16] for one in ids}) == 6
    assert {(UUID(one).version, UUID(one).variant) for one in ids} == {(7, RFC_4122)}
    assert int(ids[0][:12], 16) == times[0] // 1_000_000


SLOT_TIME = datetime(2100, 3, 1, 16, tzinfo=UTC)


@pytest.fixture
async def slots() -> AsyncIterator[SlotScheduler]:
    async with SlotScheduler.open("memory://") as slots:
        await slots.configure("default", WindowPolicy(2, "PT10S", max_delay="PT20S"))
        yield slots


async def test_a_call_runs_in_its_slot_and_keeps_it_when_it_is_queued_again(slots: SlotScheduler) -> None:
    tasks = Tasks("memory://")

    @tasks.task
    async def note(number: int) -> None: ...

    async with tasks.in_memory(run=False) as memory:
        for _ in range(2):
            slot = await slots.assign("a", "default", SLOT_TIME)
            queued = await note.options(key="a", slot=slot).enqueue(1)
        assert (queued.item_id, queued.existing) == ("a", True)
        item = (await memory.queue.show("NOTE", "a")).item
        assert (item.execute_at, item.slotted) == (slot.scheduled_time, True)
        with pytest.raises(InvalidInput, match="at: or a slot"):
            await note.options(key="b", slot=slot, at=SLOT_TIME).enqueue(1)


async def test_many_calls_have_slots_of_their_own(slots: SlotScheduler) -> None:
    tasks = Tasks("memory://")

    @tasks.task
    async def note(number: int) -> None: ...

    booked = await slots.assign_many([(f"i{number}", SLOT_TIME) for number in range(4)], "default")
    async with tasks.in_memory(run=False) as memory:
        calls = [note.options(key=slot.event_id, slot=slot).call(number) for number, slot in enumerate(booked)]
        await note.enqueue_many(calls)
        items = await memory.queue.list("NOTE")
    assert [(item.item_id, item.slotted) for item in items] == [(f"i{number}", True) for number in range(4)]
    assert {item.execute_at for item in items} == {slot.scheduled_time for slot in booked}
