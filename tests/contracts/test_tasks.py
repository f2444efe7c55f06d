"""Tasks as functions, run by a real worker, in-process and on Temporal, on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from paceline import ConfigurationError, Conflict, Discard, Downstream, InvalidInput, Retry, Snooze, Tasks, current_task
from paceline.dispatch.model import ItemDetail
from paceline.dispatch.periodic.periodic_tasks import Periodic
from paceline.dispatch.status import Status
from paceline.limits.model import Plan, SlidingLog
from paceline.limits.stores.sql_plans import SqlPlans
from paceline.sql.url import database_url
from paceline.testing import eventually
from tests.contracts.task_engines import EngineTasks, ended, without_worker, working


class Panic(BaseException):
    """Such as PyO3's `PanicException`."""


async def test_a_function_runs_once_with_its_arguments_and_its_result_is_kept(tasks: Tasks) -> None:
    calls: list[tuple[str, Decimal, datetime | None]] = []

    @tasks.task(timeout=30)
    async def send_invoice(invoice_id: str, total: Decimal, due: datetime | None = None) -> dict[str, Decimal]:
        calls.append((invoice_id, total, due))
        await current_task().progress(0.5, "half way")
        return {invoice_id: total * 2}

    due = datetime(2030, 3, 1, 16, tzinfo=UTC)
    queued = await send_invoice.options(key="inv-1").enqueue("inv-1", total=Decimal("12.00"), due=due)
    again = await send_invoice.options(key="inv-1").enqueue("inv-1", total=Decimal("13.00"))
    assert (queued.existing, again.existing, queued.item_type) == (False, True, "SEND_INVOICE")
    async with working(tasks):
        detail = await ended(send_invoice, "inv-1")
    assert calls == [("inv-1", Decimal("12.00"), due)]
    assert (detail.item.status, detail.item.attempt) == (Status.COMPLETED, 1)
    assert (detail.progress, detail.result) == ((0.5, "half way"), {"inv-1": "24.00"})


async def test_a_plain_function_runs_once_on_a_thread(tasks: Tasks) -> None:
    ran_on: list[threading.Thread] = []

    @tasks.task
    def plain(number: int) -> int:
        ran_on.append(threading.current_thread())
        current_task().progress(0.25, "a quarter")
        return number + 1

    await plain.options(key="one").enqueue(1)
    async with working(tasks):
        detail = await ended(plain, "one")
    assert (detail.item.status, detail.result, detail.progress) == (Status.COMPLETED, 2, (0.25, "a quarter"))
    assert len(ran_on) == 1
    assert ran_on[0] is not threading.main_thread()


async def test_no_more_plain_functions_run_at_once_than_there_are_threads(tasks: Tasks) -> None:
    lock, gate = threading.Lock(), threading.Event()
    running, most = 0, 0

    @tasks.task
    def hold() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        gate.wait(30)
        with lock:
            running -= 1

    for number in range(5):
        await hold.options(key=str(number)).enqueue()
    async with working(tasks):
        await eventually(lambda: running == 2)
        gate.set()
        for number in range(5):
            assert (await ended(hold, str(number))).item.status is Status.COMPLETED
    assert most == 2


async def test_a_task_that_fails_is_retried_and_then_a_dead_letter(tasks: EngineTasks) -> None:
    attempts: list[int] = []

    @tasks.task(retries=2, backoff=[0])
    async def fails() -> None:
        attempts.append(current_task().attempt)
        raise ValueError("boom")

    await fails.options(key="one").enqueue()
    async with working(tasks):
        item = (await ended(fails, "one")).item
    assert attempts == [1, 2, 3]
    assert (item.status, item.last_error, item.attempt) == (Status.DEAD_LETTER, "ValueError: boom", 3)
    seen = [one if isinstance(one, str) else (one.kind, one.item_id, one.attempt) for one in tasks.seen]
    around = ["before one", "after one"]
    tries = [[("STARTED", "one", n), *around, ("FAILED", "one", n)] for n in attempts]
    assert seen == [step for steps in tries for step in steps]


