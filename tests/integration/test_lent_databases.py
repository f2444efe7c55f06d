"""What is lent to one test after the other shows nothing of the test before."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg import AsyncConnection

from paceline.sql import migrate
from tests import kept_connections, lent_databases
from tests.lent_databases import MigratedDatabases

INSERT: LiteralString = (
    "INSERT INTO paceline_outbox (topic, message_key, message_value, created_at) VALUES ('t', 'k', 'v', now()) "
    "RETURNING id"
)
CHANGES: dict[str, LiteralString] = {
    "a column": "ALTER TABLE paceline_slot ADD COLUMN surprise int",
    "a table": "CREATE TABLE surprise (a int)",
    "an index": "DROP INDEX paceline_slot_scheduled_at_ix",
    "statistics": f"{INSERT}; ANALYZE paceline_outbox",
    "a setting": "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET jit = on', current_database()); END $$",
    "the revision": f"DELETE FROM {migrate.REVISION_TABLE}",
}


@pytest.fixture
def lender(migrated_postgres: MigratedDatabases) -> Iterator[MigratedDatabases]:
    """It has none lent back to it yet."""
    with closing(MigratedDatabases(migrated_postgres.server, migrated_postgres.template)) as lender:
        yield lender


@pytest.mark.parametrize("rows", [2, 2000])
def test_who_borrows_next_finds_no_row_and_nobody_else(lender: MigratedDatabases, rows: int) -> None:
    with lender.lend() as first:
        lingering = psycopg.connect(first, autocommit=True)
        numbers = [lingering.execute(INSERT).fetchone() for _ in range(rows)]
    with pytest.raises(psycopg.OperationalError):
        lingering.execute("SELECT 1")
    lingering.close()
    with lender.lend() as second, psycopg.connect(second, autocommit=True) as connection:
        assert second == first
        assert connection.execute("SELECT count(*) FROM paceline_outbox").fetchone() == (0,)
        pages = connection.execute("SELECT pg_relation_size('paceline_outbox') / 8192").fetchone()
        assert pages is not None
        assert pages[0] < 10, "where the planner begins to look"
        assert connection.execute(INSERT).fetchone() == numbers[0]


def test_one_whose_connections_were_all_ended_is_lent_again(lender: MigratedDatabases) -> None:
    with lender.lend() as first, psycopg.connect(first, autocommit=True) as connection:
        connection.execute(INSERT)
        connection.execute(lent_databases._END_OTHERS, [[]])
    with lender.lend() as second, psycopg.connect(second, autocommit=True) as connection:
        assert second == first
        assert connection.execute("SELECT count(*) FROM paceline_outbox").fetchone() == (0,)


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_changed_in_another_way_is_lent_to_nobody(lender: MigratedDatabases, change: str) -> None:
    with lender.lend() as first, psycopg.connect(first, autocommit=True) as connection:
        connection.execute(CHANGES[change])
    with lender.lend() as second:
        assert second != first
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(first)


# -- connections -------------------------------------------------------------------------------------------------------

SESSIONS: dict[str, tuple[LiteralString, LiteralString, Any]] = {
    "a setting": ("SET work_mem = '77MB'", "SHOW work_mem", "4MB"),
    "a lock": ("SELECT pg_advisory_lock(7)", "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'", 0),
    "a temporary table": ("CREATE TEMP TABLE surprise (a int)", "SELECT to_regclass('surprise')", None),
    "a prepared statement": ("PREPARE surprise AS SELECT 1", "SELECT count(*) FROM pg_prepared_statements", 0),
    "a channel": ("LISTEN surprise", "SELECT count(*) FROM pg_listening_channels()", 0),
    "a transaction": (f"BEGIN; {INSERT}", "SELECT count(*) FROM paceline_outbox", 0),
    "a transaction that failed": ("BEGIN; SELECT 1 FROM nowhere", "SELECT count(*) FROM paceline_outbox", 0),
}


async def asked(connection: AsyncConnection[Any], query: LiteralString) -> Any:
    row = await (await connection.execute(query)).fetchone()
    return row[0] if row else None


async def opened(url: str) -> AsyncConnection[Any]:
    return await AsyncConnection.connect(url, autocommit=True)


@pytest.mark.parametrize("left", SESSIONS)
async def test_a_closed_connection_is_the_next_ones_with_nothing_of_its_session(
    lender: MigratedDatabases, left: str
) -> None:
    leave, look, nothing = SESSIONS[left]
    with lender.lend() as url:
        first = await opened(url)
        backend = first.info.backend_pid
        if "failed" in left:
            with pytest.raises(psycopg.errors.UndefinedTable):
                await first.execute(leave)
        else:
            await first.execute(leave)
        await first.close()
    with lender.lend() as url:
        second = await opened(url)
        assert second.info.backend_pid == backend
        assert await asked(second, look) == nothing
        await second.close()


async def test_who_has_closed_it_can_not_use_it(lender: MigratedDatabases) -> None:
    with lender.lend() as url:
        first = await opened(url)
        await first.close()
        await first.close()
        second = await opened(url)
        with pytest.raises(psycopg.OperationalError, match="closed"):
            await first.execute("SELECT 1")
        assert first.closed
        assert await asked(second, "SELECT 1") == 1
        await second.close()


async def test_one_that_the_server_has_ended_is_nobodys(lender: MigratedDatabases) -> None:
    with lender.lend() as url:
        await (await opened(url)).close()
        with psycopg.connect(url, autocommit=True) as other:
            other.execute(lent_databases._END_OTHERS, [[]])
        second = await opened(url)
        assert await asked(second, "SELECT 1") == 1
        await second.close()


async def test_one_that_was_opened_otherwise_is_not_taken(lender: MigratedDatabases) -> None:
    with lender.lend() as url:
        first = await opened(url)
        backend = first.info.backend_pid
        await first.close()
        named = await AsyncConnection.connect(url, application_name="named")
        assert named.info.backend_pid != backend
        assert await asked(named, "SHOW application_name") == "named"
        await named.close()


async def test_no_more_are_kept_than_a_test_needs(lender: MigratedDatabases) -> None:
    with lender.lend() as url:
        many = [await opened(url) for _ in range(kept_connections.MOST + 2)]
        for connection in many:
            await connection.close()
        assert len(kept_connections.backends(url.rpartition("/")[2])) == kept_connections.MOST


async def test_one_through_a_proxy_is_not_kept(lender: MigratedDatabases) -> None:
    with lender.lend() as url:
        database = url.rpartition("/")[2]

        async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(65536):
                writer.write(data)
            writer.close()
            await writer.wait_closed()

        is_over = asyncio.Event()

        async def proxied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            server = await asyncio.open_connection("127.0.0.1", lender.server.port)
            await asyncio.gather(pass_on(reader, server[1]), pass_on(server[0], writer))
            is_over.set()

        async with await asyncio.start_server(proxied, "127.0.0.1", 0) as proxy:
            port = proxy.sockets[0].getsockname()[1]
            connection = await opened(url.replace(f":{lender.server.port}/", f":{port}/"))
            assert await asked(connection, "SELECT current_database()") == database
            await connection.close()
            await is_over.wait()
        assert kept_connections.backends(database) == []
