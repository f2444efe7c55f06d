"""`complete_with`: what a task writes in the transaction that completes it, on every store and engine."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import sqlalchemy as sa

from paceline import current_task
from paceline.dispatch.model import Item
from paceline.dispatch.status import Status
from paceline.sql.url import database_url
from paceline.testing import eventually
from tests.contracts.task_engines import EngineTasks, ended, working


def save(connection: sa.Connection, numbers: Sequence[int]) -> None:
    connection.execute(sa.text("INSERT INTO paid (amount) VALUES (:amount)"), [{"amount": each} for each in numbers])


def ledger(url: str) -> sa.Engine:
    engine = sa.create_engine(database_url(url))
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE paid (amount integer PRIMARY KEY)"))
    return engine


def amounts(engine: sa.Engine) -> list[int]:
    with engine.connect() as connection:
        return list(connection.execute(sa.text("SELECT amount FROM paid ORDER BY amount")).scalars())


async def test_a_record_is_written_with_the_completion_or_not_at_all(tasks: EngineTasks, tasks_url: str) -> None:
    engine = ledger(tasks_url)

    @tasks.task(retries=0)
    async def pay(amount: int) -> None:
        current_task().complete_with(save, amount)
        if amount == 3:
            raise ValueError("no money")

    @tasks.task(retries=0)
    def pay_on_a_thread(amount: int) -> int:
        current_task().complete_with(save, amount)
        return amount

    await pay.enqueue_many([pay.options(key=f"p{n}").call(n) for n in (1, 2, 3)])
    await pay_on_a_thread.options(key="one").enqueue(4)
    async with working(tasks):
        details = [await ended(pay, f"p{n}") for n in (1, 2, 3)]
        details.append(await ended(pay_on_a_thread, "one"))
    if tasks.temporal is None:
        done, dead = Status.COMPLETED, Status.DEAD_LETTER
        assert [detail.item.status for detail in details] == [done, done, dead, done]
        assert details[3].result == 4
        assert amounts(engine) == [1, 2, 4]
    else:
        assert "complete_with() is for tasks that a worker runs in its own process" in str(details[0].item.last_error)
        assert amounts(engine) == []
    engine.dispose()


@pytest.mark.parametrize("tasks", ["in-process"], indirect=True)
async def test_a_record_that_is_refused_leaves_the_attempt_unknown_and_fails_no_other(
    tasks: EngineTasks, tasks_url: str
) -> None:
    engine = ledger(tasks_url)
    runs: list[str] = []

    @tasks.task(on_unknown="hold")
    async def pay(key: str, amount: int) -> None:
        runs.append(key)
        current_task().complete_with(save, amount)

    await pay.options(key="first").enqueue("first", 1)
    async with working(tasks):
        await ended(pay, "first")
        await pay.enqueue_many([pay.options(key=key).call(key, n) for key, n in (("again", 1), ("other", 2))])
        assert (await ended(pay, "other")).item.status is Status.COMPLETED
        queue = await tasks.queue()

        async def held() -> Item | None:
            item = (await queue.show("PAY", "again")).item
            return item if item.status is Status.UNKNOWN else None

        item = await eventually(held)
    assert "what it writes with its completion was refused" in str(item.last_error)
    assert (sorted(runs), amounts(engine)) == (["again", "first", "other"], [1, 2])
    engine.dispose()