async def test_whatever_a_task_raises_it_fails_once_per_attempt_and_the_worker_goes_on(tasks: Tasks) -> None:
    raised = {error.__name__: error for error in (SystemExit, asyncio.CancelledError, Panic)}
    attempts: list[str] = []

    @tasks.task(retries=1, backoff=[0])
    async def fails(name: str) -> None:
        attempts.append(name)
        raise raised[name]("odd")

    @tasks.task(retries=1, backoff=[0])
    def first(names: list[str]) -> str:
        attempts.append("StopIteration")
        return next(iter(names))

    await first.options(key="StopIteration").enqueue([])
    for name in raised:
        await fails.options(key=name).enqueue(name)
    async with working(tasks):
        items = [(await ended(fails, name)).item for name in raised]
        items.append((await ended(first, "StopIteration")).item)
    for item in items:
        assert (item.status, item.attempt) == (Status.DEAD_LETTER, 2)
        assert item.item_id in str(item.last_error)
    assert sorted(attempts) == sorted([*raised, "StopIteration"] * 2)


async def test_a_task_knows_its_lane_and_priority(tasks: Tasks) -> None:
    places: list[tuple[str, int]] = []

    @tasks.task(priority=7)
    async def note() -> None:
        places.append((current_task().lane, current_task().priority))

    await note.options(key="one", lane="tenant-1").enqueue()
    await note.options(key="two", priority=0).enqueue()
    async with working(tasks):
        await ended(note, "one")
        await ended(note, "two")
    assert sorted(places) == [("default", 0), ("tenant-1", 7)]


async def test_a_snooze_counts_no_retry_and_a_discard_needs_none(tasks: Tasks) -> None:
    attempts: list[int] = []

    @tasks.task(retries=0)
    async def patient() -> str:
        attempts.append(current_task().attempt)
        if len(attempts) < 4:
            raise Snooze(0.001)
        return "done"

    @tasks.task(retries=50)
    async def hopeless() -> None:
        raise Discard("the customer is gone")

    await patient.options(key="one").enqueue()
    await hopeless.options(key="one").enqueue()
    async with working(tasks):
        snoozed, discarded = await ended(patient, "one"), await ended(hopeless, "one")
    assert attempts == [1, 1, 1, 1]
    assert (snoozed.item.status, snoozed.result, snoozed.item.retry_count) == (Status.COMPLETED, "done", 0)
    assert (discarded.item.status, discarded.item.last_error) == (Status.DEAD_LETTER, "the customer is gone")
    assert (snoozed.item.attempt, discarded.item.attempt) == (1, 1)


async def test_a_retry_says_when_itself(tasks: Tasks) -> None:
    at = datetime.now(UTC) + timedelta(hours=5)

    @tasks.task(retries=3, backoff=[0])
    async def closed() -> None:
        raise Retry("the bank is closed", at=at)

    await closed.options(key="one").enqueue()
    async with working(tasks):

        async def put_off() -> ItemDetail | None:
            detail = await closed.show("one")
            return detail if detail.item.retry_count else None

        item = (await eventually(put_off)).item
    assert (item.status, item.last_error) == (Status.READY, "the bank is closed")
    assert abs(item.due_at - at) < timedelta(minutes=1)


async def test_a_task_over_its_time_is_cancelled_and_fails(tasks: Tasks) -> None:
    cancelled = asyncio.Event()

    @tasks.task(retries=0, timeout=0.05)
    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    await slow.options(key="one").enqueue()
    async with working(tasks):
        item = (await ended(slow, "one")).item
    assert cancelled.is_set()
    assert (item.status, item.last_error) == (Status.DEAD_LETTER, "TimeoutError: it ran longer than 0.05 s")


