"""Statements that are sent ahead on PostgreSQL: results come later, in order, and an error leaves nothing behind."""

from __future__ import annotations

from collections.abc import AsyncIterator

import psycopg
import pytest

from paceline.errors import PacelineError
from paceline.sql.pipeline import BEGIN, ROLLBACK, Pipeline, Raw, Statement, execute_pipeline

NUMBER = Statement("ahead_number", "SELECT $1::int")
BROKEN = Statement("ahead_broken", "SELECT 1 / $1::int")


@pytest.fixture
async def raw(postgres_url: str) -> AsyncIterator[Raw]:
    connection = await psycopg.AsyncConnection.connect(postgres_url, autocommit=True)
    yield connection
    await connection.close()


async def test_results_come_in_the_order_of_the_statements(raw: Raw) -> None:
    pipeline = Pipeline(raw)
    for _ in range(2):
        await pipeline.send([(NUMBER, ("1",)), (NUMBER, ("2",))])
        await pipeline.send([(NUMBER, ("3",))])
        assert pipeline.is_open
        assert await pipeline.results() == [[(b"1",)], [(b"2",)], [(b"3",)]]
        assert not pipeline.is_open
        assert await pipeline.results() == []
    assert await execute_pipeline(raw, [(NUMBER, ("4",))]) == [[(b"4",)]], "the connection is free, and knows it"


async def test_an_error_is_raised_with_the_results_and_the_connection_goes_on(raw: Raw) -> None:
    pipeline = Pipeline(raw)
    await pipeline.send([(NUMBER, ("1",)), (BROKEN, ("0",)), (NUMBER, ("2",))])
    with pytest.raises(PacelineError, match="division by zero"):
        await pipeline.results()
    await pipeline.close()
    assert not raw.closed
    await pipeline.send([(BROKEN, ("1",))])
    assert await pipeline.results() == [[(b"1",)]]


async def test_who_fails_before_the_results_closes_the_connection(raw: Raw) -> None:
    pipeline = Pipeline(raw)
    await pipeline.send([(NUMBER, ("1",))])
    await pipeline.close()
    assert raw.closed


async def test_the_server_runs_statements_before_their_results_are_asked_for(raw: Raw, postgres_url: str) -> None:
    lock = Statement("ahead_lock", "SELECT pg_advisory_lock($1::int)")
    pipeline = Pipeline(raw)
    await pipeline.send([(lock, ("4711",))])
    async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as watcher:
        locked = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711 AND granted"
        while await (await watcher.execute(locked)).fetchone() is None:
            pass
    await pipeline.results()


async def test_the_results_of_a_section_can_be_had_before_those_behind_it(raw: Raw, postgres_url: str) -> None:
    wait = Statement("ahead_wait", "SELECT pg_advisory_xact_lock($1::int)")
    pipeline = Pipeline(raw)
    async with await psycopg.AsyncConnection.connect(postgres_url) as holder:
        await holder.execute("SELECT pg_advisory_xact_lock(4712)")
        await pipeline.send([(NUMBER, ("1",)), (NUMBER, ("2",))])
        await pipeline.end_section()
        await pipeline.send([(wait, ("4712",)), (NUMBER, ("3",))])
        assert await pipeline.section() == [[(b"1",)], [(b"2",)]]
        assert pipeline.is_open
    await pipeline.end_section()
    assert (await pipeline.section())[1:] == [[(b"3",)]]
    assert not pipeline.is_open
    assert await execute_pipeline(raw, [(NUMBER, ("4",))]) == [[(b"4",)]], "the connection is free"


async def test_an_error_in_a_section_ends_the_transaction_and_the_connection_goes_on(raw: Raw) -> None:
    pipeline = Pipeline(raw)
    await pipeline.send([(BEGIN, ()), (BROKEN, ("0",))])
    await pipeline.end_section()
    await pipeline.send([(NUMBER, ("1",))])
    await pipeline.end_section()
    await pipeline.send([(NUMBER, ("2",))])
    with pytest.raises(PacelineError, match="division by zero"):
        await pipeline.section()
    assert not pipeline.is_open
    await execute_pipeline(raw, [(ROLLBACK, ())])
    await pipeline.send([(NUMBER, ("3",))])
    assert await pipeline.results() == [[(b"3",)]]
