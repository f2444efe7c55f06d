"""`task.blocking`: tasks queued from threads without an event loop, in transactions of Django's and SQLAlchemy's."""

from __future__ import annotations

import contextlib
import inspect
import sqlite3
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from django.db import transaction
from sqlalchemy.orm import Session

from paceline import (
    BlockingDispatchQueue,
    BlockingDownstream,
    DispatchQueue,
    Downstream,
    InvalidInput,
    Task,
    Tasks,
    current_task,
)
from paceline.dispatch.status import Status
from paceline.dispatch.tasks._blocking import BlockingTasks
from paceline.dispatch.tasks._blocking_task import BlockingCall, BlockingTask
from paceline.dispatch.tasks.task import Call
from paceline.downstream._blocking_call import BlockingCall as BlockingDownstreamCall
from paceline.downstream.call import Call as DownstreamCall
from paceline.limits._blocking import Limiter
from paceline.limits.limiter import AsyncLimiter
from paceline.sql.url import database_url
from tests.contracts.queue.test_transactions import django_connection as django_connection
from tests.contracts.task_engines import working


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shop.db'}"
    return str(request.getfixturevalue("postgres_url"))


class Shop:
    """A program without an event loop."""

    def __init__(self, url: str) -> None:
        self.tasks = tasks = Tasks(url)

        @tasks.task(lane="shop", priority=3, unique="arguments")
        def send(invoice: str, copies: int = 1) -> str:
            return f"{invoice}: {copies} by {current_task().lane}"

        @tasks.task
        async def total(prices: list[Decimal]) -> Decimal:
            return sum(prices, Decimal(0))

        self.send, self.total = send, total

    def ids(self) -> set[str]:
        with BlockingDispatchQueue(self.tasks.url) as queue:
            return {item.item_id for item in queue.list("SEND")}


@pytest.fixture
def shop(url: str) -> Iterator[Shop]:
    shop = Shop(url)
    yield shop
    shop.tasks.blocking.close()


async def test_what_a_thread_queues_is_checked_runs_and_gives_its_result(shop: Shop) -> None:
    queued = []

    def view() -> None:
        with pytest.raises(InvalidInput, match="copies"):
            shop.send.blocking.enqueue("inv-1", copies="many")  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="key"):
            shop.send.options(key="").blocking.enqueue("inv-1")
        queued.append(shop.send.blocking.enqueue("inv-1"))
        queued.append(shop.send.blocking.enqueue("inv-1"))
        queued.extend(shop.total.blocking.enqueue_many([([Decimal("1.10"), Decimal(2)],)]))

    thread = threading.Thread(target=view)
    thread.start()
    thread.join()
    first, again, third = queued
    assert (first.existing, again.existing, again.item_id) == (False, True, first.item_id), "unique by arguments"
    async with shop.tasks, working(shop.tasks):
        assert await shop.send.result(first.item_id, timeout=20) == "inv-1: 1 by shop"
        assert await shop.total.result(third.item_id, timeout=20) == Decimal("3.10")
    item = shop.send.blocking.show(first.item_id).item
    assert (item.status, item.lane, item.priority) == (Status.COMPLETED, "shop", 3)
    assert shop.send.blocking.result(first.item_id) == "inv-1: 1 by shop"


def test_the_first_call_in_djangos_transaction_needs_no_preparation(shop: Shop, django_connection: Any) -> None:
    """In a database without any table of the queue."""
    alias = django_connection.alias
    send = shop.send.options(connection=django_connection)
    with transaction.atomic(using=alias):
        kept = send.blocking.enqueue("kept")
        with pytest.raises(InvalidInput, match="copies"):
            send.blocking.enqueue("kept", copies="many")  # type: ignore[arg-type]
        with contextlib.suppress(ZeroDivisionError), transaction.atomic(using=alias):
            send.blocking.enqueue("undone")
            raise ZeroDivisionError
        many = send.blocking.enqueue_many([("kept",), ("many", 2)])
        assert [one.existing for one in many] == [True, False]
    with contextlib.suppress(ZeroDivisionError), transaction.atomic(using=alias):
        send.blocking.enqueue("gone")
        raise ZeroDivisionError
    assert shop.ids() == {kept.item_id, many[1].item_id}
    with pytest.raises(InvalidInput, match=r"transaction\.atomic"):
        send.blocking.enqueue("alone")