async def test_a_task_that_does_not_end_is_abandoned_and_fenced_off(tasks: Tasks) -> None:
    """The first execution ignores its cancellation and comes back when the second one has the item."""
    go_on, second_runs, refused = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @tasks.task(retries=1, timeout=0.05, backoff=[0])
    async def stubborn() -> str:
        if current_task().attempt == 2:
            second_runs.set()
            return "second"
        while not go_on.is_set():
            try:
                await go_on.wait()
            except asyncio.CancelledError:
                continue
        try:
            await current_task().progress(1, "too late")
        except Conflict:
            refused.set()
        return "first"

    await stubborn.options(key="one").enqueue()
    async with working(tasks):
        await asyncio.wait_for(second_runs.wait(), 30)
        detail = await ended(stubborn, "one")
        go_on.set()
        await asyncio.wait_for(refused.wait(), 30)
    assert (detail.item.status, detail.result) == (Status.COMPLETED, "second")
    assert await stubborn.show("one") == detail, "the abandoned execution changed nothing"


async def test_a_plain_function_over_its_time_is_abandoned(tasks: Tasks) -> None:
    gate = threading.Event()

    @tasks.task(retries=0, timeout=0.05)
    def stuck() -> None:
        gate.wait(30)

    await stuck.options(key="one").enqueue()
    async with working(tasks):
        item = (await ended(stuck, "one")).item
        gate.set()
    assert item.status is Status.DEAD_LETTER
    assert str(item.last_error).startswith("TimeoutError")


async def test_a_rate_holds_executions_back(tasks: Tasks) -> None:
    began: list[float] = []

    @tasks.task(rate="3/second")
    async def paced() -> None:
        began.append(time.monotonic())

    for number in range(5):
        await paced.options(key=str(number)).enqueue()
    async with working(tasks):
        for number in range(5):
            assert (await ended(paced, str(number))).item.status is Status.COMPLETED
    assert all(later - earlier >= 1 for earlier, later in zip(began, began[3:], strict=False))


@pytest.mark.parametrize("plain", [False, True], ids=["async def", "def"])
async def test_a_downstream_holds_executions_back(tasks: Tasks, plain: bool) -> None:
    began: list[float] = []
    shop = Downstream("shop", tasks.url, rate="3/second", limits={"rows": "1000/minute"}, call_timeout=5)

    async def call(number: int) -> None:
        began.append(time.monotonic())
        current_task().call.settle(rows=100)
        if number == 4:
            raise Discard("no such row")

    def plain_call(number: int) -> None:
        began.append(time.monotonic())
        current_task().call.settle(rows=100)
        current_task().call.answered()
        if number == 4:
            raise Discard("no such row")

    paced = tasks.task(name="PACED", downstream=shop)(plain_call if plain else call)
    for number in range(5):
        await paced.options(key=str(number)).enqueue(number)
    async with working(tasks):
        statuses = [(await ended(paced, str(number))).item.status for number in range(5)]
        await eventually(lambda: shop.running == 0)
        await shop.close()  # it reports what it has seen
        totals = (await shop.state()).totals
    assert statuses == [Status.COMPLETED] * 4 + [Status.DEAD_LETTER]
    assert all(later - earlier >= 1 for earlier, later in zip(began, began[3:], strict=False))
    # An exception alone does not say whether the call has arrived.
    assert (totals.calls, totals.unknown) == (5, 0 if plain else 1)


async def test_what_waits_for_a_downstream_has_not_begun(tasks: Tasks) -> None:
    began: list[str] = []
    shop = Downstream("shop", tasks.url, rate="100/second", call_timeout=5)

    @tasks.task(downstream=shop, retries=0)
    async def held() -> None:
        began.append(current_task().item_id)

    await shop.pause()
    await held.options(key="one").enqueue()
    async with working(tasks):
        await eventually(lambda: shop.waiting == 1)
        await (await tasks.queue()).pause("HELD")
        # The kill switch takes back what waits, and gives its place in the line to others.
        await eventually(lambda: shop.waiting == 0)
        await shop.resume()
        assert (await held.show("one")).item.attempt <= 1
        assert began == []
        await (await tasks.queue()).resume("HELD")
        detail = await ended(held, "one")
    assert (detail.item.status, detail.item.attempt, began) == (Status.COMPLETED, 1, ["one"])


