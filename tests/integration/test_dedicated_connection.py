"""`Database.pipeline`: transactions of one flush on a connection that is kept, whatever happens to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from paceline.errors import Conflict, StoreUnavailable
from paceline.sql.engine import LAST_SECONDS, Database
from paceline.sql.pipeline import Calls, Statement, run_pipeline
from paceline.testing import eventually

INSERT = Statement("test_insert", "INSERT INTO numbers VALUES ($1::int) RETURNING number")
LOCKED = Statement("test_locked", "SELECT number FROM numbers WHERE number = $1::int FOR UPDATE")
WHO = Statement("test_who", "SELECT pg_backend_pid()")
LENGTH = Statement("test_length", "SELECT length($1::text)")
FORGET = Statement("test_forget", "DEALLOCATE ALL")
TABLE = """
    CREATE TABLE numbers (number int PRIMARY KEY);
    CREATE TABLE late (number int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED);
    INSERT INTO numbers VALUES (1)
"""
LATE = Statement("test_late", "INSERT INTO late VALUES ($1::int)")


@pytest.fixture
async def database(empty_postgres_url: str) -> AsyncIterator[Database]:
    database = Database(empty_postgres_url, pool_size=3, deadline=600)
    await database.write(lambda connection: [connection.exec_driver_sql(part) for part in TABLE.split(";")])
    yield database
    await database.close()


@pytest.fixture
def operator(database: Database) -> Any:
    """Another session."""
    url = database.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


async def pid(database: Database) -> int:
    [[(number,)]] = await database.pipeline([(WHO, ())])
    return int(number or 0)


def waiting(operator: Any) -> int:
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    return int(operator.execute(query).fetchone()[0])


def numbers(database: Database) -> Any:
    return database.read(lambda c: sorted(c.execute(sa.text("SELECT number FROM numbers")).scalars()))


def inserting(*values: int) -> Calls:
    return [(INSERT, (str(value),)) for value in values]


async def test_all_or_nothing_on_one_connection(database: Database) -> None:
    first = await pid(database)
    assert await database.pipeline(inserting(2, 3)) == [[(b"2",)], [(b"3",)]]
    with pytest.raises(Conflict):
        await database.pipeline(inserting(4, 2))
    assert await numbers(database) == [1, 2, 3]
    assert await pid(database) == first


async def test_what_fails_only_at_the_commit_is_an_error(database: Database) -> None:
    await database.pipeline([(LATE, ("1",))])
    with pytest.raises(Conflict):
        await database.pipeline([(LATE, ("1",))])
    await database.pipeline([(LATE, ("2",))])


async def test_while_it_is_in_use_others_take_one_of_the_pool(database: Database, operator: Any) -> None:
    first = await pid(database)
    with operator.transaction():
        operator.execute("SELECT FROM numbers WHERE number = 1 FOR UPDATE")
        locked = asyncio.create_task(database.pipeline([(LOCKED, ("1",))]))
        await eventually(lambda: waiting(operator))
        assert await pid(database) != first
        assert await database.pipeline(inserting(2)) == [[(b"2",)]]
    assert await locked == [[(b"1",)]]
    assert await pid(database) == first


async def test_two_who_come_first_open_one_connection(database: Database) -> None:
    await asyncio.gather(*(pid(database) for _ in range(3)))
    first = await pid(database)
    assert await pid(database) == first


async def test_a_cancelled_caller_leaves_no_statement_behind(database: Database, operator: Any) -> None:
    first = await pid(database)
    with operator.transaction():
        operator.execute("SELECT FROM numbers WHERE number = 1 FOR UPDATE")
        locked = asyncio.create_task(database.pipeline([(LOCKED, ("1",)), *inserting(2)]))
        await eventually(lambda: waiting(operator))
        locked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await locked
        await eventually(lambda: not waiting(operator))
    assert await numbers(database) == [1]
    assert await pid(database) != first


async def test_a_session_that_ended_while_idle_costs_no_error(database: Database, operator: Any) -> None:
    first = await pid(database)
    operator.execute("SELECT pg_terminate_backend(%s)", (first,))
    await eventually(lambda: database._dedicated is not None and database._dedicated.closed)
    assert await pid(database) != first


async def test_a_session_that_ended_under_way_is_an_outage_of_one_call(database: Database, operator: Any) -> None:
    first = await pid(database)
    with operator.transaction():
        operator.execute("SELECT FROM numbers WHERE number = 1 FOR UPDATE")
        locked = asyncio.create_task(database.pipeline([(LOCKED, ("1",))]))
        await eventually(lambda: waiting(operator))
        operator.execute("SELECT pg_terminate_backend(%s)", (first,))
        with pytest.raises(StoreUnavailable):
            await locked
    assert await pid(database) != first


async def test_haste_ends_what_is_in_flight(database: Database, operator: Any) -> None:
    first = await pid(database)
    with operator.transaction():
        operator.execute("SELECT FROM numbers WHERE number = 1 FOR UPDATE")
        locked = asyncio.create_task(database.pipeline([(LOCKED, ("1",))]))
        await eventually(lambda: waiting(operator))
        database.hasten(0.01)
        with pytest.raises(StoreUnavailable, match="in time"):
            await locked
        await eventually(lambda: not waiting(operator))  # the server aborts it
    assert database._deadline == 0.01 < LAST_SECONDS
    database._deadline = 60
    assert await pid(database) != first


async def test_a_database_that_is_closed_meanwhile_lets_it_finish(database: Database, operator: Any) -> None:
    await pid(database)
    database.share()
    with operator.transaction():
        operator.execute("SELECT FROM numbers WHERE number = 1 FOR UPDATE")
        locked = asyncio.create_task(database.pipeline([(LOCKED, ("1",))]))
        await eventually(lambda: waiting(operator))
        await database.close()
        dedicated = database._dedicated
        assert dedicated is not None
        dedicated.close()
    assert await locked == [[(b"1",)]]
    assert dedicated._socket == -1


async def test_statements_that_the_server_forgot_are_prepared_again(database: Database) -> None:
    first = await pid(database)
    await database.pipeline([(FORGET, ())])
    assert await pid(database) == first


async def test_more_than_the_socket_takes_at_once(database: Database) -> None:
    text = "x" * 20_000_000
    assert await database.pipeline([(LENGTH, (text,)), (LENGTH, (text,))]) == [[(b"20000000",)]] * 2


async def test_statements_that_were_prepared_in_the_pool_are_not_prepared_again(database: Database) -> None:
    """The connection comes from the pool, and may have run the same statements there."""
    await database.flush(run_pipeline, [(WHO, ())])
    await pid(database)


async def test_statements_that_the_server_forgot_in_the_pool_are_prepared_again(database: Database) -> None:
    await database.flush(run_pipeline, [(WHO, ())])
    await database.flush(run_pipeline, [(FORGET, ())])
    length, [(who,)] = await database.pipeline([(LENGTH, ("abc",)), (WHO, ())])
    assert length == [(b"3",)]
    assert who is not None