def test_a_sessions_transaction_and_a_chain_within_it(shop: Shop) -> None:
    shop.tasks.blocking.define()
    engine = sa.create_engine(database_url(shop.tasks.url))
    with Session(engine) as session, session.begin():
        session.execute(sa.text("CREATE TABLE orders (id INTEGER)"))
        shop.send.options(key="one", connection=session).blocking.enqueue("a")
        shop.tasks.blocking.chain(shop.send.call("b"), key="two", connection=session)
    with Session(engine) as session:
        shop.send.options(key="gone", connection=session).blocking.enqueue("c")
        session.rollback()
    engine.dispose()
    assert shop.ids() == {"one", "two"}


def test_a_transaction_that_writes_before_the_task_is_known_says_what_to_do(tmp_path: Path) -> None:
    shop = Shop(f"sqlite:///{tmp_path / 'shop.db'}")
    own = sqlite3.connect(tmp_path / "shop.db")
    own.execute("CREATE TABLE mine (n INTEGER)")
    own.execute("INSERT INTO mine VALUES (1)")
    with pytest.raises(InvalidInput, match=r"tasks\.define\(\)"):
        shop.send.options(connection=own).blocking.enqueue("early")
    own.rollback()
    shop.tasks.blocking.define()
    own.execute("BEGIN")
    shop.send.options(connection=own, key="kept").blocking.enqueue("early")
    own.commit()
    own.close()
    shop.tasks.blocking.close()
    assert shop.ids() == {"kept"}


def test_threads_share_the_blocking_form(shop: Shop) -> None:
    engine = sa.create_engine(database_url(shop.tasks.url))
    shop.tasks.blocking.define()

    def work(number: int) -> None:
        shop.send.options(key=f"alone-{number}").blocking.enqueue(str(number))
        with Session(engine) as session, session.begin():
            shop.send.options(key=f"within-{number}", connection=session).blocking.enqueue(str(number))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    engine.dispose()
    assert shop.ids() == {f"{where}-{number}" for where in ("alone", "within") for number in range(8)}


# -- twins -------------------------------------------------------------------------------------------------------

FOR_LOOPS: dict[type, set[str]] = {
    AsyncLimiter: {"load_plans"},
    DispatchQueue: {"slot_carriers", "enqueue_request", "enqueue_requests", "enqueue_group", "store"},
    Tasks: {
        *("task", "periodic", "item_types", "domains", "declare", "blocking", "queue", "run", "running", "in_memory"),
        *("borrowed", "lend", "enqueue_item", "enqueue_calls", "queue_next"),
    },
    Task: {"item_type", "blocking", "options", "call", "call_with_result"},
    Call: {"blocking", "call", "task", "given"},
    Downstream: {"is_open"},
    DownstreamCall: {"downstream", "note", "seconds_left"},
}
"""What defines tasks, runs them on an event loop, or needs no twin because it does not wait."""


@pytest.mark.parametrize(
    ("asynchronous", "blocking"),
    [
        (AsyncLimiter, Limiter),
        (DispatchQueue, BlockingDispatchQueue),
        (Tasks, BlockingTasks),
        (Task, BlockingTask),
        (Call, BlockingCall),
        (Downstream, BlockingDownstream),
        (DownstreamCall, BlockingDownstreamCall),
    ],
)
def test_a_blocking_twin_has_every_call(asynchronous: type, blocking: type) -> None:
    mine, theirs = public(asynchronous) - FOR_LOOPS[asynchronous], public(blocking)
    attributes = {name for name in theirs if isinstance(getattr(blocking, name), property)}
    assert theirs - (attributes - mine) == mine
    for name in mine - {"open", "close"}:
        assert parameters(asynchronous, name) == parameters(blocking, name), name


def test_blocking_downstreams_take_the_same_options() -> None:
    assert inspect.signature(BlockingDownstream).parameters == inspect.signature(Downstream).parameters


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def parameters(kind: type, name: str) -> list[str]:
    member = getattr(kind, name)
    return [*inspect.signature(member).parameters] if callable(member) else []