async def test_a_worker_writes_what_the_decorator_states_and_nothing_else(tasks: Tasks) -> None:
    @tasks.task(retries=7)
    async def stated() -> None: ...

    queue = await tasks.queue()
    await queue.configure("STATED", enabled=False, batch_size=17)
    async with tasks.running():
        config = await queue.config("STATED")
    assert (config.max_dispatch_retries, config.enabled, config.batch_size) == (8, False, 17)


async def test_a_call_with_a_newer_argument_waits_for_a_worker_that_knows_it(tasks: EngineTasks) -> None:
    """A rolling deploy: the new producer queues, the old worker is the only one at first."""
    runs: list[tuple[int, str]] = []
    newer = EngineTasks(tasks.url, tasks.temporal)

    async def old(number: int) -> None: ...

    async def new(number: int, colour: str = "blue") -> None:
        runs.append((number, colour))

    @newer.task
    async def added(color: str = "red") -> None: ...

    older_task = tasks.task(retries=0, name="PAINT")(old)
    newer_task = newer.task(retries=0, name="PAINT")(new)
    async with newer:
        await newer_task.options(key="one").enqueue(1, colour="red")
        await newer_task.options(key="two").enqueue(2)
        await added.options(key="three").enqueue()
        async with working(tasks):
            assert (await ended(older_task, "two")).item.status is Status.COMPLETED

            async def given_back() -> str | None:
                details = [entry.detail for entry in (await older_task.show("one")).audit if entry.action == "RELEASED"]
                return details[0] if details else None

            reason = str(await eventually(given_back))
            item = (await older_task.show("one")).item
            assert (item.status, item.retry_count) == (Status.READY, 0)
        assert "colour: is no parameter of this version of old; it waits for a worker of a newer version" in reason
        queue = await tasks.queue()
        await queue.reschedule("PAINT", ["one"], execute_at=datetime.now(UTC))
        assert (await added.show("three")).item.status is Status.READY
        async with working(newer):
            detail = await ended(newer_task, "one")
            assert (await ended(added, "three")).item.attempt == 1
    assert (detail.item.status, detail.item.attempt, runs) == (Status.COMPLETED, 1, [(1, "red")])


async def test_a_call_that_no_version_can_read_is_one_dead_letter(tasks: Tasks) -> None:
    @tasks.task(retries=3)
    async def changed(number: int) -> None: ...

    queue = await tasks.queue()
    await queue.define(tasks.domains()[0].config)
    await queue.enqueue("CHANGED", "wrong", context={"number": "seven"})
    await queue.enqueue("CHANGED", "missing", context={})
    await queue.enqueue("CHANGED", "list", context=[7])
    await queue.enqueue("CHANGED", "good", context={"number": 7})
    async with working(tasks):
        items = {key: (await ended(changed, key)).item for key in ("wrong", "missing", "list", "good")}
    assert [item.status for item in items.values()] == [Status.DEAD_LETTER] * 3 + [Status.COMPLETED]
    assert [item.attempt for item in items.values()] == [1, 1, 1, 1]
    assert "its arguments can't be read: number" in str(items["wrong"].last_error)
    assert "number: is missing" in str(items["missing"].last_error)
    assert "context: of changed must be an object" in str(items["list"].last_error)


@without_worker
async def test_a_call_is_queued_if_and_when_my_transaction_commits(tasks: Tasks) -> None:
    @tasks.task
    async def within(number: int) -> None: ...

    engine = sa.create_engine(database_url(tasks.url))
    try:
        with engine.begin() as connection:
            connection.execute(sa.text("CREATE TABLE mine (n INTEGER)"))
        with engine.begin() as connection:
            connection.execute(sa.text("INSERT INTO mine VALUES (1)"))
            if connection.dialect.name == "sqlite":
                with pytest.raises(InvalidInput, match=r"tasks\.define"):
                    await within.options(key="early", connection=connection).enqueue(1)
            else:
                assert not (await within.options(key="early", connection=connection).enqueue(1)).existing
                connection.rollback()
        await tasks.define()
        with engine.begin() as connection:
            connection.execute(sa.text("INSERT INTO mine VALUES (2)"))
            assert not (await within.options(key="kept", connection=connection).enqueue(2)).existing
            assert (await within.options(key="kept", connection=connection).enqueue(2)).existing
        with Session(engine) as session, session.begin():
            session.execute(sa.text("INSERT INTO mine VALUES (2)"))
            assert not (await within.options(key="by-session", connection=session).enqueue(2)).existing
        with engine.connect() as connection:
            connection.execute(sa.text("INSERT INTO mine VALUES (3)"))
            await within.options(key="gone", connection=connection).enqueue(3)
            connection.rollback()
    finally:
        engine.dispose()
    queue = await tasks.queue()
    assert [item.item_id for item in await queue.list("WITHIN")] == ["by-session", "kept"]


async def test_a_periodic_task_runs_at_each_tick_and_stays_paused(tasks: Tasks) -> None:
    ran: list[str] = []

    @tasks.periodic(every="PT1S", catch_up="all")
    async def report(day: str = "today") -> str:
        ran.append(current_task().item_id)
        return day

    @tasks.periodic(cron="0 16 * * MON-FRI", zone="Europe/Berlin", name="nightly")
    @tasks.task(retries=7)
    def clean_up() -> None: ...

    assert clean_up.definition.config.max_dispatch_retries == 8

    async def twice() -> bool:
        return len(ran) >= 2

    periodic = Periodic(await tasks.queue())
    async with working(tasks):
        await eventually(twice)
        await periodic.switch("report", enabled=False)
    assert ran == list(dict.fromkeys(ran))
    assert {item_id.partition("@")[0] for item_id in ran} == {"report"}
    async with working(tasks):
        states = {state.task.name: state for state in await periodic.list()}
    assert (states["report"].task.enabled, states["nightly"].task.item_type) == (False, "CLEAN_UP")


async def test_an_operators_settings_outlive_the_start_of_a_worker(tasks: Tasks) -> None:
    began: list[float] = []

    @tasks.task(retries=5, concurrency=10, rate="1000/second")
    async def call_api(number: int) -> None:
        began.append(time.monotonic())

    queue = await tasks.queue()
    await tasks.define()
    await queue.configure("CALL_API", concurrency=2, max_dispatch_retries=2, rate="2/second")
    for number in range(5):
        await call_api.options(key=str(number)).enqueue(number)
    async with working(tasks):
        await eventually(lambda: len(began) == 5)
        config = await queue.config("CALL_API")
        assert (config.concurrency, config.max_dispatch_retries, config.rate) == (2, 2, "2/second")
    assert all(later - first >= 0.99 for first, later in zip(began, began[2:], strict=False))


async def test_a_plain_function_learns_that_it_was_cancelled(tasks: Tasks) -> None:
    """It can't be interrupted, so it asks."""
    saw: list[str] = []

    @tasks.task
    def patient() -> None:
        current = current_task()
        saw.append("began")
        while not current.cancelled:
            time.sleep(0.01)
        saw.append("cancelled")

    @tasks.task(timeout=0.2, retries=0)
    def late() -> None:
        current = current_task()
        while not current.cancelled:
            time.sleep(0.01)
        saw.append("timed out")

    await patient.options(key="one").enqueue()
    async with working(tasks):
        await eventually(lambda: saw == ["began"])
        await (await tasks.queue()).cancel("PATIENT", ["one"])
        await eventually(lambda: saw == ["began", "cancelled"])
        await late.options(key="two").enqueue()
        await eventually(lambda: saw[-1] == "timed out")


async def test_a_plain_function_learns_that_its_worker_stops(tasks: Tasks) -> None:
    saw: list[str] = []

    @tasks.task
    def patient() -> None:
        current = current_task()
        saw.append("began")
        while not current.stopping:
            time.sleep(0.01)
        saw.append("stopping")
        raise Snooze(0)

    await patient.options(key="one").enqueue()
    async with working(tasks):
        await eventually(lambda: saw == ["began"])
    assert saw == ["began", "stopping"]


async def test_a_worker_serves_the_queues_that_it_is_given(tasks: Tasks) -> None:
    ran: list[str] = []

    @tasks.task(queue="mail")
    async def send() -> None:
        ran.append("send")

    @tasks.task
    async def other() -> None:
        ran.append("other")

    @tasks.task(queue="slow")
    async def moved() -> None:
        ran.append("moved")

    queue = await tasks.queue()
    for task in (send, other, moved):
        await task.options(key="one").enqueue()
    # An operator decides: the settings count, not the decorator.
    await queue.configure("MOVED", queue="mail")
    async with tasks.running(queues=["mail"], concurrency=2) as served:
        assert served == ["SEND", "MOVED"]
        await ended(send, "one")
        await ended(moved, "one")
        (worker,), unattended = await queue.workers()
        assert (worker.info.item_types, worker.info.concurrency, unattended) == (("MOVED", "SEND"), 2, ["OTHER"])
        assert await queue.unserved() == {"OTHER": 1}
    assert sorted(ran) == ["moved", "send"]
    assert await queue.unserved(["OTHER"]) == {}
    with pytest.raises(ConfigurationError, match="queues: no task is in the queue 'mial'; there are default, mail"):
        async with tasks.running(queues=["mail", "mial"]):
            pass
    with pytest.raises(ConfigurationError, match="concurrency"):
        async with tasks.running(concurrency=0):
            pass


@without_worker
async def test_a_call_is_one_with_the_one_that_waits(tasks: Tasks) -> None:
    @tasks.task(unique="while_waiting")
    async def refresh(page: int) -> None: ...

    first = await refresh.enqueue(1)
    assert await refresh.enqueue(1) == first._replace(existing=True)
    assert not (await refresh.enqueue(2)).existing
    keyed = await refresh.options(key="k").enqueue(1)
    assert (await refresh.options(key="k").enqueue(5)) == keyed._replace(existing=True)
    queue = await tasks.queue()
    await queue.cancel("REFRESH", [first.item_id])
    engine = sa.create_engine(database_url(tasks.url))
    with Session(engine) as session:
        again = await refresh.options(connection=session).enqueue(1)
        assert await refresh.options(connection=session).enqueue(1) == again._replace(existing=True)
        session.commit()
    engine.dispose()
    assert not again.existing
    assert again.item_id.startswith(f"{first.item_id}#")
    many = await refresh.enqueue_many([1, 3, 3])
    assert [one.existing for one in many] == [True, False, True]


async def test_a_plan_that_an_operator_names_holds_a_task_back(tasks: Tasks, tasks_url: str) -> None:
    ran: list[int] = []

    @tasks.task
    async def call(number: int) -> None:
        ran.append(number)

    @tasks.task
    async def other() -> None: ...

    plans = SqlPlans(tasks_url)
    plans.put(Plan("bank", SlidingLog(limit=2, window="PT1H")))
    queue = await tasks.queue()
    await tasks.define()
    await queue.configure("CALL", admission_plan="bank")
    await call.enqueue_many(range(5))
    async with working(tasks):
        await eventually(lambda: len(ran) == 2)
        # Others go on meanwhile.
        await other.options(key="one").enqueue()
        await ended(other, "one")
    plans.close()
    assert len(ran) == 2
